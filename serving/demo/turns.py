"""Uploaded or recorded turns of a dialogue, held in memory: limits, words, messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError
from sdiareward.chat_sdiareward import MAX_TURNS, ROLES, DialogueError, make_dialogue
from sdiareward.pairs.messages import (
    AUDIO_SUFFIXES,
    check_recording,
    is_hidden,
    read_dialogue,
    read_recording,
    require_turns,
    sort_naturally,
)
from sdiareward.perturbations.channel import encode_flac


if TYPE_CHECKING:
    import numpy as np

MAX_FILE_BYTES = 20 * 2**20
MAX_DIALOGUE_S = 300.0
MAX_WORDS_CHARACTERS = 8000
_MAX_NAME_CHARACTERS = 60


@dataclass(frozen=True)
class RecordedTurn:
    flac: bytes  # Mono, 16 kHz, 16 bits.
    duration_s: float


def find_role(index: int) -> str:
    return ROLES[index % 2]


def read_turn(content: bytes, name: str) -> RecordedTurn:
    label = name if len(name) <= _MAX_NAME_CHARACTERS else f"{name[: _MAX_NAME_CHARACTERS - 1]}…"
    if len(content) > MAX_FILE_BYTES:
        raise DialogueError(
            f"{label}: has {len(content) / 2**20:.1f} MB; at most {MAX_FILE_BYTES // 2**20} MB are accepted."
        )
    source = {"bytes": content, "path": label}
    try:
        # Before it is decoded: a small file may fill the memory.
        check_recording(source)
        array = read_recording(source, name=label)
    except AudioError as error:
        raise DialogueError(str(error).replace("\n", " ")) from error
    return _make_turn(array)


def _make_turn(array: np.ndarray) -> RecordedTurn:
    return RecordedTurn(encode_flac(array), len(array) / SAMPLING_RATE)


def add_turns(turns: Sequence[RecordedTurn], new: Sequence[RecordedTurn]) -> tuple[RecordedTurn, ...]:
    both = (*turns, *new)
    if len(both) > MAX_TURNS:
        raise DialogueError(f"that would be {len(both)} turns; a dialogue has at most {MAX_TURNS}. Nothing was added.")
    total_s = sum(turn.duration_s for turn in both)
    if total_s > MAX_DIALOGUE_S:
        raise DialogueError(
            f"that would be {total_s:.0f} s; a dialogue has at most {MAX_DIALOGUE_S:g} s here. Nothing was added."
        )
    return both


def read_files(paths: Sequence[Path]) -> list[RecordedTurn]:
    """Read uploaded files in the natural order of their names."""
    paths = [path for path in sorted(paths, key=sort_naturally) if not is_hidden(path.name)]
    require_turns(paths)
    return [read_turn(_read(path), path.name) for path in paths]


def _read(path: Path) -> bytes:
    if path.suffix.lower() not in AUDIO_SUFFIXES:
        raise DialogueError(f"{path.name}: is not a {', '.join(AUDIO_SUFFIXES)} file; upload a recording.")
    try:
        # One byte more than the limit: the file is too large.
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DialogueError(f"{path.name}: was lost during the upload; upload it again.") from error


def read_example(path: Path) -> tuple[tuple[RecordedTurn, ...], str]:
    """Return the turns of a dialogue's JSON file and their words, one line per turn."""
    turns, words = [], []
    for turn in read_dialogue(path).turns:
        turns.append(_make_turn(turn.clips[0].read()))
        words.append(turn.text)
    return tuple(turns), "\n".join(words)


def split_words(words: str, num_turns: int, name: str) -> list[str]:
    """Return the words of each turn, one line per turn; the last lines may be missing."""
    if len(words) > MAX_WORDS_CHARACTERS:
        raise DialogueError(
            f"{name}: its words have {len(words)} characters; at most {MAX_WORDS_CHARACTERS} are accepted."
        )
    lines = [line.strip() for line in words.rstrip().splitlines()]
    if len(lines) > num_turns:
        raise DialogueError(
            f"{name}: has words of {len(lines)} turns and recordings of {num_turns}; write one line per turn, an "
            "empty one if the words are unknown."
        )
    return lines + [""] * (num_turns - len(lines))


def make_messages(turns: Sequence[RecordedTurn], words: str, name: str) -> list[dict[str, Any]]:
    texts = split_words(words, len(turns), name)
    rows = [
        {"role": find_role(index), "text": text, "audio": {"bytes": turn.flac, "path": None}}
        for index, (turn, text) in enumerate(zip(turns, texts, strict=True))
    ]
    return make_dialogue(rows, name).to_messages()
