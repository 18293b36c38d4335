"""Change a recording in ways that must not change what is thought of the conversation: level, room, noise, coding.

A judge of dialogues that is moved by one of these listens to the recording instead of the people. Needs no torch. A
new nuisance is a function in `nuisance_filters` and an entry of `NUISANCES`; its severities go from weak to strong.
The entries stand in the order in which things happen on the way from the mouth to the file, in which `apply_chain`
makes several of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio

from . import filters as filters


@dataclass(frozen=True)
class Nuisance:
    """One kind of change.

    Args:
        title (`str`): What it does, with `{}` where the severity goes.
        unit (`str`): Unit of the severity; empty for a change that has none.
        severities (`tuple[float, ...]`): Usual severities from weak to strong, of both signs where both make sense;
            empty for a change that has none.
        default (`float`): Severity where none is asked for.
        limits (`tuple[float, float]`): Lowest and highest severity that it can work with.
        change (`Callable`): From samples, rate in Hz, severity and source of randomness to samples.
        keeps_length (`bool`): Whether there are as many samples after it as before.
    """

    title: str
    unit: str
    severities: tuple[float, ...]
    default: float
    limits: tuple[float, float]
    change: Callable[[np.ndarray, int, float, np.random.Generator], np.ndarray]
    keeps_length: bool = True

    def describe(self, severity: float | None = None) -> str:
        """Return the title with a severity, by default the usual one."""
        return self.title.format(f"{self.default if severity is None else severity:g}")

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a severity anywhere between the usual ones, of either sign where both are usual."""
        return float(rng.uniform(min(self.severities), max(self.severities))) if self.severities else self.default


def apply(
    name: str, array: np.ndarray, sampling_rate: int, severity: float | None = None, *, seed: int = 0
) -> np.ndarray:
    """Change a recording.

    Args:
        name (`str`): Which change, a key of `NUISANCES`.
        array (`np.ndarray` of shape `(num_samples,)`): Mono signal.
        sampling_rate (`int`): Its rate, in Hz.
        severity (`float`, *optional*): In the unit of the nuisance; by default its `default`.
        seed (`int`, *optional*, defaults to 0): Of what is random; the same seed gives the same samples.

    Returns:
        `np.ndarray` of shape `(num_samples,)`, longer where silence is added, shorter or longer where the speed
        changes; float32. The input is not changed.

    Raises:
        ValueError: There is no such nuisance, or the signal or the severity is none that it can work with.

    Example:
        >>> apply("gain", np.array([1.0, -0.5]), 16_000, -20).tolist() == [np.float32(0.1), np.float32(-0.05)]
        True
        >>> len(apply("leading_silence", np.zeros(100), 16_000, 0.5))
        8100
    """
    (nuisance,) = require_known([name])
    if array.ndim != 1 or not array.size:
        raise ValueError(f"the signal has shape {array.shape}; a mono one with samples is needed, (num_samples,).")
    value = nuisance.default if severity is None else float(severity)
    low, high = nuisance.limits
    if not low <= value <= high:
        unit = f" {nuisance.unit}" if nuisance.unit else ""
        raise ValueError(f"{name} is {value:g}{unit}; it must lie between {low:g} and {high:g}.")
    changed = nuisance.change(np.asarray(array, dtype=np.float32), sampling_rate, value, np.random.default_rng(seed))
    return np.asarray(changed, dtype=np.float32)


def require_known(names: Iterable[str]) -> list[Nuisance]:
    """Return the nuisances of these names.

    Raises:
        ValueError: There is no nuisance of a name.
    """
    unknown = [name for name in names if name not in NUISANCES]
    if unknown:
        raise ValueError(f"the nuisance is {unknown[0]!r}; it must be one of {', '.join(sorted(NUISANCES))}.")
    return [NUISANCES[name] for name in names]


def draw_chain(names: Sequence[str], rng: np.random.Generator, max_changes: int = 3) -> list[tuple[str, float]]:
    """Draw one to `max_changes` different changes with their severities, in the order of `NUISANCES`.

    Args:
        names (`Sequence[str]`): Among which.
        rng (`np.random.Generator`): Source of randomness.
        max_changes (`int`, *optional*, defaults to 3): At most so many.
    """
    count = rng.integers(1, min(max_changes, len(names)) + 1)
    drawn = set(rng.choice(np.array(names), count, replace=False).tolist())
    return [(name, nuisance.draw(rng)) for name, nuisance in NUISANCES.items() if name in drawn]


