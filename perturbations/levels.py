"""Measure and set the level of a signal, and trim silence around speech."""

from __future__ import annotations

import math

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE


_FRAME_SAMPLES = SAMPLING_RATE // 100
_TRIM_MARGIN_FRAMES = 5


def measure_level(samples: np.ndarray) -> float:
    """Return the root mean square of a signal, 0 without samples."""
    return math.sqrt(np.mean(np.square(samples, dtype=np.float64))) if samples.size else 0.0


def scale_to_level(samples: np.ndarray, level: float) -> np.ndarray:
    """Scale a signal to a root mean square; silence stays silence."""
    return samples * (level / max(measure_level(samples), 1e-9))


def trim_silence(array: np.ndarray, trim_db: float) -> np.ndarray:
    """Cut frames of 10 ms more than `trim_db` below the loudest before and after the speech; keep 50 ms of margin."""
    num_frames = len(array) // _FRAME_SAMPLES
    if num_frames == 0:
        return array
    power = np.square(array[: num_frames * _FRAME_SAMPLES].reshape(num_frames, -1)).mean(axis=1)
    loud = np.flatnonzero(power > power.max() * 10 ** (-trim_db / 10))
    if loud.size == 0:
        return array
    start = max(loud[0] - _TRIM_MARGIN_FRAMES, 0) * _FRAME_SAMPLES
    end = min(loud[-1] + 1 + _TRIM_MARGIN_FRAMES, num_frames + 1) * _FRAME_SAMPLES
    return array[start:end]
