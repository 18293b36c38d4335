"""Balanced scripts: written and spoken dialogues that no count of their words or marks tells apart (text only).

Origin: written for this project, in fifteen domains of everyday life. The difference lies in how a sentence is built:
planned and packed on the written side; one thought after the other, with repairs and reactions, on the spoken side.
Size: 300 pairs of 4 or 6 turns, of which 100 have a third side, a caricature of speech, that loses against the spoken
one. Language: en. Licence: Apache-2.0. How to obtain: it lies beside this package.

Both sides of a pair have as many turns, nearly as many words, and in each turn nearly as many punctuation marks
(`surface_counts.find_imbalance`). Of the spoken sides against the written ones, no count alone orders more than 65%
(`surface_counts.require_balance`). Counts such as fillers and word length do tell a caricature. A domain is held out
whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sdiareward.common.package_files import SCRIPTS
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import ScriptPair

from .colloquial_scripts import read_script_pairs


DEFAULT_PATH = SCRIPTS / "balanced_scripts.jsonl"


def read_pairs(path: Path | None = None) -> Iterator[ScriptPair | Skipped]:
    """Yield the sides of each scenario as pairs, and require that counting does not solve them.

    Args:
        path (`Path`, *optional*): A JSONL file as `colloquial_scripts` reads it; the project's own by default.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A count alone orders more than 65% of the pairs of spoken against written style; the message has
            the table of all counts.
    """
    return read_script_pairs(path or DEFAULT_PATH, "balanced_scripts", require_balanced=True)
