"""Read a folder of dialogues: folders of recordings, JSON dialogues, or recordings that are named after their turn.

A recording's name gives its dialogue, turn and role: `NAME_user.wav` and `NAME_assistant.wav`, `NAME_0_user.wav`, or
as a pattern says. A recording without a role is the assistant's; then the user's turns come from a folder that several
systems share. Nothing is decoded here, and whether turns alternate is checked where a dialogue is used.
"""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sdiareward.audio_sdiareward import Clip, compose
from sdiareward.calls.reading import CALLS, Call, CallSettings, find_calls, read_calls
from sdiareward.calls.recordings import has_one_clock
from sdiareward.chat_sdiareward import ROLES, Dialogue, DialogueError, make_dialogue

from .messages import (
    AUDIO_SUFFIXES,
    RECORDING_SUFFIXES,
    Form,
    is_hidden,
    list_recordings,
    list_turns,
    list_visible,
    order_turns,
    read_path,
    read_turns,
    sort_naturally,
    walk_files,
)
from .path_sandbox import find_recording


_logger = logging.getLogger(__name__)
USER, ASSISTANT = ROLES
_FIELDS = {"dialogue": r"[^/]+?", "turn": r"\d+", "role": "user|assistant"}
_DEFAULT_NAME = re.compile(
    r"(?P<dialogue>.+?)(?:(?:[ _.-](?P<turn>\d+))?[ _.-](?P<role>user|assistant))?", re.IGNORECASE
)
# The turns of one dialogue: each number once.
_NUMBERED_TURN = re.compile(r"(\d+)[ _.-]?(user|assistant)", re.IGNORECASE)
# Tables that `datasets` reads from a folder, or has saved there.
_TABLES = (".parquet", ".arrow", ".jsonl", ".csv", ".tsv")
_SAVED = ("dataset_dict.json", "state.json")


class _Recording(NamedTuple):
    turn: int  # 0 where the name has none.
    role: str | None
    file: Path


@dataclass
class DialogueFolder:
    dialogues: Mapping[str, Dialogue] = field(default_factory=dict)  # By name; audio as absolute paths, or windows.
    skipped: dict[str, str] = field(default_factory=dict)  # Reason by name of the dialogue or file.
    calls: dict[str, Call] = field(default_factory=dict)  # By name, if the dialogues are windows of calls.


def holds_dialogues(path: str | Path, settings: CallSettings = CALLS) -> bool:
    """Return whether a path is a folder of dialogues or calls: neither one dialogue nor a data set of tables."""
    folder = Path(path)
    if folder.suffix.lower() not in AUDIO_SUFFIXES and find_calls(folder, settings):
        return True
    if not folder.is_dir() or any(file.suffix in _TABLES or file.name in _SAVED for file in list_visible(folder)):
        return False
    if _holds_json_dialogues(folder):
        return True
    names = [file.stem for file in list_recordings(folder)]
    if not names:
        return bool(_group_by_folder(folder))
    turns = [match.groups() for match in map(_NUMBERED_TURN.fullmatch, names) if match]
    numbers, roles = {number for number, _ in turns}, {role.lower() for _, role in turns}
    is_one = len(numbers) == len(names) and len(roles) == len(ROLES)
    return not is_one and any((match := _DEFAULT_NAME.fullmatch(name)) and match["role"] for name in names)


