"""Perturbations: changes of a recording that must not change the judgement of the conversation.

A model whose reward changes with one of these scores the recording instead of the conversation. A new perturbation is
an effect (`effects`, `channel`) and an entry of `PERTURBATIONS`. The entries are in the order from the mouth to the
file, in which `apply_chain` applies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio

from . import channel, effects
from .transform import Transform


@dataclass(frozen=True)
class Perturbation:
    title: str  # With `{}` in place of the severity.
    unit: str  # Empty for an effect without a severity.
    severities: tuple[float, ...]  # From weak to strong, of both signs where both make sense.
    default: float
    limits: tuple[float, float]
    make_effect: Callable[..., Transform]
    keeps_length: bool = True
    is_held_out: bool = False  # The presets of training omit it, so that the audit applies an unseen channel.

    def format_title(self, severity: float | None = None) -> str:
        return self.title.format(f"{self.default if severity is None else severity:g}")

    def draw_severity(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(min(self.severities), max(self.severities))) if self.severities else self.default


def apply(
    name: str, array: np.ndarray, sampling_rate: int, severity: float | None = None, *, seed: int = 0
) -> np.ndarray:
    """Apply a perturbation to a mono recording, which is not changed in place; return float32."""
    (perturbation,) = require_known([name])
    if array.ndim != 1 or not array.size:
        raise ValueError(f"the signal has shape {array.shape}; a mono one with samples is needed, (num_samples,).")
    value = perturbation.default if severity is None else float(severity)
    low, high = perturbation.limits
    if not low <= value <= high:
        unit = f" {perturbation.unit}" if perturbation.unit else ""
        raise ValueError(f"{name} is {value:g}{unit}; it must lie between {low:g} and {high:g}.")
    effect = perturbation.make_effect(value) if perturbation.severities else perturbation.make_effect()
    changed = effect(array, sampling_rate, np.random.default_rng(seed))
    if perturbation.keeps_length:
        # Resampling and codecs may return a few samples more or fewer.
        changed = np.pad(changed[: len(array)], (0, max(len(array) - len(changed), 0)))
    return changed


def require_known(names: Iterable[str]) -> list[Perturbation]:
    unknown = [name for name in names if name not in PERTURBATIONS]
    if unknown:
        raise ValueError(f"the perturbation is {unknown[0]!r}; it must be one of {', '.join(sorted(PERTURBATIONS))}.")
    return [PERTURBATIONS[name] for name in names]


def draw_chain(names: Sequence[str], rng: np.random.Generator) -> list[tuple[str, float]]:
    """Draw one to three different perturbations with severities, in the order of `PERTURBATIONS`."""
    count = rng.integers(1, min(3, len(names)) + 1)
    drawn = set(rng.choice(np.array(names), count, replace=False).tolist())
    return [(name, each.draw_severity(rng)) for name, each in PERTURBATIONS.items() if name in drawn]


def apply_chain(array: np.ndarray, sampling_rate: int, chain: Iterable[tuple[str, float]], *, seed: int) -> np.ndarray:
    for name, severity in chain:
        array = apply(name, array, sampling_rate, severity, seed=seed)
    return array


def change_recordings(
    messages: Sequence[Mapping[str, Any]], change: Callable[[int, np.ndarray], np.ndarray]
) -> list[dict[str, Any]]:
    """Return a dialogue with every recording changed: `change` gets the message number and the 16 kHz samples."""

    def change_item(item: Mapping[str, Any], number: int) -> dict[str, Any]:
        if item.get("audio") is None:
            return dict(item)
        array = change(number, read_audio(item["audio"]))
        return {**item, "audio": {"array": array, "sampling_rate": SAMPLING_RATE}}

    return [
        dict(message)
        if isinstance(message["content"], str)
        else {**message, "content": [change_item(item, number) for item in message["content"]]}
        for number, message in enumerate(messages)
    ]


_S, _DB, _HZ, _RATE = (0.0, 60.0), (-60.0, 60.0), (400.0, 384_000.0), (2000.0, 384_000.0)
_SNR_DB, _ANY = (-20.0, 120.0), (-math.inf, math.inf)
_SILENCES_S, _SNRS_DB = (0.5, 1.0, 2.0), (30.0, 20.0, 10.0)
_add_silence_before = partial(effects.AddSilence, place="before")
_add_silence_after = partial(effects.AddSilence, place="after")
_add_pink_noise = partial(effects.AddNoise, color="pink")
_code_mulaw = partial(channel.MuLaw, clips_input=True)

PERTURBATIONS: dict[str, Perturbation] = {
    "speed": Perturbation(
        "speed (and pitch) {} %", "%", (-1.0, 1.0, -3.0, 3.0), 3.0, (-50.0, 100.0), effects.ChangeSpeed, False
    ),
    "leading_silence": Perturbation(
        "{} s of silence before each turn", "s", _SILENCES_S, 0.5, _S, _add_silence_before, False
    ),
    "trailing_silence": Perturbation(
        "{} s of silence after each turn", "s", _SILENCES_S, 0.5, _S, _add_silence_after, False
    ),
    "reverberation": Perturbation(
        "a room that rings for {} s (RT60)", "s", (0.2, 0.4, 0.8), 0.4, (0.02, 10.0), effects.Reverberate
    ),
    "noise": Perturbation("noise {} dB below the speech", "dB", _SNRS_DB, 30.0, _SNR_DB, effects.AddNoise),
    "pink_noise": Perturbation(
        "pink noise {} dB below the speech", "dB", _SNRS_DB, 30.0, _SNR_DB, _add_pink_noise, is_held_out=True
    ),
    "tilt": Perturbation(
        "equaliser of {} dB per octave", "dB per octave", (-1.0, 1.0, -3.0, 3.0), -3.0, (-24.0, 24.0), effects.Tilt
    ),
    "gain": Perturbation("level {} dB", "dB", (-3.0, 3.0, -6.0, 6.0), -6.0, _DB, effects.Gain),
    "polarity": Perturbation("polarity inverted", "", (), 0.0, _ANY, effects.InvertPolarity),
    "dc_offset": Perturbation(
        "offset of {} of full scale", "of full scale", (0.003, 0.01, 0.03), 0.01, (-1.0, 1.0), effects.AddOffset
    ),
    "clipping": Perturbation("{} % of the samples clipped", "%", (0.1, 1.0, 5.0), 1.0, (0.0, 99.0), effects.Clip),
    "telephone_band": Perturbation(
        "band of 300 to {} Hz", "Hz", (3800.0, 3400.0, 3000.0), 3400.0, _HZ, effects.TelephoneBand
    ),
    "narrow_band": Perturbation(
        "sampled at {} Hz in between",
        "Hz",
        (10_000.0, 8000.0, 6000.0),
        8000.0,
        _RATE,
        effects.Resample,
        is_held_out=True,
    ),
    "resampling": Perturbation(
        "resampled to {} Hz and back", "Hz", (44_100.0, 11_025.0), 44_100.0, _RATE, effects.Resample
    ),
    "mulaw": Perturbation("mu-law at 8 kHz with {} bits", "bits", (8.0, 7.0, 6.0), 8.0, (2.0, 16.0), _code_mulaw),
    "mp3": Perturbation("MP3 of {} kbit/s", "kbit/s", (64.0, 32.0, 16.0), 32.0, (12.0, 110.0), channel.make_mp3),
    "opus": Perturbation(
        "Opus of {} kbit/s", "kbit/s", (32.0, 16.0, 8.0), 16.0, (6.0, 256.0), channel.make_opus, is_held_out=True
    ),
}
# A noise, a band and a codec: each has a relative among the channels of training, which the audit compares it with.
HELD_OUT = tuple(name for name, perturbation in PERTURBATIONS.items() if perturbation.is_held_out)
