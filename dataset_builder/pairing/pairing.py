"""Turn episodes and scripts into preference pairs (section 3.1): plan them first, then make each one by itself.

A modality pair sets a recorded episode (chosen) against the same words spoken by a synthesizer (rejected). A
colloquialness pair sets a spoken-style script (chosen) against its written-style original (rejected), both spoken by
the identical voice and settings, so that only the style differs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import MIN_SAMPLES, SAMPLING_RATE, AudioError
from sdiareward.chat_sdiareward import MAX_TURNS
from sdiareward.dataset_builder.episodes import RECORDING, Episode, Part, ScriptPair, Turn, is_recorded
from sdiareward.dataset_builder.synthesis import DialogueSynthesizer, ReferenceClip, Synthesizer, load_synthesizer
from sdiareward.esdr_accuracy.pairwise import NO_SUBSET
from sdiareward.pairs.schema import MAX_TURN_S, make_stable_id, make_stable_seed
from sdiareward.perturbations.channel import CODINGS, ChannelSettings, encode_flac
from sdiareward.perturbations.effects import trim_silence

from ..pipeline.inspection import require_sound
from ..pipeline.media import locate_span, read_media, read_span
from ..references import SYNTHETIC
from .plausible_speech import require_language, require_plausible
from .reference_clips import Clip, ScriptVoice, choose_references, load_voices, split_options
from .splits import choose_synthesizers, split_unit


class TurnDurationError(AudioError):
    """Raised for a turn that lasts no time or more than 60 s (B.1, first phase of the filter)."""


# Between the parts of a turn, the same on both sides.
_GAP = np.zeros(round(0.15 * SAMPLING_RATE), dtype=np.float32)
# A file that turns are cut from holds an episode at most; longer recordings go through the pipeline.
_MAX_FILE_S = 2 * MAX_TURNS * MAX_TURN_S
# Spoken texts kept in memory, a few dialogues of them.
_KEPT_TEXTS = 128
# Options that do not change the speech: where an engine runs, its time limits and languages, and the folder of a file.
_SILENT_OPTIONS = {"base_url", "api_key_env", "timeout_s", "max_retries", "addresses", "languages"}
_FILE_OPTIONS = {"model_path", "voices_path", "audio"}


@dataclass(frozen=True)
class PairPlan:
    """Everything that a pair is made from."""

    criterion: str
    chosen: Episode
    rejected: Episode  # For a modality pair `chosen` again.
    synthesizer: str  # Of the synthetic side or sides, or `RECORDING`.
    split: str
    channel: ChannelSettings | None  # None leaves the difference between a recording and a synthesizer.
    options: Mapping[str, Any] = field(default_factory=dict)
    known_pair_id: str | None = None  # Of a released pair: its words may have been scrubbed since.
    script_voices: tuple[ScriptVoice, ...] = ()
    rejected_synthesizer: str = ""  # Where it differs from the chosen side's.
    rejected_options: Mapping[str, Any] | None = None
    family: str = ""  # Empty for the paper's pairs.

    def is_recorded(self, side: str) -> bool:
        return is_recorded(self.criterion, side, self.synthesizer)

    def find_engine(self, side: str) -> tuple[str, Mapping[str, Any]]:
        if side == "chosen" or not (self.rejected_synthesizer or self.rejected_options is not None):
            return self.synthesizer, self.options
        return self.rejected_synthesizer or self.synthesizer, self.rejected_options or {}

    @property
    def engines(self) -> dict[str, Mapping[str, Any]]:
        """The options of each synthesizer that is needed, by name."""
        return {name: options for name, options in map(self.find_engine, ("rejected", "chosen")) if name != RECORDING}

    @property
    def voices(self) -> str:
        """The column `synthesizer`: two names where the sides differ."""
        other = self.rejected_synthesizer
        return f"{self.synthesizer}+{other}" if other and other != self.synthesizer else self.synthesizer

    @property
    def pair_id(self) -> str:
        """Hash of what the pair is made from: names and words of both sides, synthesizer, voices and channel."""
        if self.known_pair_id:
            return self.known_pair_id
        words = [turn.text for side in (self.chosen, self.rejected) for turn in side.turns]
        names = (self.chosen.source, self.chosen.name, self.rejected.name)
        options = list_audible(self.options)
        engine = [self.synthesizer, json.dumps(options, sort_keys=True)] if options else [self.synthesizer]
        if self.rejected_synthesizer or self.rejected_options is not None:
            name, given = self.find_engine("rejected")
            engine += [name, json.dumps(list_audible(given), sort_keys=True)]
        engine += [self.family] if self.family else []
        engine += [json.dumps(sorted(voice.identity for voice in self.script_voices))] if self.script_voices else []
        return make_stable_id(self.criterion, *names, *engine, self.channel, *words)

    @property
    def label(self) -> dict[str, str]:
        """The columns that a report counts the pair by, apart from its split."""
        # A family is in none of the paper's subsets.
        subset = NO_SUBSET if self.family else self.chosen.subset
        labels = {"criterion": self.criterion, "subset": subset, "source": self.chosen.source}
        return {**labels, "synthesizer": self.voices}


def list_audible(options: Any) -> Any:
    """Return the options of an engine that change its speech, the same on any machine; or those of engines by name."""
    if not isinstance(options, Mapping):
        return options
    return {
        key: Path(value).name if key in _FILE_OPTIONS and value else list_audible(value)
        for key, value in options.items()
        if key not in _SILENT_OPTIONS
    }


@dataclass(frozen=True)
class SynthesizerSpec:
    seen: tuple[str, ...]  # Used in every split.
    left_out: tuple[str, ...] = ()  # Used in the test split only.
    per_dialogue: int | None = None  # Of `seen`, per dialogue outside the test split; None for all.
    across: int = 0  # More pairs per script with another synthesizer on each side: the voice must not separate them.

    def __post_init__(self) -> None:
        if shared := set(self.seen) & set(self.left_out):
            raise ValueError(f"synthesizers {sorted(shared)} are both seen and held out; name each once.")

    def choose_across_dialogue(self, split: str, key: str, seed: int) -> list[tuple[str, str]]:
        """Return `across` couples of synthesizers for the chosen and the rejected side of one script."""
        names = [*self.seen, *(self.left_out if split == "test" else ())]
        couples = [(first, second) for first in names for second in names if first != second]
        return sorted(couples, key=lambda couple: make_stable_id(seed, key, *couple))[: self.across]

    def for_dialogue(self, split: str, key: str, seed: int) -> list[str]:
        if split == "test":
            return [*self.seen, *self.left_out]
        return choose_synthesizers(key, self.seen, self.per_dialogue, seed)


def plan_pairs(
    items: Iterable[Episode | ScriptPair],
    assignment: Mapping[tuple[str, str], str],
    choices: Mapping[str, SynthesizerSpec],
    channel: ChannelSettings | None,
    seed: int,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[PairPlan]:
    plans = []
    for item in items:
        criterion = "colloquialness" if isinstance(item, ScriptPair) else "modality"
        chosen, rejected = (item.spoken, item.written) if isinstance(item, ScriptPair) else (item, item)
        if criterion not in choices:
            raise ValueError(f"{chosen.source} gives {criterion} pairs, but synthesizers has no entry {criterion!r}.")
        split, key = assignment[split_unit(chosen)], f"{chosen.source}/{chosen.name}"
        couples = [(name, None) for name in choices[criterion].for_dialogue(split, key, seed)]
        for name, other in [*couples, *choices[criterion].choose_across_dialogue(split, key, seed)]:
            own, voices = split_options((options or {}).get(name, {}), criterion)
            plan = PairPlan(criterion, chosen, rejected, name, split, channel, own, script_voices=voices)
            if other:
                others, _ = split_options((options or {}).get(other, {}), criterion)
                plan = replace(plan, rejected_synthesizer=other, rejected_options=others)
            plans.append(plan)
    return plans


def make_row(plan: PairPlan) -> dict[str, Any]:
    """Speak both sides of a pair, match their channel, and encode them."""
    sounds = {"chosen": _read_side(plan, "chosen")}
    sounds["rejected"] = _read_side(plan, "rejected", sounds["chosen"] if plan.criterion == "modality" else None)
    chosen = plan.chosen
    return {
        "pair_id": plan.pair_id,
        **plan.label,
        "primary": chosen.primary,
        "secondary": chosen.secondary,
        **{side: _encode_side(plan, side, arrays) for side, arrays in sounds.items()},
        "group_id": chosen.group_id,
        "channel": plan.channel.as_row() if plan.channel else None,
        "native_coding": list(chosen.native_coding),
        "quality": None,
        "language": chosen.language,
        "license": chosen.license,
    }


def _read_side(plan: PairPlan, side: str, recorded: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
    """Return the sound of each turn before the channel; `recorded` has the same words."""
    episode: Episode = getattr(plan, side)
    label = f"{episode.source} {episode.name}"
    trim_db = plan.channel.trim_db if plan.channel else None
    if plan.is_recorded(side):
        arrays = [_join(parts, trim_db) for parts in _read_recorded(episode, label)]
        require_plausible([turn.text for turn in episode.turns], arrays, label)
        return arrays
    name, options = plan.find_engine(side)
    engine = load_synthesizer(name, options)
    for turn in episode.turns:
        require_language(engine, name, episode.language, turn.text)
    if isinstance(engine, DialogueSynthesizer):
        lines = [(turn.role, turn.text) for turn in episode.turns]
        spoken = engine.speak_dialogue(lines, _choose_reference_clips(plan, label))
        arrays = [_join([_apply_native_coding(array, episode)], trim_db) for array in spoken]
    else:
        arrays = [_join(_speak_parts(plan, episode, turn, engine, label), trim_db) for turn in episode.turns]
    require_plausible(
        [turn.text for turn in episode.turns],
        arrays,
        f"{label}, {name}",
        engine=f"{name} {json.dumps(options, sort_keys=True)}",
        recorded=recorded,
        is_copy=getattr(engine, "uses_reference", False),
    )
    return arrays


def _read_recorded(episode: Episode, label: str) -> list[list[np.ndarray]]:
    return [
        [read_part(part, f"{label}, turn {position}") for part in turn.parts]
        for position, turn in enumerate(episode.turns)
    ]


def _speak_parts(plan: PairPlan, episode: Episode, turn: Turn, engine: Synthesizer, label: str) -> list[np.ndarray]:
    voice = make_stable_seed(plan.chosen.group_id, turn.role)
    if engine.uses_reference:
        # Copy-synthesis keeps the recording's channel, so it has been through its codings already.
        return [engine.speak(part.text, voice=voice, reference=read_part(part, label)) for part in turn.parts]
    speak: Callable[..., np.ndarray] = _speak if engine.is_deterministic else _speak.__wrapped__
    return [_apply_native_coding(speak(engine, part.text, voice), episode) for part in turn.parts if part.text]


# The pairs of a dialogue are made one after the other, and most of their turns are the same.
@lru_cache(maxsize=_KEPT_TEXTS)
def _speak(engine: Synthesizer, text: str, voice: int) -> np.ndarray:
    return engine.speak(text, voice=voice)


def _apply_native_coding(array: np.ndarray, episode: Episode) -> np.ndarray:
    for coding in episode.native_coding:
        array = CODINGS[coding](array, SAMPLING_RATE)
    return array


def _choose_reference_clips(plan: PairPlan, label: str) -> dict[str, ReferenceClip]:
    """Choose the clips to clone voices from; for scripts, which have no recordings, from the pool of voices."""
    if plan.criterion != "modality":
        return load_voices(plan.script_voices, plan.pair_id)
    arrays = [_join(parts, None) for parts in _read_recorded(plan.chosen, label)]
    turns = plan.chosen.turns
    chosen = choose_references(
        [Clip(t.role, t.text, len(a) / SAMPLING_RATE) for t, a in zip(turns, arrays, strict=True)]
    )
    return {
        role: ReferenceClip(_join([arrays[i] for i in places], None), " ".join(turns[i].text for i in places))
        for role, places in chosen.items()
    }


def _encode_side(plan: PairPlan, side: str, arrays: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    episode: Episode = getattr(plan, side)
    turns = []
    for position, (turn, array) in enumerate(zip(episode.turns, arrays, strict=True)):
        if plan.channel:
            rng = np.random.default_rng(make_stable_seed(plan.pair_id, side, position))
            array = plan.channel(array, SAMPLING_RATE, rng)
        duration_s = len(array) / SAMPLING_RATE
        if len(array) < MIN_SAMPLES or duration_s > MAX_TURN_S:
            raise TurnDurationError(
                f"{episode.source} {episode.name}, turn {position}: lasts {duration_s:.2f} s; a turn must last more "
                "than 0.02 and at most 60 s."
            )
        if plan.is_recorded(side):
            references: list[tuple[Any, ...]] = [(part.ref, part.start_s, part.end_s) for part in turn.parts]
        else:
            references = [(f"{SYNTHETIC}:{plan.find_engine(side)[0]}", None, None)] * len(turn.parts)
        turns.append(
            {
                "role": turn.role,
                "text": turn.text,
                "audio": {"bytes": encode_flac(array), "path": f"{plan.pair_id}-{side}-{position}.flac"},
                "duration_s": duration_s,
                "audio_ref": [
                    {"uri": uri, "start_s": start_s, "end_s": end_s, "text": part.text}
                    for (uri, start_s, end_s), part in zip(references, turn.parts, strict=True)
                ],
            }
        )
    return turns


def read_part(part: Part, label: str) -> np.ndarray:
    if part.audio is None:
        raise AudioError(f"{label}: there is no recording of {part.text!r}.")
    if part.audio.endswith(".wav") and part.end_s is not None:
        return require_sound(read_span(part.audio, part.start_s, part.end_s), label)
    array = read_whole(part.audio)
    start, end = locate_span(part.start_s, part.end_s, array.size, label)
    return require_sound(array[start:end], label)


def read_whole(audio: str) -> np.ndarray:
    """Return the recording that a part is cut from; a file is read once for consecutive parts."""
    return _read_file(*(read_file_version(audio) if os.path.isfile(audio) else (audio, 0, 0)))


@lru_cache(maxsize=4)
def _read_file(path: str, _size: int, _changed_ns: int) -> np.ndarray:
    return read_media(path, max_s=_MAX_FILE_S)


def read_file_version(path: str) -> tuple[str, int, int]:
    """Return path, size and time of change: a key that changes with the file."""
    status = os.stat(path)
    return path, status.st_size, status.st_mtime_ns


def _join(parts: Sequence[np.ndarray], trim_db: float | None) -> np.ndarray:
    """Join the trimmed parts of a turn with the same gap on both sides of a pair."""
    pieces: list[np.ndarray] = []
    for part in parts:
        pieces += [part if trim_db is None else trim_silence(part, trim_db), _GAP]
    return np.concatenate(pieces[:-1])
