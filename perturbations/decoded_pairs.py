"""Pairs as the audit works on them: decoded once, so that their sound and their words can be changed at will."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import turns_to_messages
from sdiareward.pairs.schema import SIDES


if TYPE_CHECKING:
    import datasets

Messages = list[dict[str, Any]]
# From dialogues and the criterion of each to their rewards; one call with many dialogues is faster than many calls.
RewardFunction = Callable[[Sequence[Messages], Sequence[str]], list[float]]


@dataclass(frozen=True, eq=False)
class Turn:
    """One speaker's contribution.

    Args:
        role (`str`): `"user"` or `"assistant"`.
        text (`str`): What is said; empty where there is no transcript.
        array (`np.ndarray` of shape `(num_samples,)`): How it sounds, mono float32 at `SAMPLING_RATE`. It may be
            shared with other turns: it is never changed in place.
    """

    role: str
    text: str
    array: np.ndarray


@dataclass(frozen=True, eq=False)
class AuditPair:
    """A preference pair in memory.

    Args:
        pair_id (`str`): Its id.
        criterion (`str`): Which prompt it is judged under.
        subset (`str`): Column of Table 2 that it counts in.
        source (`str`): Corpus.
        synthesizer (`str`, *optional*): What spoke the synthetic side or sides.
        group_id (`str`, *optional*): Recording or dialogue it is cut from.
        license (`str`, *optional*): Of its recordings.
        chosen (`list[Turn]`): The preferred dialogue.
        rejected (`list[Turn]`): The other one.
    """

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
    """Return a dialogue as the processor takes it, text before audio in each turn.

    Args:
        turns (`Iterable[Turn]`): The dialogue.
        audio (`bool`, *optional*, defaults to `True`): Give the recordings.
        text (`bool`, *optional*, defaults to `True`): Give the transcripts; an empty one is left out in any case.

    Example:
        >>> to_messages([Turn("user", "hm", np.zeros(400, dtype=np.float32))], audio=False)
        [{'role': 'user', 'content': [{'type': 'text', 'text': 'hm'}]}]
    """
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


def decode_pairs(pairs: datasets.Dataset, rows: Iterable[int]) -> list[AuditPair]:
    """Decode pairs.

    Args:
        pairs (`datasets.Dataset`): Pairs as `loading.load_pairs` gives them, in our form or the released one.
        rows (`Iterable[int]`): Which of them.

    Returns:
        `list[AuditPair]`: In the order of `rows`.

    Raises:
        AudioError: A recording cannot be read, or a turn has none or several; the message names pair, side and turn.
        FileNotFoundError: A recording does not exist.
        ValueError: What a pair is cannot be told; see `labels.describe_pairs`.
    """
    subset = pairs.select(list(rows))
    labels = describe_pairs(subset)
    return [_read_pair(row, label) for row, label in zip(subset, labels, strict=True)]


def _read_pair(row: Mapping[str, Any], label: Mapping[str, Any]) -> AuditPair:
    chosen, rejected = (_read_side(row[side], f"pair {label['pair_id']}, {side}") for side in SIDES)
    return AuditPair(**label, license=row.get("license"), chosen=chosen, rejected=rejected)


def _read_side(turns: Sequence[Mapping[str, Any]], name: str) -> list[Turn]:
    read = []
    for number, message in enumerate(turns_to_messages(turns)):
        content = message["content"]
        items = [{"type": "text", "text": content}] if isinstance(content, str) else content
        sounds = [item["audio"] for item in items if item["type"] == "audio"]
        if len(sounds) != 1:
            raise AudioError(f"{name} turn {number}: has {len(sounds)} recordings; the audit needs one a turn.")
        words = " ".join(item["text"] for item in items if item["type"] == "text")
        read.append(Turn(message["role"], words, read_audio(sounds[0], name=f"{name} turn {number}")))
    return read
