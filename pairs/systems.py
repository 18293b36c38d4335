"""Read the dialogues of systems to compare, by the name of the dialogue.

A system is a folder of dialogues (`dialogue_folders`) or a table; one table may hold all systems.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import compose
from sdiareward.calls.reading import CALLS, Call, CallSettings
from sdiareward.chat_sdiareward import Dialogue, make_dialogue
from sdiareward.common.errors import UserError

from .dialogue_folders import read_dialogue_folder
from .loading import DIALOGUE_COLUMNS, TABLE_SUFFIXES
from .path_sandbox import RecordingFinder
from .rows import Rows, open_rows, read_block


Messages = list[dict[str, Any]]
NAME_COLUMNS = ("dialogue_id", "id", "pair_id", "name")
SYSTEM_COLUMN, GROUP_COLUMN = "system", "group_id"


@dataclass
class System:
    name: str
    path: str
    names: list[str]  # Of its dialogues, in order.
    read: Callable[[str], Messages]  # Paths of recordings absolute.
    groups: dict[str, str] = field(default_factory=dict)  # By dialogue.
    skipped: dict[str, str] = field(default_factory=dict)  # Reason by name of the dialogue or file.
    calls: dict[str, Call] = field(default_factory=dict)  # By name, if its dialogues are windows of calls.


def read_systems(
    paths: Sequence[str | Path],
    *,
    pattern: str | None = None,
    user_turns: str | Path | None = None,
    audio_root: str | Path | None = None,
    calls: CallSettings = CALLS,
) -> list[System]:
    """Find the dialogues of all systems: each a folder or table, or all in one table with the column `system`."""
    if not paths:
        raise UserError("there is no system; give two or more folders or tables of dialogues.")
    named = name_systems(list(map(str, paths)))
    if user_turns is not None and not any(Path(path).is_dir() for path in named.values()):
        raise UserError("--user_turns is for folders of recordings; a table has the user's turns itself.")
    systems: list[System] = []
    try:
        for name, path in named.items():
            if Path(path).is_dir():
                found = read_dialogue_folder(path, pattern, user_turns, calls)
                finder = RecordingFinder(audio_root, path, *([] if user_turns is None else [user_turns]))
                read, place = partial(_read_dialogue, found.dialogues, finder), str(Path(path).absolute())
                systems.append(System(name, place, list(found.dialogues), read, {}, found.skipped, found.calls))
            else:
                systems += _read_table(name, path, audio_root)
    except (ValueError, OSError) as error:
        raise error if isinstance(error, UserError) else UserError(str(error)) from error
    if len(systems) < 2:
        raise UserError(f"{paths[0]}: is a single system; give a second folder or table, or column {SYSTEM_COLUMN!r}.")
    _require_distinct([system.name for system in systems])
    _match_windows(systems)
    return systems


def _match_windows(systems: Sequence[System]) -> None:
    """Bring calls that are short in one system to that number of turns in all: the reward follows it."""
    for name in set.intersection(*(set(system.calls) for system in systems)):
        size = min(len(system.calls[name].windows[0]) for system in systems)
        for system in systems:
            system.calls[name] = system.calls[name].resize(size)
    for system in systems:
        if system.calls:
            system.groups = {window: name for name, call in system.calls.items() for window in call.list_windows()}
            system.names = list(system.groups)


def name_systems(paths: Sequence[str]) -> dict[str, str]:
    """Return the paths by the systems' names: as given by `NAME=PATH`, else the distinguishing end of the path."""
    given = [path.partition("=") if "=" in path and not Path(path).exists() else ("", "", path) for path in paths]
    places = [Path(path).absolute() for _, _, path in given]
    ends = [
        (name,) if name else (*place.parts[:-1], place.stem if place.suffix in TABLE_SUFFIXES else place.name)
        for (name, _, _), place in zip(given, places, strict=True)
    ]
    if not any(name for name, _, _ in given) and (twice := Counter(places).most_common(1)[0])[1] > 1:
        raise UserError(f"{twice[0]}: is given twice; give another system to compare it with.")
    names = []
    for place, end in zip(places, ends, strict=True):
        others = [other for other, each in zip(ends, places, strict=True) if each != place]
        lengths = range(1, len(end) + 1)
        distinct = (end[-length:] for length in lengths if all(other[-length:] != end[-length:] for other in others))
        names.append("/".join(next(distinct, end)))
    _require_distinct(names)
    return {name: path for name, (_, _, path) in zip(names, given, strict=True)}


def _require_distinct(names: Sequence[str]) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise UserError(f"{count} systems are called {name!r}; give each a name of its own, as NAME=PATH.")


def _read_table(name: str, path: str, audio_root: str | Path | None) -> list[System]:
    """Return the systems of a table: one, or one for each value of its column `system`."""
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file or folder; give a folder or a table of dialogues for each system.")
    rows = open_rows(path)
    column = next((column for column in DIALOGUE_COLUMNS if column in rows.features), None)
    id_column = next((column for column in NAME_COLUMNS if column in rows.features), None)
    if column is None or id_column is None:
        wanted = f"one of {', '.join(DIALOGUE_COLUMNS)} with the turns, and one of {', '.join(NAME_COLUMNS)}"
        raise UserError(f"{path}: has columns {list(rows.features)}; a table of dialogues needs {wanted}.")

    numbers: defaultdict[str, dict[str, int]] = defaultdict(dict)
    groups: defaultdict[str, dict[str, str]] = defaultdict(dict)
    columns = [each for each in (SYSTEM_COLUMN, id_column, GROUP_COLUMN) if each in rows.features]
    for number, row in enumerate(rows.read(range(rows.num_rows), columns).to_pylist()):
        labels = {each: None if value is None else compose(str(value)) for each, value in row.items()}
        owner, dialogue = labels.get(SYSTEM_COLUMN, name), labels[id_column]
        if owner is None or dialogue is None or dialogue in numbers[owner]:
            problem = f"names no {id_column} or system" if None in (dialogue, owner) else f"is the second {dialogue!r}"
            raise UserError(f"{path}: row {number} {problem}; each dialogue of a system needs its own {id_column}.")
        numbers[owner][dialogue] = number
        if GROUP_COLUMN in labels:
            groups[owner][dialogue] = labels[GROUP_COLUMN] or dialogue
    finder, place = RecordingFinder(audio_root, path), str(Path(path).absolute())
    return [
        System(owner, place, list(found), partial(_read_row, rows, column, found, finder), groups[owner])
        for owner, found in numbers.items()
    ]


def _read_dialogue(dialogues: Mapping[str, Dialogue], finder: RecordingFinder, dialogue: str) -> Messages:
    return make_dialogue(dialogues[dialogue].to_messages(), find=finder).to_messages()


def _read_row(rows: Rows, column: str, numbers: Mapping[str, int], finder: RecordingFinder, dialogue: str) -> Messages:
    block = read_block(rows, np.array([numbers[dialogue]]), (column,))
    return make_dialogue(block[0][column], find=finder).to_messages()
