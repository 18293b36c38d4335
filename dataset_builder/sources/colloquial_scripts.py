"""The source of scripts: dialogues in written style, each rewritten in spoken style (section 3.1, text only)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sdiareward.common.errors import Skipped
from sdiareward.common.package import SCRIPTS

from ..episodes import Episode, Part, ScriptPair, SkipError, Turn
from ..pairing.surface_counts import find_imbalance, require_balance
from .reading import read_json_lines


def read_scripts(path: Path | None = None, *, balanced: bool = False) -> Iterator[ScriptPair | Skipped]:
    """Colloquial scripts: dialogues in written style, each rewritten in spoken style (section 3.1, text only).

    Origin: written for this project, about everyday life (the paper has 250 scenarios in ten domains). Language: en.
    Licence: Apache-2.0. How to obtain: two files are beside this package.

    - `colloquial_scripts.jsonl`, level easy: 210 pairs of 4 to 8 turns in ten domains. A count of commas separates the
      sides of every pair.
    - `balanced_scripts.jsonl`, with the option `balanced`: 300 pairs of 4 or 6 turns in fifteen domains, of which 100
      have a third side, a caricature of speech, that loses against the spoken one. The difference lies in how a
      sentence is built: planned and packed on the written side; one thought after the other, with repairs and
      reactions, on the spoken side. Both sides have as many turns, nearly as many words, and in each turn nearly as
      many punctuation marks (`surface_counts.find_imbalance`). Of the spoken sides against the written ones, no count
      alone orders more than 65% (`surface_counts.require_balance`). Fillers and word length do identify a caricature.
      Rows of these pairs name the source `balanced_scripts`.

    A domain is held out whole, so that no topic is met in training and in test.
    """
    source = "balanced_scripts" if balanced else "colloquial_scripts"
    seen: set[str] = set()

    def read(row: dict[str, Any], item: str) -> Iterator[ScriptPair | Skipped]:
        try:
            styles = [style for style in ("written", "caricature") if style == "written" or style in row]
            pairs = [_make_pair(row, style, source) for style in styles]
        except (KeyError, TypeError) as error:
            raise SkipError("bad_row", f"a field is missing or of another kind: {error!r}.") from error
        if pairs[0].written.name in seen:
            raise SkipError("duplicate", f"scenario_id {row['scenario_id']!r} was used before; the first is kept.")
        seen.add(pairs[0].written.name)
        for pair in pairs:
            reason = balanced and find_imbalance(*_list_sides(pair))
            yield Skipped(item, "unbalanced", f"{pair.written.name}: {reason}") if reason else pair

    found = list(read_json_lines(path or SCRIPTS / f"{source}.jsonl", source, read))
    if balanced:
        pairs = [item for item in found if isinstance(item, ScriptPair) and item.written.secondary != "caricature"]
        require_balance(_list_sides(pair) for pair in pairs)
    yield from found


def _list_sides(pair: ScriptPair) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    spoken, written = ([{"content": turn.text} for turn in side.turns] for side in (pair.spoken, pair.written))
    return spoken, written


def _make_pair(row: Mapping[str, Any], style: str, source: str) -> ScriptPair:
    """Return the spoken side against one that loses: the written one, or the caricature as a pair of its own."""
    level = str(row.get("level", "easy")) if style == "written" else style
    common = {
        "source": source,
        "subset": "colloquialness",
        "group": row.get("group", row["scenario_id"]),
        "split_group": row["domain"],
        "primary": row["domain"],
        "secondary": level,
        "language": "en",
        "license": row.get("license", "Apache-2.0"),
    }
    written, spoken = (
        Episode(
            name=f"{row['scenario_id']}/{side}",
            turns=tuple(Turn(turn["role"], (Part(turn["content"]),)) for turn in row[side]),
            **common,
        )
        for side in (style, "spoken")
    )
    return ScriptPair(written, spoken if style == "written" else replace(spoken, name=f"{spoken.name}-{style}"))
