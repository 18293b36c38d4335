"""Turns of a dialogue as they are uploaded or recorded, kept in memory: limits, words, messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import MAX_TURNS, SAMPLING_RATE, AudioError, DialogueError, validate_messages
from sdiareward.pairs.dialogue_files import read_dialogue, sort_naturally
from sdiareward.pairs.loading import turns_to_messages
from sdiareward.pairs.recordings import AUDIO_SUFFIXES, read_recording
from sdiareward.pairs.schema import ROLES
from sdiareward.perturbations.channel import encode_flac


if TYPE_CHECKING:
    import numpy as np

MAX_FILE_BYTES = 20 * 2**20
MAX_DIALOGUE_S = 300.0
MAX_WORDS_CHARACTERS = 8000
# File names are shown; nobody needs all of a long one.
_MAX_NAME_CHARACTERS = 60


@dataclass(frozen=True)
class Turn:
    """A recording of one turn, as the model gets it.

    Args:
        flac (`bytes`): FLAC file: mono, 16 kHz, 16 bits.
        duration_s (`float`): Its length, in seconds.
    """

    flac: bytes
    duration_s: float


def role_of(index: int) -> str:
    """Return who speaks turn `index`, counted from 0: the user begins."""
    return ROLES[index % 2]


def read_turn(content: bytes, name: str) -> Turn:
    """Decode an uploaded or recorded file.

    Args:
        content (`bytes`): The file.
        name (`str`): What to call it in a message.

    Raises:
        DialogueError: It is too large, as a file or decoded, or too long, or no recording that can be judged.
    """
    label = name if len(name) <= _MAX_NAME_CHARACTERS else f"{name[: _MAX_NAME_CHARACTERS - 1]}…"
    if len(content) > MAX_FILE_BYTES:
        raise DialogueError(
            f"{label}: has {len(content) / 2**20:.1f} MB; at most {MAX_FILE_BYTES // 2**20} MB are taken."
        )
    source = {"bytes": content, "path": label}
    try:
        array = read_recording(source, name=label)
    except AudioError as error:
        raise DialogueError(str(error).replace("\n", " ")) from error
    return _turn_of(array)


def _turn_of(array: np.ndarray) -> Turn:
    return Turn(encode_flac(array), len(array) / SAMPLING_RATE)


def add_turns(turns: Sequence[Turn], new: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return a dialogue with more turns.

    Raises:
        DialogueError: It would have too many turns or last too long.
    """
    both = (*turns, *new)
    if len(both) > MAX_TURNS:
        raise DialogueError(f"that would be {len(both)} turns; a dialogue has at most {MAX_TURNS}. Nothing was added.")
    total_s = sum(turn.duration_s for turn in both)
    if total_s > MAX_DIALOGUE_S:
        raise DialogueError(
            f"that would be {total_s:.0f} s; a dialogue has at most {MAX_DIALOGUE_S:g} s here. Nothing was added."
        )
    return both


def read_files(paths: Sequence[Path]) -> list[Turn]:
    """Read files in the order of their names and the numbers in them, and delete them: memory alone keeps them then.

    Args:
        paths (`list[Path]`): Files that were uploaded for this.

    Raises:
        DialogueError: One of them is no recording that can be judged; all are deleted all the same.
    """
    try:
        return [read_turn(_read(path), path.name) for path in sorted(paths, key=sort_naturally)]
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    if path.suffix.lower() not in AUDIO_SUFFIXES:
        raise DialogueError(f"{path.name}: is no {', '.join(AUDIO_SUFFIXES)} file; only recordings can be judged.")
    try:
        # One byte more than is taken tells that it is too much.
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DialogueError(f"{path.name}: was lost on its way; upload it again.") from error


def read_example(path: Path) -> tuple[tuple[Turn, ...], str]:
    """Return the turns of a dialogue's JSON file and their words, a line each.

    Raises:
        DialogueError: As `dialogue_files.read_dialogue`.
    """
    turns, words = [], []
    for message in read_dialogue(path):
        items = {item["type"]: item for item in message["content"]}
        array = items["audio"]["audio"]["array"]
        turns.append(_turn_of(array))
        words.append(items.get("text", {}).get("text", ""))
    return tuple(turns), "\n".join(words)


def split_words(words: str, num_turns: int, name: str) -> list[str]:
    """Return the words of each turn: a line for each, the last ones may be missing.

    Args:
        words (`str`): What was typed.
        num_turns (`int`): How many turns there are.
        name (`str`): What to call the dialogue in a message.

    Raises:
        DialogueError: There is too much of it, or more lines than turns.
    """
    if len(words) > MAX_WORDS_CHARACTERS:
        raise DialogueError(
            f"{name}: its words have {len(words)} characters; at most {MAX_WORDS_CHARACTERS} are taken."
        )
    lines = [line.strip() for line in words.rstrip().splitlines()]
    if len(lines) > num_turns:
        raise DialogueError(
            f"{name}: has words of {len(lines)} turns and recordings of {num_turns}; write one line a turn, an empty "
            "one where the words are unknown."
        )
    return lines + [""] * (num_turns - len(lines))


def make_messages(turns: Sequence[Turn], words: str, name: str) -> list[dict[str, Any]]:
    """Return a dialogue as the processor takes it.

    Args:
        turns (`tuple[Turn, ...]`): Its turns, the user's first.
        words (`str`): Words of the turns, a line each; may be empty.
        name (`str`): What to call it in a message, for instance `"Dialogue A"`.

    Raises:
        DialogueError: The words do not fit, or there is an odd number of turns.
    """
    texts = split_words(words, len(turns), name)
    rows = [
        {"role": role_of(index), "text": text, "audio": {"bytes": turn.flac, "path": None}}
        for index, (turn, text) in enumerate(zip(turns, texts, strict=True))
    ]
    messages = turns_to_messages(rows)
    validate_messages(messages, name=name)
    return messages
