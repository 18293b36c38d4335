"""Attacks on a reward: changes of a dialogue that must not pay, each built from a pair and nothing else.

An attack on the rejected side tries to lift it: it pays if its reward reaches the chosen side's where it did not
before. An attack on the chosen side breaks its content or its voice and keeps the rest: it pays if the broken dialogue
is not rewarded less than the intact one. What an attack builds is a valid dialogue: the roles take turns, at most 16
turns, each at most 60 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.pairs.schema import MAX_TURN_S, MAX_TURNS
from sdiareward.synthesis import Synthesizer, is_available, load_synthesizer

from . import attack_sounds as sounds
from .decoded_pairs import AuditPair, Turn
from .filters import level


_MAX_SAMPLES = round(MAX_TURN_S * SAMPLING_RATE)
# Donors that are looked at before an attack is given up.
_NUM_TRIES = 20
# Share of the words that get a filler.
_FILLER_SHARE = 0.25
_CLICKS_A_TURN, _SPOKEN_FILLERS_A_TURN = 4, 2
# Level of a breath below that of the turn, in dB.
_BREATH_DB = -10.0
# Voice of the vocoder that keeps most of the intonation.
_WORLD_VOICE = 2
_LONGEST_REPEATS = 4
_PEAK, _LOUD_PEAK = 0.99, 0.7
_PAUSE_SAMPLES = SAMPLING_RATE // 5


@dataclass(frozen=True)
class AttackContext:
    """What an attack may use beside the pair.

    Args:
        rng (`np.random.Generator`): Source of randomness.
        others (`Sequence[AuditPair]`): Pairs to take turns and words from; the attacked one may be among them.
        heard_s (`float`, *optional*): How much of each turn the model hears, in seconds: a sound is placed within it.
        sounds_dir (`str` or `Path`, *optional*): Recordings in place of made sounds; see `attack_sounds.load_sound`.
    """

    rng: np.random.Generator
    others: Sequence[AuditPair] = ()
    heard_s: float = math.inf
    sounds_dir: str | Path | None = None


@dataclass(frozen=True)
class Attack:
    """One attack.

    Args:
        title (`str`): What it does.
        baseline (`str`): `"chosen"` or `"rejected"`: the side that is attacked.
        against (`str`): What the attacked version is compared with: `"chosen"`, the chosen side; `"self"`, the
            attacked side as it was.
        needs (`str`): What a pair must have, and the machine; empty for an attack that applies everywhere.
        build (`Callable`): From a pair and a context to the attacked dialogue; None where something is missing that it
            needs. Nothing of the pair is changed in place.
        is_possible (`Callable`): From the folder of recordings, or None, to whether this machine has what it needs,
            whatever the pair.
    """

    title: str
    baseline: str
    against: str
    needs: str
    build: Callable[[AuditPair, AttackContext], list[Turn] | None]
    is_possible: Callable[[str | Path | None], bool] = lambda sounds_dir: True


def is_heard(before: Sequence[Turn], after: Sequence[Turn], heard_s: float) -> bool:
    """Tell whether a model that hears the first `heard_s` seconds of each turn is given anything else than before."""
    num_samples = None if math.isinf(heard_s) else round(heard_s * SAMPLING_RATE)

    def given(turns: Sequence[Turn]) -> list[tuple[str, str, bytes]]:
        return [(turn.role, turn.text, turn.array[:num_samples].tobytes()) for turn in turns]

    return given(before) != given(after)


def _add_noise_floor(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    return _with_noise_floor(pair.rejected, pair, context)


def _vocode(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    if pair.criterion != "modality" or not is_available("world"):
        return None
    world = load_synthesizer("world")
    assert isinstance(world, Synthesizer)
    speech = [world.speak(turn.text, voice=_WORLD_VOICE, reference=turn.array) for turn in pair.chosen]
    turns = [replace(turn, array=array) for turn, array in zip(pair.chosen, speech, strict=True)]
    return _with_noise_floor(turns, pair, context)


def _with_noise_floor(turns: Sequence[Turn], pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    floor = sounds.estimate_noise_floor([turn.array for turn in pair.chosen])
    if pair.criterion != "modality" or floor is None:
        return None
    return [replace(turn, array=turn.array + sounds.make_noise(floor, len(turn.array), context.rng)) for turn in turns]


def _add_clicks(pair: AuditPair, context: AttackContext) -> list[Turn]:
    def add(turn: Turn) -> Turn:
        array = turn.array.copy()
        for _ in range(_CLICKS_A_TURN):
            click = sounds.load_sound("click", context.rng, context.sounds_dir)
            start = context.rng.integers(max(1, _heard_samples(len(array), context) - len(click)))
            part = array[start : start + len(click)]
            part += click[: len(part)] * np.float32(np.abs(turn.array).max())
        return replace(turn, array=array)

    return [add(turn) for turn in pair.rejected]


def _insert_breaths(pair: AuditPair, context: AttackContext) -> list[Turn]:
    gain = 10 ** (_BREATH_DB / 20)
    return [_insert_sound(turn, "breath", gain, context) for turn in pair.rejected]


def _insert_laughter(pair: AuditPair, context: AttackContext) -> list[Turn]:
    return [
        _insert_sound(turn, "laughter", 1.0, context) if turn.role == "assistant" else turn for turn in pair.rejected
    ]


def _insert_sound(turn: Turn, name: str, gain: float, context: AttackContext) -> Turn:
    """Splice a sound into the quietest moment of what is heard of a turn, as loud as the turn times a gain."""
    sound = sounds.load_sound(name, context.rng, context.sounds_dir)
    sound = sound * np.float32(gain * level(turn.array) / max(level(sound), 1e-9))
    latest = max(1, _heard_samples(len(turn.array) + len(sound), context) - len(sound))
    start = _quietest_sample(turn.array[:latest])
    array = np.concatenate([turn.array[:start], sound, turn.array[start:]])
    return replace(turn, array=array[:_MAX_SAMPLES])


def _quietest_sample(array: np.ndarray) -> int:
    """Return where the quietest 20 ms begin."""
    size = SAMPLING_RATE // 50
    frames = array[: len(array) // size * size].reshape(-1, size)
    return int(np.square(frames).sum(axis=1).argmin()) * size if len(frames) else 0


def _heard_samples(num_samples: int, context: AttackContext) -> int:
    return int(min(num_samples, context.heard_s * SAMPLING_RATE))


def _stuff_fillers(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    if pair.criterion != "colloquialness" or not any(turn.text for turn in pair.rejected):
        return None
    return [replace(turn, text=_stuff(turn.text, context.rng)) for turn in pair.rejected]


def _stuff(text: str, rng: np.random.Generator) -> str:
    words = text.split()
    places = set(rng.permutation(len(words))[: math.ceil(_FILLER_SHARE * len(words))].tolist())
    for place in sorted(places):
        words[place] = f"{sounds.FILLERS[rng.integers(len(sounds.FILLERS))]}, {words[place]}"
    return " ".join(words)


def _say_fillers(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    """Stuff the transcript, and put spoken fillers into the pauses of what is heard, as loud as the turn."""
    stuffed = _stuff_fillers(pair, context)
    if stuffed is None or not sounds.is_at_hand("filler", context.sounds_dir):
        return None
    for _ in range(_SPOKEN_FILLERS_A_TURN):
        stuffed = [_insert_sound(turn, "filler", 1.0, context) for turn in stuffed]
    return stuffed


def _lengthen(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    last = pair.rejected[-1]
    times = min(_LONGEST_REPEATS, _MAX_SAMPLES // len(last.array))
    if times < 2:
        return None
    longer = replace(last, text=" ".join([last.text] * times).strip(), array=np.tile(last.array, times))
    return [*pair.rejected[:-1], longer]


def _make_loud(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    last = pair.rejected[-1]
    peak = float(np.abs(last.array).max())
    if not 0 < peak < _LOUD_PEAK:
        return None
    return [*pair.rejected[:-1], replace(last, array=last.array * np.float32(_PEAK / peak))]


def _repeat_turns(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    times = min(3, (MAX_TURNS - len(pair.chosen)) // 2)
    return [*pair.chosen, *pair.chosen[-2:] * times] if times else None


def _end_elsewhere(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    donor = _find_donor(pair, context, lambda other: other.chosen[-1].role == pair.chosen[-1].role)
    return None if donor is None else [*pair.chosen[:-1], donor.chosen[-1]]


def _find_donor(
    pair: AuditPair, context: AttackContext, suits: Callable[[AuditPair], bool] = lambda other: True
) -> AuditPair | None:
    """Return a pair of another dialogue under the same criterion, of the same source where one is soon found."""
    fallback = None
    for index in context.rng.permutation(len(context.others))[:_NUM_TRIES].tolist():
        other = context.others[index]
        is_same = other.pair_id == pair.pair_id or (other.group_id is not None and other.group_id == pair.group_id)
        if is_same or other.criterion != pair.criterion or not suits(other):
            continue
        if other.source == pair.source:
            return other
        fallback = fallback or other
    return fallback


def _shuffle(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    """Move the turns of each role on by a number of places, another one for each: no answer keeps its question."""
    num_rounds = len(pair.chosen) // 2
    if num_rounds < 2:
        return None
    shifts = context.rng.permutation(num_rounds)[:2].tolist()
    moved = [pair.chosen[role::2][shift:] + pair.chosen[role::2][:shift] for role, shift in enumerate(shifts)]
    return [turn for exchange in zip(*moved, strict=True) for turn in exchange]


def _swap_transcript(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    donor = _find_donor(pair, context, lambda other: all(turn.text for turn in other.chosen))
    if donor is None:
        return None
    words = [turn.text for turn in donor.chosen]
    return [replace(turn, text=words[number % len(words)]) for number, turn in enumerate(pair.chosen)]


def _silence(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    if not any(turn.text for turn in pair.chosen):
        return None
    return [replace(turn, array=np.zeros_like(turn.array)) for turn in pair.chosen]


def _demand_in_writing(pair: AuditPair, context: AttackContext) -> list[Turn]:
    last = pair.rejected[-1]
    return [*pair.rejected[:-1], replace(last, text=f"{last.text} {sounds.INJECTION}".strip())]


def _demand_aloud(pair: AuditPair, context: AttackContext) -> list[Turn] | None:
    """Put the demand before the last turn, as loud as that is: what is heard of a turn is its beginning."""
    if not sounds.is_at_hand("demand", context.sounds_dir):
        return None
    demand = sounds.load_sound("demand", context.rng, context.sounds_dir)
    last = pair.rejected[-1]
    demand = demand * np.float32(level(last.array) / max(level(demand), 1e-9))
    array = np.concatenate([demand, np.zeros(_PAUSE_SAMPLES, dtype=np.float32), last.array])
    return [*pair.rejected[:-1], replace(last, array=array[:_MAX_SAMPLES])]


_VOICE = "a synthesizer that speaks offline, such as espeakng-loader (the extra `build`)"
_REAL = "a modality pair whose recording is not digitally silent"

ATTACKS: dict[str, Attack] = {
    "noise_floor": Attack(
        "synthesised speech with the recording's noise floor", "rejected", "chosen", _REAL, _add_noise_floor
    ),
    "vocoded": Attack(
        "the recording through a vocoder, with its noise floor",
        "chosen",
        "self",
        f"{_REAL}, and pyworld (the extra `build`)",
        _vocode,
        lambda sounds_dir: is_available("world"),
    ),
    "clicks": Attack("clicks pasted in", "rejected", "chosen", "", _add_clicks),
    "breaths": Attack("breaths pasted in", "rejected", "chosen", "", _insert_breaths),
    "laughter": Attack("laughter pasted into the answers", "rejected", "chosen", "", _insert_laughter),
    "fillers": Attack(
        "fillers stuffed at random into the transcript",
        "rejected",
        "chosen",
        "a colloquialness pair with a transcript",
        _stuff_fillers,
    ),
    "spoken_fillers": Attack(
        "fillers stuffed at random into the transcript, and some said in the pauses",
        "rejected",
        "chosen",
        f"a colloquialness pair with a transcript, and {_VOICE}, or recordings of fillers",
        _say_fillers,
        partial(sounds.is_at_hand, "filler"),
    ),
    "longest": Attack(
        "the last answer said up to four times over",
        "rejected",
        "chosen",
        "a last turn of at most 30 s",
        _lengthen,
    ),
    "loudest": Attack(
        "the last answer at full scale", "rejected", "chosen", "a last turn below 70% of full scale", _make_loud
    ),
    "repeated_turns": Attack(
        "the last exchange said again, up to three times", "chosen", "self", "at most 14 turns", _repeat_turns
    ),
    "foreign_ending": Attack(
        "a last turn from another dialogue",
        "chosen",
        "self",
        "another dialogue under the same criterion",
        _end_elsewhere,
    ),
    "shuffled": Attack("answers moved to other questions", "chosen", "self", "at least four turns", _shuffle),
    "foreign_transcript": Attack(
        "the transcript of another dialogue",
        "chosen",
        "self",
        "another dialogue under the same criterion with a transcript",
        _swap_transcript,
    ),
    "silence": Attack("silence, with the transcript", "chosen", "self", "a transcript", _silence),
    "written_demand": Attack(
        f"'{sounds.INJECTION}' at the end of the transcript", "rejected", "chosen", "", _demand_in_writing
    ),
    "spoken_demand": Attack(
        f"'{sounds.INJECTION}' spoken before the last turn",
        "rejected",
        "chosen",
        f"{_VOICE}, or a recording of the demand",
        _demand_aloud,
        partial(sounds.is_at_hand, "demand"),
    ),
}