def read_dialogue_folder(
    folder: str | Path,
    pattern: str | None = None,
    user_turns: str | Path | None = None,
    settings: CallSettings = CALLS,
) -> DialogueFolder:
    """Read the dialogues of a folder, in the natural order of their names.

    A `pattern` with slashes is matched against paths below the folder; one without `{role}` means turns in order, the
    user first. With `user_turns` (per dialogue a recording, or a folder with the context up to the user's last turn)
    the folder holds only the assistant's turns.
    """
    if pattern is None and user_turns is None and (calls := find_calls(Path(folder), settings)):
        windows, skipped = read_calls(calls, settings)
        return DialogueFolder(windows, skipped, windows.calls)
    folder, form = _require_folder(folder), settings.form
    found_dialogues, result = dict[str, Dialogue](), DialogueFolder()
    is_flat = pattern is not None or bool(list_recordings(folder))
    if user_turns is None and pattern is None and (not is_flat or _holds_json_dialogues(folder)):
        return _read_files(folder, form)
    found = _group_by_name(folder, pattern, result.skipped) if is_flat else _group_by_folder(folder)
    if not found:
        first = next(iter(result.skipped.values()), "it has no recordings")
        raise ValueError(f"{folder}: {first}; name them NAME_user.wav and NAME_assistant.wav, or give a pattern.")
    has_user = any(each.role == USER for recordings in found.values() for each in recordings)
    is_by_order = pattern is not None and any(len(recordings) > 1 for recordings in found.values())
    if user_turns is None and not has_user and not is_by_order:
        first = next(iter(found.values()))[0].file.name
        named = f"its recordings, such as {first}, name no user's turn"
        raise ValueError(f"{folder}: {named}; name them NAME_user.wav, give a pattern, or --user_turns.")
    find_context = None if user_turns is None else _open_contexts(_require_folder(user_turns))
    ordered: dict[str, list[tuple[str, Path]]] = {}
    for name, recordings in found.items():
        try:
            turns = _order(recordings, ASSISTANT) if find_context is None else _join(find_context(name), recordings)
            ordered[name] = turns
        except DialogueError as error:
            result.skipped[name] = str(error)
    # A question and its answer may have one length by chance; the two files of every call have.
    if find_context is not None and not all(map(_is_call, ordered.values())):
        form = form or "turns"
    for name, turns in ordered.items():
        try:
            found_dialogues[name] = make_dialogue(list_turns(turns, form), is_whole=False)
        except DialogueError as error:
            result.skipped[name] = str(error)
    result.dialogues = found_dialogues
    return result


def read_dialogues(
    folder: str | Path, *, pattern: str | None = None, user_turns: str | Path | None = None
) -> dict[str, Dialogue]:
    """Read the dialogues of a folder by name; a warning names each dialogue that cannot be scored.

    Args:
        folder (`str` or `Path`): Folder of JSON dialogues, of folders of recordings, of recordings named after their
            turn (`NAME_0_user.wav`), or of calls.
        pattern (`str`, *optional*): How recordings are named, such as `"{dialogue}_{turn}_{role}.wav"`.
        user_turns (`str` or `Path`, *optional*): Folder of the user's turns; the other one has the answers alone.

    Returns:
        `dict[str, Dialogue]`: In the natural order of names; recordings are read when they are needed.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: It has no dialogues, or `pattern` is malformed.

    Examples:
        >>> from sdiareward import read_dialogues
        >>> from sdiareward.common.package import EXAMPLES
        >>> list(read_dialogues(EXAMPLES, pattern="{dialogue}-{turn}.flac"))
        ['human', 'synthetic']
    """
    found = read_dialogue_folder(folder, pattern, user_turns)
    dialogues = {}
    for name, dialogue in found.dialogues.items():
        try:
            dialogues[name] = make_dialogue(dialogue)
        except DialogueError as error:
            found.skipped[name] = str(error)
    for name, reason in found.skipped.items():
        _logger.warning("%s: %s: %s", folder, name, reason)
    return dialogues


def _require_folder(path: str | Path) -> Path:
    if not Path(path).is_dir():
        raise FileNotFoundError(f"{path}: no such folder.")
    return Path(path).absolute()


def _group_by_folder(folder: Path) -> dict[str, list[_Recording]]:
    found = {compose(entry.name): list_recordings(entry) for entry in list_visible(folder) if entry.is_dir()}
    return {name: [_Recording(0, None, file) for file in files] for name, files in found.items() if files}


def _holds_json_dialogues(folder: Path) -> bool:
    for file in (file for file in list_visible(folder) if file.suffix == ".json"):
        try:
            turns, _ = read_turns(file)
        except DialogueError:
            continue
        if turns and isinstance(turns[0], Mapping) and "role" in turns[0]:
            return True
    return False


def _read_files(folder: Path, form: Form | None) -> DialogueFolder:
    """Read a dialogue from each folder of recordings and each JSON file."""
    found, result, named = {}, DialogueFolder(), set[Path]()
    entries = [entry for entry in list_visible(folder) if entry.is_dir() or entry.suffix == ".json"]
    for entry in sorted(entries, key=Path.is_dir):
        if any(file.is_relative_to(entry) for file in named):
            continue  # A folder with recordings of JSON dialogues.
        name = compose(entry.name if entry.is_dir() else entry.stem)
        try:
            if name in found:
                raise DialogueError("there is a folder and a JSON file of this name; remove one.")
            found[name] = dialogue = _read_dialogue(entry, form)
            named |= {Path(os.path.normpath(clip.source)) for turn in dialogue.turns for clip in turn.clips}
        except DialogueError as error:
            result.skipped[name] = str(error)
    unnamed = [file.name for file in list_recordings(folder) if file not in named]
    result.skipped |= dict.fromkeys(unnamed, "no JSON dialogue beside it names this recording.")
    if not found:
        remedy = "put a folder of recordings, a JSON dialogue, or NAME_user.wav and NAME_assistant.wav into it"
        raise ValueError(f"{folder}: has no dialogues: {next(iter(result.skipped.values()), remedy)}")
    result.dialogues = {name: found[name] for name in sorted(found, key=lambda name: sort_naturally(Path(name)))}
    return result


