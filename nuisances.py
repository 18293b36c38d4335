"""Change a recording in ways that must not change what is thought of the conversation: level, silence, noise, band.

A judge of dialogues that is moved by one of these listens to the recording instead of the people. Needs NumPy only
(no torch). A new nuisance is an entry of `NUISANCES`; its severities go from weak to strong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .dataset_builder.channel import trim_silence


# Frames this far below the loudest one are pauses, not speech, when the level of a noise is set, in dB.
_TRIM_DB = 35.0
_TELEPHONE_LOW_HZ = 300.0
# Width of the flanks of the telephone band, as a share of the edge's frequency: steeper ones ring.
_FLANK = 0.1


@dataclass(frozen=True)
class Nuisance:
    """One kind of change.

    Args:
        title (`str`): What it does, with `{}` where the severity goes.
        unit (`str`): Unit of the severity; empty for a change that has none.
        severities (`tuple[float, ...]`): Usual severities from weak to strong; empty for a change that has none.
        default (`float`): Severity where none is asked for.
        change (`Callable`): From samples, rate in Hz, severity and source of randomness to samples.
    """

    title: str
    unit: str
    severities: tuple[float, ...]
    default: float
    change: Callable[[np.ndarray, int, float, np.random.Generator], np.ndarray]

    def describe(self, severity: float | None = None) -> str:
        """Return the title with a severity, by default the usual one."""
        return self.title.format(f"{self.default if severity is None else severity:g}")


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
        `np.ndarray` of shape `(num_samples,)`, longer where silence is added; float32. The input is not changed.

    Raises:
        ValueError: There is no such nuisance, or the signal or the severity is none that it can work with.

    Example:
        >>> apply("gain", np.array([1.0, -0.5]), 16_000, -20).tolist() == [np.float32(0.1), np.float32(-0.05)]
        True
        >>> len(apply("leading_silence", np.zeros(100), 16_000, 0.5))
        8100
    """
    if name not in NUISANCES:
        raise ValueError(f"the nuisance is {name!r}; it must be one of {', '.join(sorted(NUISANCES))}.")
    if array.ndim != 1 or not array.size:
        raise ValueError(f"the signal has shape {array.shape}; a mono one with samples is needed, (num_samples,).")
    nuisance = NUISANCES[name]
    value = nuisance.default if severity is None else float(severity)
    changed = nuisance.change(np.asarray(array, dtype=np.float32), sampling_rate, value, np.random.default_rng(seed))
    return np.asarray(changed, dtype=np.float32)


def _gain(array: np.ndarray, sampling_rate: int, severity: float, rng: np.random.Generator) -> np.ndarray:
    """Scale; nothing is clipped."""
    return array * np.float32(10 ** (severity / 20))


def _leading_silence(array: np.ndarray, sampling_rate: int, severity: float, rng: np.random.Generator) -> np.ndarray:
    if severity < 0:
        raise ValueError(f"leading_silence is {severity:g} s; it must be at least 0.")
    return np.concatenate([np.zeros(round(severity * sampling_rate), dtype=np.float32), array])


def _noise(array: np.ndarray, sampling_rate: int, severity: float, rng: np.random.Generator) -> np.ndarray:
    """Add white noise that lies the severity below the speech between its first and last loud frame."""
    speech = trim_silence(array, _TRIM_DB)
    level = np.sqrt(np.mean(np.square(speech, dtype=np.float64))) * 10 ** (-severity / 20)
    return array + rng.standard_normal(len(array), dtype=np.float32) * np.float32(level)


def _telephone_band(array: np.ndarray, sampling_rate: int, severity: float, rng: np.random.Generator) -> np.ndarray:
    """Keep what lies between 300 Hz and the severity, without delay."""
    if severity <= _TELEPHONE_LOW_HZ:
        raise ValueError(f"telephone_band is {severity:g} Hz; its upper edge must be above {_TELEPHONE_LOW_HZ:g}.")
    # Zeros behind the signal: the filter is circular.
    size = len(array) + sampling_rate // 10
    hertz = np.fft.rfftfreq(size, 1 / sampling_rate)
    low = np.interp(hertz, [_TELEPHONE_LOW_HZ * (1 - _FLANK), _TELEPHONE_LOW_HZ], [0.0, 1.0])
    high = np.interp(hertz, [severity, severity * (1 + _FLANK)], [1.0, 0.0])
    return np.fft.irfft(np.fft.rfft(array, size) * low * high, size)[: len(array)]


def _polarity(array: np.ndarray, sampling_rate: int, severity: float, rng: np.random.Generator) -> np.ndarray:
    return -array


NUISANCES: dict[str, Nuisance] = {
    "gain": Nuisance("level {} dB", "dB", (-3.0, -6.0, -12.0), -6.0, _gain),
    "leading_silence": Nuisance("{} s of silence before each turn", "s", (0.1, 0.5, 1.0), 0.5, _leading_silence),
    "noise": Nuisance("noise {} dB below the speech", "dB", (40.0, 30.0, 20.0), 30.0, _noise),
    "telephone_band": Nuisance("band of 300 to {} Hz", "Hz", (3800.0, 3400.0, 3000.0), 3400.0, _telephone_band),
    "polarity": Nuisance("polarity inverted", "", (), 0.0, _polarity),
}
