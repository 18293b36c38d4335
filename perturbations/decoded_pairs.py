"""Pairs decoded into memory, so that attacks and the audit can change their audio and text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError
from sdiareward.chat_sdiareward import make_dialogue
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.schema import SIDES


if TYPE_CHECKING:
    import datasets

Messages = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Turn:
    role: str
    text: str  # Empty without a transcript.
    array: np.ndarray  # Mono float32, 16 kHz. Turns share arrays: never change them in place.


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
    """Return a dialogue as the processor's messages, text before audio in each turn."""
    messages: Messages = []
    for turn in turns:
        words = [{"type": "text", "text": turn.text}] if text and turn.text else []
        sound = {"type": "audio", "audio": {"array": turn.array, "sampling_rate": SAMPLING_RATE}}
        messages.append({"role": turn.role, "content": [*words, *([sound] if audio else [])]})
    return messages


def decode_pairs(pairs: datasets.Dataset, rows: Iterable[int], audio: bool = True) -> list[AuditPair]:
    """Decode rows of a data set of pairs; without `audio`, arrays are empty and decoding is much faster."""
    subset = pairs.select(list(rows))
    labels = describe_pairs(subset)
    read = []
    for row, label in zip(subset, labels, strict=True):
        sides: dict[str, Any] = {
            side: _read_side(row[side], f"pair {label['pair_id']}, {side}", audio) for side in SIDES
        }
        read.append(AuditPair(**label, license=row.get("license"), **sides))
    return read


def _read_side(turns: Sequence[Mapping[str, Any]], name: str, audio: bool) -> list[Turn]:
    read, dialogue = [], make_dialogue(turns, name)
    if dialogue.system is not None:
        raise AudioError(f"{name}: begins with a system turn; give only the spoken turns.")
    for number, turn in enumerate(dialogue.turns):
        if len(turn.clips) != 1:
            raise AudioError(f"{name} turn {number}: has {len(turn.clips)} recordings; give exactly one per turn.")
        array = turn.clips[0].read(name=f"{name} turn {number}") if audio else np.zeros(0, dtype=np.float32)
        read.append(Turn(turn.role, turn.text, array))
    return read
