"""Hash the content of dialogues, so that a resumed run scores only what has changed.

Ids, paths and labels do not show a change: recordings are replaced under the same names.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import Clip
from sdiareward.chat_sdiareward import make_dialogue
from sdiareward.common.files import hash_json

from .labels import name_criterion
from .schema import SIDES


if TYPE_CHECKING:
    import datasets

# A billion dialogues collide with a probability of 1e-21.
_DIGEST_CHARACTERS = 32
Stamp = tuple[str, int, int, int]


def hash_audio(audio: Any) -> str:
    """Hash encoded bytes as they are, or samples with their rate in Hz and shape."""
    return Clip(audio).digest


def hash_parts(parts: Iterable[str | Clip]) -> list[list[str]]:
    """Return the words and the recordings of a turn, each recording replaced by its hash."""
    return [["audio", part.digest] if isinstance(part, Clip) else ["text", part] for part in parts]


def digest_dialogue(turns: Any, criterion: str | None) -> str | None:
    """Return a digest of all that a reward depends on except the model; None if the row cannot be read."""
    parts = _hash_turns(turns)
    return None if parts is None else _digest(parts, criterion)


def _hash_turns(turns: Any) -> list[Any] | None:
    try:
        dialogue = make_dialogue(turns, is_whole=False)
        system = [] if dialogue.system is None else [["system", [["text", dialogue.system]]]]
        return [*system, *([turn.role, hash_parts(turn.parts)] for turn in dialogue.turns)]
    # Malformed messages, invalid samples, and missing files.
    except (ValueError, TypeError, OSError):
        return None


def _digest(parts: list[Any], criterion: str | None) -> str:
    return hash_json([name_criterion(criterion), parts])[:_DIGEST_CHARACTERS]


def digest_shared(pair: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return digests of what pairs may share: whole sides, prompts (all before the last answer), and recordings."""
    sides = [parts for side in SIDES if (parts := _hash_turns(pair[side])) is not None]
    prompts = [[part for part in parts[:-1] if part[0] != "system"] for parts in sides]
    return {
        "side": [_digest(parts, None) for parts in sides],
        "prompt": sorted({_digest(parts, None) for parts in prompts if parts}),
        "recording": sorted({item[1] for parts in sides for part in parts for item in part[1] if item[0] == "audio"}),
    }


def join_units(keys: Mapping[Any, Iterable[Hashable]]) -> dict[Any, Any]:
    """Return for each unit the least of those that it shares a key with, directly or through others."""
    parents = {unit: unit for unit in keys}
    first: dict[Hashable, Any] = {}

    def find(unit: Any) -> Any:
        while parents[unit] != unit:
            parents[unit] = unit = parents[parents[unit]]
        return unit

    for unit, of_unit in keys.items():
        for key in of_unit:
            one, other = sorted((find(unit), find(first.setdefault(key, unit))))
            parents[other] = one
    return {unit: find(unit) for unit in keys}


def fingerprint_pairs(labels: Sequence[Mapping[str, Any]], rows: datasets.Dataset | None = None) -> str:
    """Return a hash of the labels of pairs and, with `rows`, of their content, recordings included."""
    return hash_json([list(labels), *map(_hash_row, () if rows is None else rows)])


def _hash_row(row: Mapping[str, Any]) -> Any:
    if set(SIDES) <= set(row):
        return digest_pair(row, None)
    return [[name, _hash_value(value)] for name, value in sorted(row.items())]


def _hash_value(value: Any) -> Any:
    with suppress(TypeError, OSError):
        return hash_audio(value) if isinstance(value, Mapping) and "bytes" in value else value
    return None


def digest_pair(pair: Mapping[str, Any], criterion: str | None) -> list[str | None]:
    return [digest_dialogue(pair[side], criterion) for side in SIDES]


def stamp_file(path: str | Path) -> Stamp:
    """Return what identifies a file without reading it: path, size, time of change in ns, inode."""
    found = os.stat(path)
    return str(path), found.st_size, found.st_mtime_ns, found.st_ino


def is_unchanged(stamp: Sequence[Any]) -> bool:
    try:
        return list(stamp_file(stamp[0])) == list(stamp)
    except OSError:
        return False