def apply_chain(array: np.ndarray, sampling_rate: int, chain: Iterable[tuple[str, float]], *, seed: int) -> np.ndarray:
    """Apply changes one after another, as `draw_chain` gives them; otherwise as `apply`."""
    for name, severity in chain:
        array = apply(name, array, sampling_rate, severity, seed=seed)
    return array


def change_recordings(
    messages: Sequence[Mapping[str, Any]], change: Callable[[int, np.ndarray], np.ndarray]
) -> list[dict[str, Any]]:
    """Return a dialogue with every recording changed.

    Args:
        messages (`list[dict]`): Messages as the processor takes them; they stay as they are.
        change (`Callable`): From the number of the message and its samples, 16 kHz mono, to other samples.

    Raises:
        AudioError, FileNotFoundError, TypeError: A recording cannot be read; see `audio_sdiareward.read_audio`.
    """

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

NUISANCES: dict[str, Nuisance] = {
    "speed": Nuisance(
        "speed (and pitch) {} %", "%", (-1.0, 1.0, -3.0, 3.0), 3.0, (-50.0, 100.0), filters.change_speed, False
    ),
    "leading_silence": Nuisance(
        "{} s of silence before each turn", "s", (0.5, 1.0, 2.0), 0.5, _S, filters.add_leading_silence, False
    ),
    "trailing_silence": Nuisance(
        "{} s of silence after each turn", "s", (0.5, 1.0, 2.0), 0.5, _S, filters.add_trailing_silence, False
    ),
    "reverberation": Nuisance(
        "a room that rings for {} s (RT60)", "s", (0.2, 0.4, 0.8), 0.4, (0.02, 10.0), filters.reverberate
    ),
    "noise": Nuisance(
        "noise {} dB below the speech", "dB", (30.0, 20.0, 10.0), 30.0, _SNR_DB, filters.add_white_noise
    ),
    "pink_noise": Nuisance(
        "pink noise {} dB below the speech", "dB", (30.0, 20.0, 10.0), 30.0, _SNR_DB, filters.add_pink_noise
    ),
    "tilt": Nuisance(
        "equaliser of {} dB per octave", "dB per octave", (-1.0, 1.0, -3.0, 3.0), -3.0, (-24.0, 24.0), filters.tilt
    ),
    "gain": Nuisance("level {} dB", "dB", (-3.0, 3.0, -6.0, 6.0), -6.0, _DB, filters.change_level),
    "polarity": Nuisance("polarity inverted", "", (), 0.0, _ANY, filters.invert),
    "dc_offset": Nuisance(
        "offset of {} of full scale", "of full scale", (0.003, 0.01, 0.03), 0.01, (-1.0, 1.0), filters.shift
    ),
    "clipping": Nuisance("{} % of the samples clipped", "%", (0.1, 1.0, 5.0), 1.0, (0.0, 99.0), filters.clip),
    "telephone_band": Nuisance(
        "band of 300 to {} Hz", "Hz", (3800.0, 3400.0, 3000.0), 3400.0, _HZ, filters.limit_to_telephone_band
    ),
    "narrow_band": Nuisance(
        "sampled at {} Hz in between", "Hz", (10_000.0, 8000.0, 6000.0), 8000.0, _RATE, filters.resample_and_back
    ),
    "resampling": Nuisance(
        "resampled to {} Hz and back", "Hz", (44_100.0, 11_025.0), 44_100.0, _RATE, filters.resample_and_back
    ),
    "mulaw": Nuisance(
        "mu-law at 8 kHz with {} bits", "bits", (8.0, 7.0, 6.0), 8.0, (2.0, 16.0), filters.code_as_mulaw
    ),
    "mp3": Nuisance("MP3 of {} kbit/s", "kbit/s", (64.0, 32.0, 16.0), 32.0, (12.0, 110.0), filters.code_as_mp3),
    "opus": Nuisance("Opus of {} kbit/s", "kbit/s", (32.0, 16.0, 8.0), 16.0, (6.0, 256.0), filters.code_as_opus),
}
