"""Effects that only attacks use: the noise floor of a recording, clicks, an inserted sound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, resample

from .attack_sounds import load_sound
from .levels import measure_level, scale_to_level
from .transform import Transform


_FRAME_SAMPLES = 512
# Share of the frames, the quietest, that hold the noise floor.
_FLOOR_SHARE = 0.1


@dataclass(frozen=True)
class AddNoiseFloor(Transform):
    """Add noise with the spectrum and the level of a noise floor."""

    power: tuple[float, ...]  # Mean power of the 257 bins of a windowed frame of 512 samples.

    @classmethod
    def estimate(cls, arrays: Sequence[np.ndarray]) -> AddNoiseFloor | None:
        """Return the noise floor of recordings at one rate, from their quietest frames; None if these are silent."""
        frames = np.concatenate(
            [array[: len(array) // _FRAME_SAMPLES * _FRAME_SAMPLES].reshape(-1, _FRAME_SAMPLES) for array in arrays]
        )
        if not len(frames):
            return None
        power = np.square(frames, dtype=np.float64).mean(axis=1)
        quietest = frames[np.argsort(power)[: max(1, round(_FLOOR_SHARE * len(frames)))]]
        spectrum = np.square(np.abs(np.fft.rfft(quietest * np.hanning(_FRAME_SAMPLES)))).mean(axis=0)
        return cls(tuple(spectrum.tolist())) if spectrum.any() else None

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        num_samples, num_bins = len(samples), len(self.power)
        gains = np.sqrt(np.array(self.power) / np.square(np.hanning(_FRAME_SAMPLES)).sum())
        bins = np.linspace(0, num_bins - 1, num_samples // 2 + 1)
        white = np.fft.rfft(rng.standard_normal(num_samples))
        noise = np.fft.irfft(white * np.interp(bins, np.arange(num_bins), gains), num_samples)
        return samples + noise.astype(np.float32)


@dataclass(frozen=True)
class AddClicks(Transform):
    """Add clicks at random places, as loud as the peak of the signal."""

    num_clicks: int
    heard_s: float = math.inf  # Place them within this time.
    sounds_dir: str | None = None

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        changed = samples.copy()
        peak = np.float32(np.abs(samples).max())
        num_heard = int(min(len(samples), self.heard_s * sampling_rate))
        for _ in range(self.num_clicks):
            click = resample(load_sound("click", rng, self.sounds_dir), SAMPLING_RATE, sampling_rate)
            start = rng.integers(max(1, num_heard - len(click)))
            part = changed[start : start + len(click)]
            part += click[: len(part)] * peak
        return changed


@dataclass(frozen=True)
class InsertSound(Transform):
    """Insert a sound of `attack_sounds` at the quietest moment of the signal."""

    sound: str
    gain_db: float = 0.0  # Above the level of the signal.
    heard_s: float = math.inf
    sounds_dir: str | None = None

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        sound = resample(load_sound(self.sound, rng, self.sounds_dir), SAMPLING_RATE, sampling_rate)
        sound = scale_to_level(sound, 10 ** (self.gain_db / 20) * measure_level(samples))
        return insert_at_quietest(samples, sound, sampling_rate, self.heard_s)


def insert_at_quietest(samples: np.ndarray, sound: np.ndarray, sampling_rate: int, heard_s: float) -> np.ndarray:
    """Insert a sound at the quietest moment at which it ends within `heard_s`."""
    num_heard = int(min(len(samples) + len(sound), heard_s * sampling_rate))
    start = _find_quietest(samples[: max(1, num_heard - len(sound))], sampling_rate)
    return np.concatenate([samples[:start], sound, samples[start:]])


def _find_quietest(array: np.ndarray, sampling_rate: int) -> int:
    """Return the first sample of the quietest 20 ms."""
    size = sampling_rate // 50
    frames = array[: len(array) // size * size].reshape(-1, size)
    return int(np.square(frames).sum(axis=1).argmin()) * size if len(frames) else 0
