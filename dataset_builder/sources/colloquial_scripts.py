"""Colloquial scripts, level easy: dialogues in written style, each rewritten in spoken style (section 3.1, text only).

Origin: written for this project, in ten domains of everyday life (the paper has 250 scenarios in ten domains).
Size: 210 pairs of 4 to 8 turns. Language: en. Licence: Apache-2.0. How to obtain: it lies beside this package.

A domain is held out whole, so that no topic is met in training and in test.

A count of commas tells the sides of every pair apart. `balanced_scripts` has pairs that counting cannot solve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sdiareward.common.package_files import SCRIPTS
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, ScriptPair, Turn

from ..pairing.surface_counts import find_imbalance, require_balance
from .reading import read_json_lines


DEFAULT_PATH = SCRIPTS / "colloquial_scripts.jsonl"


def read_pairs(path: Path | None = None) -> Iterator[ScriptPair | Skipped]:
    """Yield the written and the spoken script of each scenario.

    Args:
        path (`Path`, *optional*): A JSONL file with `scenario_id`, `domain`, and `written` and `spoken` as lists of
            `{"role", "content"}`, optionally `level` (by default `easy`), `caricature`, a third side that loses
            against the spoken one, `group` (what several variations share) and `license`; the project's own by
            default.

    Raises:
        FileNotFoundError: There is no such file.
    """
    return read_script_pairs(path or DEFAULT_PATH, "colloquial_scripts")


def read_script_pairs(path: Path, source: str, *, require_balanced: bool = False) -> Iterator[ScriptPair | Skipped]:
    """Yield the pairs of a file of scripts, as `read_pairs`.

    Args:
        path (`Path`): The file.
        source (`str`): Name of the source.
        require_balanced (`bool`, *optional*, defaults to `False`): Skip pairs that counting tells apart, and refuse a
            file that it solves; see `surface_counts`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Counting solves the file.
    """
    found = list(_read_pairs(path, source, require_balanced))
    if require_balanced:
        pairs = [item for item in found if isinstance(item, ScriptPair) and item.written.secondary != "caricature"]
        require_balance((_as_turns(pair.spoken), _as_turns(pair.written)) for pair in pairs)
    yield from found


def _read_pairs(path: Path, source: str, require_balanced: bool) -> Iterator[ScriptPair | Skipped]:
    seen: set[str] = set()
    for item, row in read_json_lines(path, source):
        if isinstance(row, Skipped):
            yield row
            continue
        try:
            styles = [style for style in ("written", "caricature") if style == "written" or style in row]
            pairs = [_make_pair(row, style, source) for style in styles]
        except (KeyError, TypeError) as error:
            yield Skipped(item, "bad_row", f"a field is missing or of another kind: {error!r}.")
            continue
        if pairs[0].written.name in seen:
            yield Skipped(item, "duplicate", f"scenario_id {row['scenario_id']!r} was used before; the first is kept.")
            continue
        seen.add(pairs[0].written.name)
        for pair in pairs:
            reason = require_balanced and find_imbalance(_as_turns(pair.spoken), _as_turns(pair.written))
            yield Skipped(item, "unbalanced", f"{pair.written.name}: {reason}") if reason else pair


def _as_turns(episode: Episode) -> list[dict[str, str]]:
    return [{"content": turn.text} for turn in episode.turns]


def _make_pair(row: Mapping[str, Any], style: str, source: str) -> ScriptPair:
    """Return the spoken side against one that loses: the written one, or the caricature as a pair of its own."""
    level = str(row.get("level", "easy")) if style == "written" else style
    spoken = _make_episode(row, "spoken", level, source)
    if style != "written":
        spoken = replace(spoken, name=f"{spoken.name}-{style}")
    return ScriptPair(written=_make_episode(row, style, level, source), spoken=spoken)


def _make_episode(row: Mapping[str, Any], style: str, level: str, source: str) -> Episode:
    return Episode(
        name=f"{row['scenario_id']}/{style}",
        source=source,
        subset="colloquialness",
        group=row.get("group", row["scenario_id"]),
        split_group=row["domain"],
        turns=tuple(Turn(turn["role"], (Part(turn["content"]),)) for turn in row[style]),
        primary=row["domain"],
        secondary=level,
        language="en",
        license=row.get("license", "Apache-2.0"),
    )
