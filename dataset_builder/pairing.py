"""Turn episodes and scripts into preference pairs (section 3.1): plan them first, then make each one by itself.

A modality pair sets a recorded episode (chosen) against the same words spoken by a synthesizer (rejected). A
colloquialness pair sets a spoken-style script (chosen) against its written-style original (rejected), both spoken by
the identical voice and settings, so that only the style differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import MIN_SAMPLES, SAMPLING_RATE, AudioError, read_audio
from sdiareward.dataset_builder.channel import CODINGS, ChannelSettings, encode, match_channel, trim_silence
from sdiareward.dataset_builder.schema import MAX_TURN_S, Episode, Part, ScriptPair, Turn, stable_id
from sdiareward.dataset_builder.splits import choose_synthesizers, split_unit
from sdiareward.dataset_builder.synthesis import Synthesizer, load_synthesizer


# Between the parts of a turn, the same on both sides.
_GAP = np.zeros(round(0.15 * SAMPLING_RATE), dtype=np.float32)


@dataclass(frozen=True)
class PairPlan:
    """All that a pair is made from."""

    criterion: str
    chosen: Episode
    rejected: Episode
    synthesizer: str
    split: str
    channel: ChannelSettings | None

    @property
    def pair_id(self) -> str:
        """Hash of what the pair is made from: names and words of both sides, synthesizer and channel."""
        words = [turn.text for side in (self.chosen, self.rejected) for turn in side.turns]
        names = (self.chosen.source, self.chosen.name, self.rejected.name)
        return stable_id(self.criterion, *names, self.synthesizer, self.channel, *words)


@dataclass(frozen=True)
class SynthesizerChoice:
    """Which synthesizers speak the pairs of one criterion.

    Args:
        seen (`tuple[str, ...]`): Used in every split.
        left_out (`tuple[str, ...]`): Used in the test split only.
        per_dialogue (`int`, *optional*): How many of `seen` each dialogue outside the test split gets; None for all.
    """

    seen: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    per_dialogue: int | None = None

    def __post_init__(self) -> None:
        if shared := set(self.seen) & set(self.left_out):
            raise ValueError(f"synthesizers {sorted(shared)} are both seen and left out; name each once.")

    def for_dialogue(self, split: str, key: str, seed: int) -> list[str]:
        """Return the synthesizers of one dialogue."""
        if split == "test":
            return [*self.seen, *self.left_out]
        return choose_synthesizers(key, self.seen, self.per_dialogue, seed)


def plan_pairs(
    items: Iterable[Episode | ScriptPair],
    assignment: Mapping[tuple[str, str], str],
    choices: Mapping[str, SynthesizerChoice],
    channel: ChannelSettings | None,
    seed: int,
) -> Iterator[PairPlan]:
    """Yield the pairs that the episodes and scripts give.

    Args:
        items (`Iterable`): Recorded episodes and pairs of scripts.
        assignment (`Mapping`): Split by unit, from `assign_splits`.
        choices (`Mapping[str, SynthesizerChoice]`): By criterion.
        channel (`ChannelSettings`, *optional*): The channel both sides are given; None leaves the difference between a
            recording and a synthesizer as it is.
        seed (`int`): Chooses synthesizers where a dialogue does not get all.
    """
    for item in items:
        is_script = isinstance(item, ScriptPair)
        criterion = "colloquialness" if is_script else "modality"
        chosen, rejected = (item.spoken, item.written) if isinstance(item, ScriptPair) else (item, item)
        split = assignment[split_unit(chosen)]
        for name in choices[criterion].for_dialogue(split, f"{chosen.source}/{chosen.name}", seed):
            yield PairPlan(criterion, chosen, rejected, name, split, channel)


def make_row(plan: PairPlan) -> dict[str, Any]:
    """Speak, match and encode both sides of a pair.

    Raises:
        AudioError: A recording is unusable, or a turn lasts more than 60 s.
        SynthesisError: The synthesizer is missing or gives nothing for a text.
    """
    engine = load_synthesizer(plan.synthesizer)
    sides = {side: _make_side(plan, side, engine) for side in ("chosen", "rejected")}
    chosen = plan.chosen
    return {
        "pair_id": plan.pair_id,
        "criterion": plan.criterion,
        "subset": chosen.subset,
        "source": chosen.source,
        "primary": chosen.primary,
        "secondary": chosen.secondary,
        **sides,
        "synthesizer": plan.synthesizer,
        "group_id": chosen.group_id,
        "channel": plan.channel.as_row() if plan.channel else None,
        "quality": None,
        "language": chosen.language,
        "license": chosen.license,
    }


def _make_side(plan: PairPlan, side: str, engine: Synthesizer) -> list[dict[str, Any]]:
    episode: Episode = getattr(plan, side)
    is_recording = plan.criterion == "modality" and side == "chosen"
    turns = []
    for position, turn in enumerate(episode.turns):
        label = f"{episode.source} {episode.name}, turn {position}"
        voice = int(stable_id(plan.chosen.group_id, turn.role), 16)
        parts = _recorded(turn, label) if is_recording else _spoken(turn, episode, voice, engine, label)
        array = _join(parts, plan.channel.trim_db if plan.channel else None)
        if plan.channel:
            rng = np.random.default_rng(int(stable_id(plan.pair_id, side, position), 16))
            array = match_channel(array, plan.channel, rng)
        turns.append(_encode_turn(turn, array, f"{plan.pair_id}-{side}-{position}.flac", label))
    return turns


def _recorded(turn: Turn, label: str) -> list[np.ndarray]:
    return [_read_part(part, label) for part in turn.parts]


def _spoken(turn: Turn, episode: Episode, voice: int, engine: Synthesizer, label: str) -> list[np.ndarray]:
    arrays = []
    for part in turn.parts:
        reference = _read_part(part, label) if engine.uses_reference else None
        array = engine.speak(part.text, voice=voice, reference=reference)
        if not engine.uses_reference:
            for coding in episode.native_coding:
                array = CODINGS[coding](array)
        arrays.append(array)
    return arrays


def _read_part(part: Part, label: str) -> np.ndarray:
    if part.audio is None:
        raise AudioError(f"{label}: there is no recording of {part.text!r}.")
    array = _read_file(part.audio) if isinstance(part.audio, str) else read_audio(part.audio, name=label)
    end = None if part.end_s is None else round(part.end_s * SAMPLING_RATE)
    return array[round(part.start_s * SAMPLING_RATE) : end]


@lru_cache(maxsize=4)
def _read_file(path: str) -> np.ndarray:
    """Read a recording that several parts are cut from once."""
    return read_audio(path)


def _join(parts: list[np.ndarray], trim_db: float | None) -> np.ndarray:
    """Put the parts of a turn one after another, each trimmed, with the same gap on both sides of a pair."""
    pieces: list[np.ndarray] = []
    for part in parts:
        pieces += [part if trim_db is None else trim_silence(part, trim_db), _GAP]
    return np.concatenate(pieces[:-1])


def _encode_turn(turn: Turn, array: np.ndarray, path: str, label: str) -> dict[str, Any]:
    duration_s = len(array) / SAMPLING_RATE
    if len(array) < MIN_SAMPLES or duration_s > MAX_TURN_S:
        raise AudioError(f"{label}: lasts {duration_s:.2f} s; a turn must last more than 0.02 and at most 60 s.")
    data = encode(array, SAMPLING_RATE, "FLAC", "PCM_16", None)
    return {
        "role": turn.role,
        "text": turn.text,
        "audio": {"bytes": data, "path": path},
        "duration_s": duration_s,
    }
