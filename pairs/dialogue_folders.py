"""Read a folder of dialogues: folders of recordings, JSON dialogues, or recordings that are named after their turn.

A recording's name gives its dialogue, turn and role: `NAME_user.wav` and `NAME_assistant.wav`, `NAME_0_user.wav`, or
as a pattern says. A recording without a role is the assistant's; then the user's turns come from a folder that several
systems share. Nothing is decoded here, and whether turns alternate is checked where a dialogue is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import NamedTuple

from sdiareward.audio_sdiareward import Clip, compose, decode_base64, find_file
from sdiareward.chat_sdiareward import ROLES, Dialogue, DialogueError, Turn, make_dialogue

from .messages import (
    RECORDING_SUFFIXES,
    Form,
    is_hidden,
    list_visible,
    order_turns,
    read_path,
    read_transcript,
    read_turns,
    require_readable,
    require_turns,
    sort_naturally,
    walk_files,
)


USER, ASSISTANT = ROLES
_FIELDS = {"dialogue": r"[^/]+?", "turn": r"\d+", "role": "user|assistant"}
_DEFAULT_NAME = re.compile(
    r"(?P<dialogue>.+?)(?:(?:[ _.-](?P<turn>\d+))?[ _.-](?P<role>user|assistant))?", re.IGNORECASE
)
# The turns of one dialogue: each number once.
_NUMBERED_TURN = re.compile(r"(\d+)[ _.-]?(user|assistant)", re.IGNORECASE)
# Tables that `datasets` reads from a folder.
_TABLES = (".parquet", ".arrow", ".jsonl", ".csv", ".tsv")


class _Recording(NamedTuple):
    """A recording; `turn` and `role` are None where its name does not have them."""

    file: Path
    turn: int | None
    role: str | None


@dataclass
class DialogueFolder:
    dialogues: dict[str, Dialogue] = field(default_factory=dict)  # By name; audio as absolute paths.
    skipped: dict[str, str] = field(default_factory=dict)  # Reason by name of the dialogue or file.


def holds_dialogues(path: str | Path) -> bool:
    """Return whether a path is a folder of dialogues: neither one dialogue nor a data set of tables."""
    folder = Path(path)
    if not folder.is_dir() or any(file.suffix in _TABLES for file in list_visible(folder)):
        return False
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return False
    if _holds_json_dialogues(folder):
        return True
    if recordings := _find_audio(folder):
        matches = map(_NUMBERED_TURN.fullmatch, (file.stem for file in recordings))
        turns: dict[str, str] = dict(match.groups() for match in matches if match)  # type: ignore[misc]
        is_one = len(turns) == len(recordings) and len({role.lower() for role in turns.values()}) == len(ROLES)
        return not is_one and any(
            (match := _DEFAULT_NAME.fullmatch(file.stem)) and match["role"] for file in recordings
        )
    return any(_find_audio(entry) for entry in list_visible(folder) if entry.is_dir())


def read_dialogue_folder(
    folder: str | Path,
    pattern: str | None = None,
    user_turns: str | Path | None = None,
    form: Form | None = None,
) -> DialogueFolder:
    """Read the dialogues of a folder, in the natural order of their names.

    A `pattern` with slashes is matched against paths below the folder; one without `{role}` means turns in order, the
    user first. With `user_turns` (per dialogue a recording, or a folder with the context up to the user's last turn)
    the folder holds only the assistant's turns.
    """
    folder = _require_folder(folder)
    if pattern is None and user_turns is None and _holds_json_dialogues(folder):
        return _read_files(folder, None, form)
    if pattern is not None or _find_audio(folder):
        found, skipped = _group_recordings(folder, pattern)
        if user_turns is None:
            _require_user_turns(folder, found, pattern)
    elif any(_find_audio(entry) for entry in list_visible(folder) if entry.is_dir()) and user_turns is not None:
        found, skipped = _group_by_folder(folder), {}
    else:
        return _read_files(folder, user_turns, form)
    if not found:
        first = next(iter(skipped.values()), "it holds no recordings")
        raise ValueError(f"{folder}: {first}; name them NAME_user.wav and NAME_assistant.wav, or give a pattern.")
    contexts = None if user_turns is None else _read_contexts(_require_folder(user_turns))
    result = DialogueFolder(skipped=skipped)
    for name, recordings in found.items():
        try:
            result.dialogues[name] = _as_dialogue(_join(name, recordings, contexts), form)
        except DialogueError as error:
            result.skipped[name] = str(error)
    return result


def _require_folder(path: str | Path) -> Path:
    folder = Path(path).absolute()
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: no such folder.")
    return folder


def _find_audio(folder: Path) -> list[Path]:
    return [file for file in list_visible(folder) if file.suffix.lower() in RECORDING_SUFFIXES]


def _holds_json_dialogues(folder: Path) -> bool:
    for file in (file for file in list_visible(folder) if file.suffix == ".json"):
        try:
            turns, _ = read_turns(file)
        except DialogueError:
            continue
        if turns and isinstance(turns[0], Mapping) and "role" in turns[0]:
            return True
    return False


def _read_files(folder: Path, user_turns: str | Path | None, form: Form | None) -> DialogueFolder:
    """Read a dialogue from each folder of recordings and each JSON file."""
    entries = [entry for entry in list_visible(folder) if entry.is_dir() or entry.suffix == ".json"]
    if not entries:
        raise ValueError(
            f"{folder}: holds no dialogues; put a folder of recordings, a JSON dialogue, or recordings such as "
            "NAME_user.wav and NAME_assistant.wav into it for each."
        )
    if user_turns is not None:
        raise ValueError(f"{folder}: holds whole dialogues; the user's turns can be given for recordings only.")
    result, named = DialogueFolder(), set[Path]()
    for entry in sorted(entries, key=Path.is_dir):
        if entry.is_dir() and any(file.is_relative_to(entry) for file in named):
            # The recordings of JSON dialogues.
            continue
        name = compose(entry.name if entry.is_dir() else entry.stem)
        try:
            if name in result.dialogues:
                raise DialogueError("there is a folder and a JSON file of this name; remove one.")
            result.dialogues[name] = dialogue = _read_dialogue(entry, form)
            sources = (clip.source for turn in dialogue.turns for clip in turn.clips)
            named.update(Path(os.path.normpath(source)) for source in sources)
        except DialogueError as error:
            result.skipped[name] = str(error)
    for file in _find_audio(folder):
        if file not in named:
            result.skipped[file.name] = "no JSON dialogue beside it names this recording."
    result.dialogues = {
        name: result.dialogues[name] for name in sorted(result.dialogues, key=lambda name: sort_naturally(Path(name)))
    }
    if not result.dialogues:
        raise ValueError(
            f"{folder}: none of {len(entries)} dialogues can be used: {next(iter(result.skipped.values()))}"
        )
    return result


def _read_dialogue(path: Path, form: Form | None = None) -> Dialogue:
    """Read one dialogue or its beginning, audio as absolute paths."""
    turns, base = read_turns(path, form)
    return make_dialogue(turns, str(path), is_whole=False, find=lambda audio: Clip(_place(read_path(audio), base)))


def _place(audio: str, base: Path) -> str:
    if decode_base64(audio) is not None:
        return audio
    path = base.absolute() / audio
    return str(find_file(path) or path)


def _group_recordings(folder: Path, pattern: str | None) -> tuple[dict[str, list[_Recording]], dict[str, str]]:
    """Return the recordings of each dialogue by their names, and the files whose names do not match."""
    expression = _DEFAULT_NAME if pattern is None else compile_pattern(compose(pattern))
    is_bare = pattern is None or Path(pattern).suffix.lower() not in RECORDING_SUFFIXES
    is_deep = pattern is not None and "/" in pattern
    deep = (file for file in walk_files(folder) if not is_hidden(file.relative_to(folder)))
    files: Iterable[Path] = deep if is_deep else list_visible(folder)
    found: dict[str, list[_Recording]] = {}
    skipped: dict[str, str] = {}
    for file in sorted((file for file in files if file.suffix.lower() in RECORDING_SUFFIXES), key=sort_naturally):
        place = file.relative_to(folder)
        text = place.with_suffix("").as_posix() if is_bare else place.as_posix()
        match = expression.fullmatch(compose(text))
        if match is None:
            skipped[place.as_posix()] = f"the name {place.as_posix()!r} does not match the pattern {pattern!r}"
            continue
        turn, role = (match.groupdict().get(name) for name in ("turn", "role"))
        recording = _Recording(file, None if turn is None else int(turn), None if role is None else role.lower())
        found.setdefault(match["dialogue"], []).append(recording)
    return found, skipped


def _group_by_folder(folder: Path) -> dict[str, list[_Recording]]:
    """Return the recordings in each folder, the assistant's turns in order."""
    entries = [entry for entry in list_visible(folder) if entry.is_dir()]
    return {compose(entry.name): [_Recording(file, None, None) for file in _find_audio(entry)] for entry in entries}


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern with `{dialogue}`, and optionally `{turn}` and `{role}`."""
    expression, seen = "", set()
    try:
        pieces = list(Formatter().parse(pattern))
    except ValueError as error:
        raise ValueError(
            f"pattern is {pattern!r} ({error}); give such as {{dialogue}}_{{turn}}_{{role}}.wav."
        ) from error
    for literal, name, _, _ in pieces:
        expression += re.escape(literal)
        if name is None:
            continue
        if name not in _FIELDS or name in seen:
            raise ValueError(f"pattern is {pattern!r}; it has the fields {', '.join(_FIELDS)} at most once each.")
        seen.add(name)
        expression += f"(?P<{name}>{_FIELDS[name]})"
    if "dialogue" not in seen:
        raise ValueError(f"pattern is {pattern!r}; it needs the field {{dialogue}}.")
    return re.compile(expression, re.IGNORECASE)


def _require_user_turns(folder: Path, found: Mapping[str, Sequence[_Recording]], pattern: str | None) -> None:
    """Raise if no dialogue has a turn of the user, and no pattern gives turns in order."""
    if pattern is not None and any(len(recordings) > 1 for recordings in found.values()):
        return
    if found and not any(recording.role == USER for recordings in found.values() for recording in recordings):
        first = next(iter(found.values()))[0].file.name
        raise ValueError(
            f"{folder}: its recordings, such as {first}, name no user's turn; name them NAME_user.wav and "
            "NAME_assistant.wav, give a pattern, or the folder of the user's turns with --user_turns."
        )


def _read_contexts(folder: Path) -> dict[str, list[tuple[str, Path]] | DialogueError]:
    """Return role and recording of each turn before the assistant's by dialogue, or its error."""
    found, _ = _group_recordings(folder, None)
    contexts: dict[str, list[tuple[str, Path]] | DialogueError] = {
        name: [(recording.role or USER, recording.file) for recording in _sort(recordings, USER)]
        for name, recordings in found.items()
    }
    for name, recordings in _group_by_folder(folder).items():
        if recordings and name not in contexts:
            try:
                contexts[name] = order_turns([each.file for each in recordings], folder / name)
            except DialogueError as error:
                contexts[name] = error
    if not contexts:
        raise ValueError(f"{folder}: holds no user's turns; put NAME.wav, or a folder NAME, there for each dialogue.")
    return contexts


def _sort(recordings: Iterable[_Recording], default_role: str) -> list[_Recording]:
    """Sort by turn; within a turn the user speaks first."""
    return sorted(recordings, key=lambda each: (each.turn or 0, ROLES.index(each.role or default_role)))


def _join(
    name: str, recordings: Sequence[_Recording], contexts: Mapping[str, list[tuple[str, Path]] | DialogueError] | None
) -> Iterator[tuple[str, Path]]:
    """Yield role and recording of each turn of a dialogue."""
    if contexts is None:
        ordered = _sort(recordings, ASSISTANT)
        by_order = len(ordered) > 1 and all(each.role is None for each in ordered)
        return (
            (ROLES[turn % 2] if by_order else each.role or ASSISTANT, each.file) for turn, each in enumerate(ordered)
        )
    if any(recording.role == USER for recording in recordings):
        raise DialogueError("has turns of the user although they are given for all systems; omit them.", name=name)
    if name not in contexts:
        raise DialogueError("has no turn in the folder of the user's turns.", name=name)
    answers = [(ASSISTANT, each.file) for each in _sort(recordings, ASSISTANT)]
    context = contexts[name]
    if isinstance(context, DialogueError):
        raise context
    if len(answers) == 1:
        return iter([*context, *answers])
    if [role for role, _ in context] != [USER] * len(answers):
        problem = f"has {len(answers)} turns of the assistant but {len(context)} before them; give one for each."
        raise DialogueError(problem, name=name)
    return (turn for pair in zip(context, answers, strict=True) for turn in pair)


def _as_dialogue(turns: Iterable[tuple[str, Path]], form: Form | None) -> Dialogue:
    found = list(turns)
    for _, file in found:
        require_readable(file)
    require_turns([file for _, file in found], form)
    read = (Turn(role, read_transcript(file) or "", Clip(str(file))) for role, file in found)
    return Dialogue(tuple(read), is_whole=False)