def _read_dialogue(path: Path, form: Form | None) -> Dialogue:
    """Read one dialogue or its beginning, audio as absolute paths."""
    turns, base = read_turns(path, form)

    def find(audio: Any) -> Clip:
        return Clip(find_recording(read_path(audio), [base]))

    return make_dialogue(turns, str(path), is_whole=False, find=find)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern with `{dialogue}`, and optionally `{turn}` and `{role}`."""
    pieces = re.split(r"\{(\w*)\}", pattern)
    names = pieces[1::2]
    if "dialogue" not in names or not set(names) <= set(_FIELDS) or len(set(names)) < len(names):
        raise ValueError(f"pattern is {pattern!r}; give {{dialogue}} once, {{turn}} and {{role}} at most once.")
    parts = (f"(?P<{piece}>{_FIELDS[piece]})" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces))
    return re.compile("".join(parts), re.IGNORECASE)


def _group_by_name(folder: Path, pattern: str | None, skipped: dict[str, str]) -> dict[str, list[_Recording]]:
    """Return the recordings of each dialogue by their names; add the files whose names do not match to `skipped`."""
    expression = _DEFAULT_NAME if pattern is None else compile_pattern(compose(pattern))
    is_bare = pattern is None or Path(pattern).suffix.lower() not in RECORDING_SUFFIXES
    files = walk_files(folder) if pattern is not None and "/" in pattern else folder.iterdir()
    found = defaultdict(list)
    for file in sorted(files, key=sort_naturally):
        place = file.relative_to(folder)
        if is_hidden(place) or file.suffix.lower() not in RECORDING_SUFFIXES:
            continue
        match = expression.fullmatch(compose((place.with_suffix("") if is_bare else place).as_posix()))
        if match is None:
            skipped[place.as_posix()] = f"the name {place.as_posix()!r} does not match the pattern {pattern!r}"
            continue
        given = match.groupdict()
        recording = _Recording(int(given.get("turn") or 0), (given.get("role") or "").lower() or None, file)
        found[match["dialogue"]].append(recording)
    return found


def _is_call(turns: Sequence[tuple[str, Path]]) -> bool:
    return len(turns) == len(ROLES) and has_one_clock(file for _, file in turns)


def _order(recordings: Sequence[_Recording], default_role: str) -> list[tuple[str, Path]]:
    """Return role and file of each turn of a dialogue; within a turn the user speaks first."""
    found = sorted(recordings, key=lambda each: (each.turn, (each.role or default_role) != USER))
    if default_role == ASSISTANT and len(found) > 1 and not any(each.role for each in found):
        return [(ROLES[number % 2], each.file) for number, each in enumerate(found)]
    return [(each.role or default_role, each.file) for each in found]


def _open_contexts(folder: Path) -> Callable[[str], list[tuple[str, Path]]]:
    """Return a function giving role and file of each turn before a dialogue's last answer."""
    by_name, by_folder = _group_by_name(folder, None, {}), _group_by_folder(folder)
    if not by_name and not by_folder:
        raise ValueError(f"{folder}: has no user turns; put NAME.wav, or a folder NAME, there for each dialogue.")

    def find(name: str) -> list[tuple[str, Path]]:
        if name in by_name:
            return _order(by_name[name], USER)
        if name in by_folder:
            return order_turns([each.file for each in by_folder[name]], folder / name)
        raise DialogueError(f"{name}: has no turn in the folder of the user's turns.")

    return find


def _join(context: Sequence[tuple[str, Path]], answers: Sequence[_Recording]) -> list[tuple[str, Path]]:
    """Return role and file of each turn of a dialogue whose user's turns all systems share."""
    if any(each.role == USER for each in answers):
        raise DialogueError("it has turns of the user although they are given for all systems; omit them.")
    files = [each.file for each in sorted(answers, key=lambda each: each.turn)]
    if len(files) == 1:
        return [*context, (ASSISTANT, files[0])]
    if [role for role, _ in context] != [USER] * len(files):
        raise DialogueError(f"has {len(files)} turns of the assistant but {len(context)} before them; give as many.")
    return [turn for asked, file in zip(context, files, strict=True) for turn in (asked, (ASSISTANT, file))]
