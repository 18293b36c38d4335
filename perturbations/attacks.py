"""Attacks on a reward: changes to a dialogue, built from a pair, that should not be rewarded.

An attack on the rejected side tries to raise its reward. It is successful if the attacked side reaches the reward of
the chosen side and the original rejected side did not. An attack on the chosen side breaks its content or its voice
and keeps the rest. It is successful if the broken dialogue scores at least as high as the intact one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.chat_sdiareward import MAX_TURNS
from sdiareward.pairs.schema import MAX_TURN_S

from . import attack_sounds
from .attack_sounds import FILLERS, INJECTION, Speak, can_load_sound, insert_at_quietest, load_sound
from .decoded_pairs import AuditPair, Turn
from .effects import Samples, measure_level, scale_to_level
from .voices import analyze_speech, can_vocode, flatten_pitch, synthesize_speech


_MAX_SAMPLES = round(MAX_TURN_S * SAMPLING_RATE)
# Share of words that get a filler.
_FILLER_SHARE = 0.25
_CLICKS_PER_TURN, _SPOKEN_FILLERS_PER_TURN = 4, 2
# Level of a breath relative to the turn, in dB.
_BREATH_DB = -10.0
# Share of the deviation from the mean log pitch that is kept, and the frame period of the vocoder.
_KEPT_VARIATION, _FRAME_PERIOD_MS = 0.5, 10.0
_LONGEST_REPEATS = 4
_PEAK, _LOUD_PEAK = 0.99, 0.7
_PAUSE_SAMPLES = SAMPLING_RATE // 5
_VOICE = "a synthesizer that speaks offline, such as espeakng-loader (the extra `build`)"
_WRITTEN, _OTHER = "a colloquialness pair with a transcript", "another dialogue under the same criterion"
_REAL = "a modality pair whose recording is not digitally silent"


@dataclass(frozen=True)
class AttackContext:
    rng: np.random.Generator
    others: Sequence[AuditPair] = ()  # Sources of turns and words; may include the attacked pair.
    heard_s: float = math.inf  # Seconds that the model hears of each turn; sounds are placed within them.
    sounds_dir: str | Path | None = None
    # `others` without recordings, for choosing without decoding audio.
    outlines: Sequence[AuditPair] | None = None
    speak: Speak | None = None


# From a pair to the attacked dialogue, which is valid (see `validate_roles`); None if a requirement is not met.
Build = Callable[[AuditPair, AttackContext], list[Turn] | None]
IsPossible = Callable[[str | Path | None, Speak | None], bool]


@dataclass(frozen=True)
class Attack:
    title: str
    baseline: str  # The side that is attacked, `"chosen"` or `"rejected"`.
    against: str  # The attack is compared with `"chosen"`, or with `"self"`: the attacked side before the attack.
    needs: str  # Requirements; empty if the attack always applies.
    build: Build
    is_possible: IsPossible = lambda sounds_dir, speak: True  # Whether this machine can run it, for any pair.


ATTACKS: dict[str, Attack] = {}


def _attack(
    name: str, title: str, baseline: str, needs: str = "", is_possible: IsPossible = Attack.is_possible
) -> Callable[[Build], Build]:
    """Register the decorated function in `ATTACKS`."""

    def enter(build: Build) -> Build:
        against = {"chosen": "self", "rejected": "chosen"}[baseline]
        ATTACKS[name] = Attack(title, baseline, against, needs, build, is_possible)
        return build

    return enter


def is_heard(before: Sequence[Turn], after: Sequence[Turn], heard_s: float) -> bool:
    """Return whether a change reaches a model that hears the first `heard_s` seconds of each turn."""
    end = None if math.isinf(heard_s) else round(heard_s * SAMPLING_RATE)
    cut = [[(turn.role, turn.text, turn.array[:end].tobytes()) for turn in turns] for turns in (before, after)]
    return cut[0] != cut[1]


def _change_sound(turn: Turn, change: Callable[[Samples], Samples]) -> Turn:
    return replace(turn, array=change(turn.array)[:_MAX_SAMPLES])


@_attack("noise_floor", "synthesised speech with the recording's noise floor", "rejected", _REAL)
def _add_noise_floor(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    return _add_noise_floor_to(pair.rejected, pair, context)


def _add_noise_floor_to(turns: Sequence[Turn], pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    power = attack_sounds.estimate_noise_floor([turn.array for turn in pair.chosen])
    if pair.criterion != "modality" or power is None:
        return None
    add = partial(attack_sounds.add_noise_floor, power=power, rng=context.rng)
    return [_change_sound(turn, add) for turn in turns]


@_attack(
    "vocoded",
    "the recording through a vocoder, with its noise floor",
    "chosen",
    f"{_REAL}, and pyworld (the extra `build`)",
    lambda sounds_dir, speak: can_vocode(),
)
def _vocode(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    if pair.criterion != "modality" or not can_vocode():
        return None
    return _add_noise_floor_to([replace(turn, array=_copy_speech(turn.array)) for turn in pair.chosen], pair, context)


def _copy_speech(array: Samples) -> Samples:
    pitch, envelope, aperiodicity = analyze_speech(array, _FRAME_PERIOD_MS)
    return synthesize_speech(flatten_pitch(pitch, _KEPT_VARIATION), envelope, aperiodicity, _FRAME_PERIOD_MS)


@_attack("clicks", "clicks pasted in", "rejected")
def _add_clicks(pair: AuditPair, context: AttackContext) -> list[Turn]:
    """Add clicks at random places, at the peak level of the turn."""

    def change(samples: Samples) -> Samples:
        changed, peak = samples.copy(), np.float32(np.abs(samples).max())
        num_heard = int(min(len(samples), context.heard_s * SAMPLING_RATE))
        for _ in range(_CLICKS_PER_TURN):
            click = load_sound("click", context.rng, context.sounds_dir)
            start = context.rng.integers(max(1, num_heard - len(click)))
            part = changed[start : start + len(click)]
            part += click[: len(part)] * peak
        return changed

    return [_change_sound(turn, change) for turn in pair.rejected]


@_attack("breaths", "breaths pasted in", "rejected")
def _insert_breaths(pair: AuditPair, context: AttackContext) -> list[Turn]:
    return [_insert_sound("breath", turn, context, _BREATH_DB) for turn in pair.rejected]


@_attack("laughter", "laughter pasted into the answers", "rejected")
def _insert_laughter(pair: AuditPair, context: AttackContext) -> list[Turn]:
    return [_insert_sound("laughter", turn, context) if turn.role == "assistant" else turn for turn in pair.rejected]


def _insert_sound(name: str, turn: Turn, context: AttackContext, gain_db: float = 0.0) -> Turn:
    """Insert a sound at the quietest moment of a turn, `gain_db` above the turn's level."""
    sound = _load_at_level(name, turn, context, gain_db)
    return _change_sound(turn, lambda array: insert_at_quietest(array, sound, context.heard_s))


