"""Read one dialogue from a file or folder, every input rule checked, before any model is loaded.

A JSON file holds `{"turns": [...]}` or the list alone; a turn is `{"role", "audio", "text"}` (text optional) or a
message with a `content` list. Audio paths are relative to the JSON file. A folder holds one audio file for each turn,
in the order of their names and of the numbers in them, the user first; a `.txt` file of the same name is the turn's
transcript.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, audio_duration_s, open_source, read_audio
from sdiareward.processing_sdiareward import validate_messages

from .loading import turns_to_messages
from .schema import MAX_TURN_S, ROLES


AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg")
# A minute of stereo at the highest usual rate; a few kilobytes of compressed silence can hold many times that.
_MAX_DECODED_VALUES = 60 * 2 * 192_000


class DialogueError(ValueError):
    """Raised for a dialogue that cannot be judged; its message names the file and the turn in one line."""


def read_dialogue(path: str | Path) -> list[dict[str, Any]]:
    """Read a dialogue as messages whose audio is decoded.

    Args:
        path (`str` or `Path`): JSON file or folder of audio files.

    Returns:
        `list[dict]`: Messages for `SDiaRewardProcessor`; audio as `{"array", "sampling_rate", "path"}`.

    Raises:
        DialogueError: The file is missing or malformed, the turns do not alternate, or a recording cannot be judged.
    """
    path = Path(path)
    if path.is_dir():
        messages = turns_to_messages(_turns_of_folder(path))
    elif path.is_file():
        messages = _messages_of_json(path)
    else:
        raise DialogueError(f"{path}: no such file or folder; give a JSON dialogue or a folder of audio files.")
    try:
        validate_messages(messages, name=str(path))
    except ValueError as error:
        raise DialogueError(str(error)) from error
    base = path if path.is_dir() else path.parent
    turns = [message for message in messages if message["role"] != "system"]
    for number, turn in enumerate(turns, start=1):
        turn["content"] = _load_content(turn["content"], base, f"{path}, turn {number}")
    return messages


def check_recording(source: Any, max_turn_s: float = MAX_TURN_S) -> None:
    """Raise unless a recording is short and, once decoded, small enough to be a turn; only its header is read.

    Args:
        source (`str`, `Path`, `bytes` or mapping): An encoded recording, as `audio_sdiareward.read_audio` takes it.
        max_turn_s (`float`, *optional*, defaults to 60.0): The longest that is taken, in seconds.

    Raises:
        FileNotFoundError: The path does not exist.
        AudioError: The header cannot be read, or the recording is too long or too large.
    """
    import soundfile

    duration_s = audio_duration_s(source)
    handle, name, _, _ = open_source(source)
    if duration_s > max_turn_s:
        raise AudioError(f"{name}: lasts {duration_s:.1f} s; a turn lasts at most {max_turn_s:g} s, cut it.")
    info = soundfile.info(handle)
    if info.frames * info.channels > _MAX_DECODED_VALUES:
        raise AudioError(
            f"{name}: has {info.channels} channels at {info.samplerate} Hz; give one or two at 192 kHz or less."
        )


def sort_naturally(path: Path) -> tuple[Any, ...]:
    """Return what sorts files by name with the numbers in it as numbers: `turn2` before `turn10`."""
    # Words and numbers take turns, so that no word is compared with a number.
    parts = [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", path.stem))]
    return parts, path.name


def _turns_of_folder(folder: Path) -> list[dict[str, Any]]:
    found = (file for file in folder.iterdir() if file.suffix.lower() in AUDIO_SUFFIXES)
    files = sorted(found, key=sort_naturally)
    if not files:
        raise DialogueError(f"{folder}: holds no audio files; put one {'/'.join(AUDIO_SUFFIXES)} file a turn into it.")
    return [
        {"role": ROLES[index % 2], "text": _transcript(file), "audio": file.name} for index, file in enumerate(files)
    ]


def _transcript(audio_file: Path) -> str | None:
    file = audio_file.with_suffix(".txt")
    try:
        return file.read_text(encoding="utf-8").strip() if file.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise DialogueError(f"{file}: cannot be read as a transcript ({error}); save it as UTF-8 text.") from error


def _messages_of_json(path: Path) -> list[dict[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    # ValueError: also a number of thousands of digits, which Python does not convert.
    except (OSError, ValueError, RecursionError) as error:
        raise DialogueError(f"{path}: is not valid JSON ({error}); give a JSON object or list.") from error
    turns = data.get("turns", data.get("messages")) if isinstance(data, dict) else data
    if not isinstance(turns, list):
        raise DialogueError(f'{path}: holds no list of turns; give {{"turns": [...]}} or the list alone.')
    for number, turn in enumerate(turns, start=1):
        _check_turn(turn, f"{path}, turn {number}")
    return turns_to_messages(turns)


def _check_turn(turn: Any, place: str) -> None:
    if not isinstance(turn, Mapping):
        raise DialogueError(f"{place}: is {_kind(turn)}; give an object with role, audio and, optionally, text.")
    if not isinstance(turn.get("role"), str):
        raise DialogueError(f'{place}: its role is {_kind(turn.get("role"))}; give "user" or "assistant".')
    content = turn.get("content")
    if content is None:
        _check_item(turn, place)
    elif isinstance(content, list):
        for item in content:
            if not isinstance(item, Mapping):
                raise DialogueError(f"{place}: its content holds {_kind(item)}; give text and audio items.")
            _check_item(item, place)
    elif not isinstance(content, str):
        raise DialogueError(f"{place}: its content is {_kind(content)}; give a list of text and audio items.")


def _check_item(item: Mapping[str, Any], place: str) -> None:
    for key in ("text", "audio"):
        if not isinstance(item.get(key), (str, type(None))):
            raise DialogueError(f"{place}: its {key} is {_kind(item[key])}; give a string.")
    if item.get("type") not in (None, "text", "audio"):
        raise DialogueError(f"{place}: holds an item of type {item['type']!r}; only text and audio can be judged.")


def _kind(value: Any) -> str:
    """Name a JSON value's type."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "missing"}
    return names.get(type(value), "a number")


def _load_content(content: Any, base: Path, place: str) -> list[dict[str, Any]]:
    """Return the items with their audio decoded."""
    items = [] if isinstance(content, str) else [dict(item) for item in content]
    recordings = [item for item in items if item.get("audio")]
    if not recordings:
        raise DialogueError(f"{place}: has no audio; every turn of a spoken dialogue needs a recording.")
    for item in recordings:
        item["audio"] = _load_recording(base / item["audio"], place)
    return items


def _load_recording(file: Path, place: str) -> dict[str, Any]:
    try:
        check_recording(file)
        array = read_audio(file)
    except FileNotFoundError as error:
        raise DialogueError(f"{place}: {error} Paths are relative to the dialogue's file.") from error
    except AudioError as error:
        raise DialogueError(f"{place}: {error}".replace("\n", " ")) from error
    return {"array": array, "sampling_rate": SAMPLING_RATE, "path": str(file)}
