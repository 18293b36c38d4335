"""Read the dialogues of systems to compare, by the name of the dialogue.

A system is a folder of dialogues (`dialogue_folders`) or a table; one table may hold all systems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import compose
from sdiareward.chat_sdiareward import DialogueError, make_dialogue
from sdiareward.common.errors import UserError

from .dialogue_folders import read_dialogue_folder
from .dialogues import RecordingFinder
from .messages import AUDIO_SUFFIXES, Form
from .path_sandbox import Roots, list_audio_roots, require_inside
from .rows import DIALOGUE_COLUMNS, Rows, open_rows, read_block


Messages = list[dict[str, Any]]
NAME_COLUMNS = ("dialogue_id", "id", "pair_id", "name")
SYSTEM_COLUMN, GROUP_COLUMN = "system", "group_id"
_TABLES = (".json", ".jsonl", ".parquet")


@dataclass
class System:
    name: str
    path: str
    names: list[str]  # Of its dialogues, in order.
    read: Callable[[str], Messages]  # Paths of recordings absolute.
    groups: dict[str, str] = field(default_factory=dict)  # By dialogue.
    skipped: dict[str, str] = field(default_factory=dict)  # Reason by name of the dialogue or file.


def read_systems(
    paths: Sequence[str | Path],
    *,
    pattern: str | None = None,
    user_turns: str | Path | None = None,
    audio_root: str | Path | None = None,
    form: Form | None = None,
) -> list[System]:
    """Find the dialogues of all systems: each a folder or table, or all in one table with the column `system`."""
    if not paths:
        raise UserError("there is no system; give two or more folders or tables of dialogues.")
    named = name_systems(list(map(str, paths)))
    if user_turns is not None and not any(Path(path).is_dir() for path in named.values()):
        raise UserError("--user_turns is for folders of recordings; a table holds the user's turns itself.")
    systems: list[System] = []
    try:
        for name, path in named.items():
            systems += _read(name, path, audio_root, {"pattern": pattern, "user_turns": user_turns, "form": form})
    except (ValueError, OSError) as error:
        raise error if isinstance(error, UserError) else UserError(str(error)) from error
    if len(systems) < 2:
        raise UserError(
            f"{paths[0]}: is a single system; give a second folder or table to compare it with, or one table with a "
            f"column {SYSTEM_COLUMN!r} that names at least two."
        )
    _require_distinct([system.name for system in systems])
    return systems


def name_systems(paths: Sequence[str]) -> dict[str, str]:
    """Return the paths by the systems' names: as given by `NAME=PATH`, else the distinguishing end of the path."""
    given = [path.partition("=") if "=" in path and not Path(path).exists() else ("", "", path) for path in paths]
    parts = [Path(path).absolute().parts for _, _, path in given]
    if not any(name for name, _, _ in given) and (twice := Counter(parts).most_common(1)[0])[1] > 1:
        raise UserError(f"{Path(*twice[0])}: is given twice; give another system to compare it with.")
    names = [name for name, _, _ in given]
    lengths = [1] * len(paths)
    for _ in range(max(map(len, parts))):
        ends = zip(names, parts, lengths, strict=True)
        found = [name or _end_of(each, length) for name, each, length in ends]
        counts = Counter(found)
        lengths = [length + (counts[name] > 1) for name, length in zip(found, lengths, strict=True)]
    _require_distinct(found)
    return {name: path for name, (_, _, path) in zip(found, given, strict=True)}


def _end_of(parts: Sequence[str], length: int) -> str:
    *folders, last = parts[-length:]
    stem = last[: -len(Path(last).suffix)] if Path(last).suffix in _TABLES else last
    return "/".join([*folders, stem])


def _require_distinct(names: Sequence[str]) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise UserError(f"{count} systems are called {name!r}; give each a name of its own, as NAME=PATH.")


def _read(name: str, path: str, audio_root: str | Path | None, of_folder: Mapping[str, Any]) -> list[System]:
    if Path(path).is_dir():
        return [_read_folder(name, path, audio_root, of_folder)]
    if Path(path).suffix.lower() in AUDIO_SUFFIXES:
        raise UserError(
            f"{path}: is a recording; a system is a folder of dialogues or a table. To score single dialogues, use "
            "`sdiareward score`."
        )
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file or folder; give a folder or a table of dialogues for each system.")
    if Path(path).suffix not in _TABLES:
        raise UserError(
            f"{path}: is neither a folder nor one of {', '.join(_TABLES)}; give dialogues in one of these forms."
        )
    return _read_table(name, path, audio_root)


def _read_folder(name: str, path: str, audio_root: str | Path | None, options: Mapping[str, Any]) -> System:
    """Read a folder with the options of `read_dialogue_folder`."""
    found = read_dialogue_folder(path, **options)
    given = [list_audio_roots(folder, audio_root) for folder in (path, options["user_turns"]) if folder]
    roots = Roots(sum((roots.own for roots in given), ()), given[0].others)

    def read(dialogue: str) -> Messages:
        whole = make_dialogue(found.dialogues[dialogue])
        for clip in (clip for turn in whole.turns for clip in turn.clips):
            try:
                require_inside(clip.source, roots)
            except ValueError as error:
                raise DialogueError(str(error)) from error
        return whole.to_messages()

    return System(name, str(Path(path).absolute()), list(found.dialogues), read, skipped=found.skipped)


def _read_table(name: str, path: str, audio_root: str | Path | None) -> list[System]:
    """Return the systems of a table: one, or those of its column `system`."""
    rows = open_rows(path)
    column = next((column for column in DIALOGUE_COLUMNS if column in rows.features), None)
    id_column = next((column for column in NAME_COLUMNS if column in rows.features), None)
    if column is None or id_column is None:
        wanted = f"one of {', '.join(DIALOGUE_COLUMNS)} with the turns, and one of {', '.join(NAME_COLUMNS)}"
        raise UserError(f"{path}: has columns {list(rows.features)}; a table of dialogues needs {wanted}.")
    labels = {each: _read_labels(rows, each) for each in (SYSTEM_COLUMN, id_column, GROUP_COLUMN)}
    numbers: dict[str, dict[str, int]] = {}
    for number, dialogue in enumerate(labels[id_column] or ()):
        owner = (labels[SYSTEM_COLUMN] or [name] * rows.num_rows)[number]
        if dialogue is None or owner is None or dialogue in numbers.setdefault(owner, {}):
            problem = f"names no {id_column} or system" if None in (dialogue, owner) else f"is the second {dialogue!r}"
            raise UserError(f"{path}: row {number} {problem}; each dialogue of a system needs its own {id_column}.")
        numbers[owner][dialogue] = number
    return [
        _make_system(owner, path, rows, column, found, labels[GROUP_COLUMN], audio_root)
        for owner, found in numbers.items()
    ]


def _read_labels(rows: Rows, column: str) -> list[str | None] | None:
    if column not in rows.features:
        return None
    values = rows.read(range(rows.num_rows), [column])[column].to_pylist()
    return [None if value is None else compose(str(value)) for value in values]


def _make_system(
    name: str,
    path: str,
    rows: Rows,
    column: str,
    numbers: Mapping[str, int],
    groups: Sequence[str | None] | None,
    audio_root: str | Path | None,
) -> System:
    finder = RecordingFinder(audio_root, path)

    def read(dialogue: str) -> Messages:
        block = read_block(rows, np.array([numbers[dialogue]]), (column,))
        return make_dialogue(block[0][column], find=finder).to_messages()

    found = {} if groups is None else {each: groups[number] or each for each, number in numbers.items()}
    return System(name, str(Path(path).absolute()), list(numbers), read, found)