def _load_at_level(name: str, turn: Turn, context: AttackContext, gain_db: float = 0.0) -> Samples:
    sound = load_sound(name, context.rng, context.sounds_dir, context.speak)
    return scale_to_level(sound, 10 ** (gain_db / 20) * measure_level(turn.array))


@_attack("fillers", "fillers stuffed at random into the transcript", "rejected", _WRITTEN)
def _insert_fillers(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    if pair.criterion != "colloquialness" or not any(turn.text for turn in pair.rejected):
        return None
    return [replace(turn, text=_insert_into_text(turn.text, context.rng)) for turn in pair.rejected]


def _insert_into_text(text: str, rng: np.random.Generator) -> str:
    words = text.split()
    places = set(rng.permutation(len(words))[: math.ceil(_FILLER_SHARE * len(words))].tolist())
    for place in sorted(places):
        words[place] = f"{FILLERS[rng.integers(len(FILLERS))]}, {words[place]}"
    return " ".join(words)


@_attack(
    "spoken_fillers",
    "fillers stuffed at random into the transcript, and some said in the pauses",
    "rejected",
    f"{_WRITTEN}, and {_VOICE}, or recordings of fillers",
    partial(can_load_sound, "filler"),
)
def _speak_fillers(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    """Insert fillers into the transcript, and spoken ones into the pauses, as loud as the turn."""
    turns = _insert_fillers(pair, context)
    if turns is None or not can_load_sound("filler", context.sounds_dir, context.speak):
        return None
    for _ in range(_SPOKEN_FILLERS_PER_TURN):
        turns = [_insert_sound("filler", turn, context) for turn in turns]
    return turns


@_attack("longest", "the last answer said up to four times over", "rejected", "a last turn of at most 30 s")
def _repeat_answer(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    last = pair.rejected[-1]
    times = min(_LONGEST_REPEATS, _MAX_SAMPLES // len(last.array))
    if times < 2:
        return None
    longer = replace(last, text=" ".join([last.text] * times).strip(), array=np.tile(last.array, times))
    return [*pair.rejected[:-1], longer]


@_attack("loudest", "the last answer at full scale", "rejected", "a last turn below 70% of full scale")
def _amplify_answer(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    last = pair.rejected[-1]
    peak = float(np.abs(last.array).max())
    if not 0 < peak < _LOUD_PEAK:
        return None
    return [*pair.rejected[:-1], replace(last, array=last.array * np.float32(_PEAK / peak))]


@_attack("repeated_turns", "the last exchange said again, up to three times", "chosen", "at most 14 turns")
def _repeat_turns(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    # A single answer is not an exchange.
    times = min(3, (MAX_TURNS - len(pair.chosen)) // 2) if len(pair.chosen) > 1 else 0
    return [*pair.chosen, *pair.chosen[-2:] * times] if times else None


@_attack("foreign_ending", "a last turn from another dialogue", "chosen", "another dialogue under the same criterion")
def _replace_ending(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    other = _find_distractor(pair, context, lambda other: other.chosen[-1].role == pair.chosen[-1].role)
    return None if other is None else [*pair.chosen[:-1], other.chosen[-1]]


def _find_distractor(pair: AuditPair, context: AttackContext, suits: Callable[[AuditPair], bool]) -> AuditPair | None:
    """Return a pair of another dialogue under the same criterion, preferably of the same source."""
    fallback = None
    outlines = context.others if context.outlines is None else context.outlines
    for index in context.rng.permutation(len(outlines)).tolist():
        other = outlines[index]
        is_same = other.pair_id == pair.pair_id or (other.group_id is not None and other.group_id == pair.group_id)
        if is_same or other.criterion != pair.criterion or not suits(other):
            continue
        if other.source == pair.source:
            return context.others[index]
        fallback = index if fallback is None else fallback
    return None if fallback is None else context.others[fallback]


@_attack("shuffled", "answers moved to other questions", "chosen", "an even number of turns, at least four")
def _shuffle_turns(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    """Rotate the turns of each role by different amounts, so that no answer keeps its question."""
    num_rounds = len(pair.chosen) // 2
    if num_rounds < 2 or len(pair.chosen) % 2:
        return None
    shifts = context.rng.permutation(num_rounds)[:2].tolist()
    moved = [pair.chosen[role::2][shift:] + pair.chosen[role::2][:shift] for role, shift in enumerate(shifts)]
    return [turn for exchange in zip(*moved, strict=True) for turn in exchange]


@_attack("foreign_transcript", "the transcript of another dialogue", "chosen", f"{_OTHER} with a transcript")
def _replace_transcript(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    def is_written(other: AuditPair) -> bool:
        return all(turn.text for turn in other.chosen)

    # A transcript with repeated words or an early end could be recognised without hearing the audio.
    def is_alike(other: AuditPair) -> bool:
        return is_written(other) and len(other.chosen) == len(pair.chosen)

    other = _find_distractor(pair, context, is_alike) or _find_distractor(pair, context, is_written)
    if other is None:
        return None
    words = [turn.text for turn in other.chosen]
    return [replace(turn, text=words[number % len(words)]) for number, turn in enumerate(pair.chosen)]


@_attack("silence", "silence, with the transcript", "chosen", "a transcript")
def _silence_turns(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    if not any(turn.text for turn in pair.chosen):
        return None
    return [replace(turn, array=np.zeros_like(turn.array)) for turn in pair.chosen]


@_attack("written_demand", f"'{INJECTION}' at the end of the transcript", "rejected")
def _write_demand(pair: AuditPair, context: AttackContext) -> list[Turn]:
    last = pair.rejected[-1]
    return [*pair.rejected[:-1], replace(last, text=f"{last.text} {INJECTION}".strip())]


@_attack(
    "spoken_demand",
    f"'{INJECTION}' spoken before the last turn",
    "rejected",
    f"{_VOICE}, or a recording of the demand",
    partial(can_load_sound, "demand"),
)
def _speak_demand(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    """Put the demand at the start of the last turn, at its level: a model hears the beginning of a turn."""
    if not can_load_sound("demand", context.sounds_dir, context.speak):
        return None
    last = pair.rejected[-1]
    demand = _load_at_level("demand", last, context)
    array = np.concatenate([demand, np.zeros(_PAUSE_SAMPLES, dtype=np.float32), last.array])
    return [*pair.rejected[:-1], replace(last, array=array[:_MAX_SAMPLES])]
