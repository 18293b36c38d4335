"""Colloquial scripts: dialogues in written style, each rewritten in spoken style (section 3.1, text only).

Origin: written for this project, in ten domains of everyday life (the paper has 250 scenarios in ten domains). Some
are marked hard: the written side is plain and short, the spoken one has no filler to give it away.
Size: 210 pairs of 4 to 8 turns. Language: en. Licence: Apache-2.0. How to obtain: it lies beside this package.

A domain is held out whole, so that no topic is met in training and in test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.package_files import SCRIPTS
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, ScriptPair, Turn

from .reading import read_json_lines


DEFAULT_PATH = SCRIPTS / "colloquial_scripts.jsonl"


def script_pairs(path: Path | None = None) -> Iterator[ScriptPair | Skipped]:
    """Yield the written and the spoken script of each scenario.

    Args:
        path (`Path`, *optional*): A JSONL file with `scenario_id`, `domain`, `hard`, and `written` and `spoken` as
            lists of `{"role", "content"}`, optionally `group` (what several variations of a scenario share) and
            `license`; the project's own by default.

    Raises:
        FileNotFoundError: There is no such file.
    """
    seen: set[str] = set()
    for item, row in read_json_lines(path or DEFAULT_PATH, "colloquial_scripts"):
        if isinstance(row, Skipped):
            yield row
            continue
        try:
            pair = ScriptPair(written=_episode(row, "written"), spoken=_episode(row, "spoken"))
        except (KeyError, TypeError) as error:
            yield Skipped(item, "bad_row", f"a field is missing or of another kind: {error!r}.")
            continue
        if pair.written.name in seen:
            yield Skipped(item, "duplicate", f"scenario_id {row['scenario_id']!r} was used before; the first is kept.")
            continue
        seen.add(pair.written.name)
        yield pair


def _episode(row: Mapping[str, Any], style: str) -> Episode:
    return Episode(
        name=f"{row['scenario_id']}/{style}",
        source="colloquial_scripts",
        subset="colloquialness",
        group=row.get("group", row["scenario_id"]),
        split_group=row["domain"],
        turns=tuple(Turn(turn["role"], (Part(turn["content"]),)) for turn in row[style]),
        primary=row["domain"],
        secondary="hard" if row["hard"] else "plain",
        language="en",
        license=row.get("license", "Apache-2.0"),
    )
