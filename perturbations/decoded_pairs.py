"""Pairs decoded into memory, so that attacks and the audit can change their sound and their words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.chat_sdiareward import list_items, turns_to_messages, validate_messages
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.schema import SIDES


if TYPE_CHECKING:
    import datasets

Messages = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Turn:
    role: str
    text: str  # Empty without a transcript.
    array: np.ndarray  # Mono float32, 16 kHz. Turns share it: never change it in place.


@dataclass(frozen=True, eq=False)
class AuditPair:
    pair_id: str
    criterion: str
    subset: str
    source: str
    synthesizer: str | None
    group_id: str | None
    license: str | None
    chosen: list[Turn]
    rejected: list[Turn]


def to_messages(turns: Iterable[Turn], audio: bool = True, text: bool = True) -> Messages:
    """Return a dialogue as the processor takes it, text before audio in each turn."""
    return turns_to_messages(
        [
            {
                "role": turn.role,
                "text": turn.text if text else None,
                "audio": {"array": turn.array, "sampling_rate": SAMPLING_RATE} if audio else None,
            }
            for turn in turns
        ]
    )


def decode_pairs(pairs: datasets.Dataset, rows: Iterable[int], audio: bool = True) -> list[AuditPair]:
    """Decode rows of a data set of pairs; without `audio`, which takes nearly all of the time, arrays are empty."""
    subset = pairs.select(list(rows))
    labels = describe_pairs(subset)
    return [_read_pair(row, label, audio) for row, label in zip(subset, labels, strict=True)]


def _read_pair(row: Mapping[str, Any], label: Mapping[str, Any], audio: bool) -> AuditPair:
    chosen, rejected = (_read_side(row[side], f"pair {label['pair_id']}, {side}", audio) for side in SIDES)
    return AuditPair(**label, license=row.get("license"), chosen=chosen, rejected=rejected)


def _read_side(turns: Sequence[Mapping[str, Any]], name: str, audio: bool) -> list[Turn]:
    read, messages = [], turns_to_messages(turns)
    validate_messages(messages, name)
    for number, message in enumerate(messages):
        if message["role"] == "system":
            raise AudioError(f"{name}: begins with a system turn; give the spoken turns alone.")
        items = list_items(message)
        sounds = [item["audio"] for item in items if item["type"] == "audio"]
        if len(sounds) != 1:
            raise AudioError(f"{name} turn {number}: has {len(sounds)} recordings; give exactly one per turn.")
        words = " ".join(item["text"] for item in items if item["type"] == "text")
        array = read_audio(sounds[0], name=f"{name} turn {number}") if audio else np.zeros(0, dtype=np.float32)
        read.append(Turn(message["role"], words, array))
    return read
