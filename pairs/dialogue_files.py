"""Read one dialogue from a file or folder and check every rule, before a model is loaded.

A JSON file holds `{"turns": [...]}` or the list alone; a turn is `{"role", "audio", "text"}` (text optional) or a
message with a `content` list. Audio paths are relative to the JSON file. A folder holds one audio file per turn,
ordered by name with numbers as numbers, the user first; a `.txt` file of the same name is the turn's
transcript.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sdiareward.audio_sdiareward import ROLES, SAMPLING_RATE, DialogueError, validate_messages

from .loading import turns_to_messages
from .recordings import AUDIO_SUFFIXES, read_recording


def read_dialogue(path: str | Path) -> list[dict[str, Any]]:
    """Read a dialogue as messages whose audio is decoded.

    Args:
        path (`str` or `Path`): JSON file or folder of audio files.

    Returns:
        `list[dict]`: Messages for `SDiaRewardProcessor`; audio as `{"array", "sampling_rate", "path"}`.

    Raises:
        DialogueError: The file is missing or malformed, the turns do not alternate, or a recording cannot be used.
    """
    path = Path(path)
    if path.is_dir():
        turns, base = _turns_of_folder(path), path
    elif path.is_file():
        turns, base = _turns_of_json(path), path.parent
    else:
        raise DialogueError(f"{path}: no such file or folder; give a JSON dialogue or a folder of audio files.")
    messages = turns_to_messages(turns)
    validate_messages(messages, name=str(path))
    spoken = [message for message in messages if message["role"] != "system"]
    for number, message in enumerate(spoken, start=1):
        try:
            message["content"] = _load_content(message["content"], base)
        except (ValueError, FileNotFoundError) as error:
            raise DialogueError(str(error).replace("\n", " "), number, str(path)) from error
    return messages


def sort_naturally(path: Path) -> tuple[Any, ...]:
    """Return a key that sorts files by name with numbers as numbers: `turn2` before `turn10`."""
    # Words and numbers alternate, so that no word is compared with a number.
    parts = [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", path.stem))]
    return parts, path.name


def _turns_of_folder(folder: Path) -> list[dict[str, Any]]:
    found = (file for file in folder.iterdir() if file.suffix.lower() in AUDIO_SUFFIXES)
    files = sorted(found, key=sort_naturally)
    if not files:
        raise DialogueError(
            f"{folder}: holds no audio files; put one {'/'.join(AUDIO_SUFFIXES)} file per turn into it."
        )
    return [
        {"role": ROLES[index % 2], "text": _transcript(file), "audio": file.name} for index, file in enumerate(files)
    ]


def _transcript(audio_file: Path) -> str | None:
    file = audio_file.with_suffix(".txt")
    try:
        return file.read_text(encoding="utf-8").strip() if file.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise DialogueError(f"{file}: cannot be read as a transcript ({error}); save it as UTF-8 text.") from error


def _turns_of_json(path: Path) -> list[Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    # ValueError: also a number of thousands of digits, which Python does not convert.
    except (OSError, ValueError, RecursionError) as error:
        raise DialogueError(f"{path}: is not valid JSON ({error}); give a JSON object or list.") from error
    turns = data.get("turns", data.get("messages")) if isinstance(data, dict) else data
    if not isinstance(turns, list):
        raise DialogueError(f'{path}: holds no list of turns; give {{"turns": [...]}} or the list alone.')
    return turns


def _load_content(content: str | list[dict[str, Any]], base: Path) -> list[dict[str, Any]]:
    """Return the items of a turn with their audio decoded."""
    items = [] if isinstance(content, str) else content
    recordings = [item for item in items if item.get("audio")]
    if not recordings:
        raise ValueError("has no audio; every turn of a spoken dialogue needs a recording.")
    for item in recordings:
        if not isinstance(item["audio"], str):
            raise ValueError(f"its audio is a {type(item['audio']).__name__}; give the path of a recording.")
        item["audio"] = _load_recording(base / item["audio"])
    return items


def _load_recording(file: Path) -> dict[str, Any]:
    try:
        array = read_recording(file)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} Paths are relative to the dialogue's file.") from error
    return {"array": array, "sampling_rate": SAMPLING_RATE, "path": str(file)}
