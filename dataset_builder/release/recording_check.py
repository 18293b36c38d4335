"""The fingerprint of each recorded part and synthetic turn in a release, to check a copy by.

The digest is equal for the same samples only. Where it differs, coarse energies separate another encoding of the same
recording, or its beginning, from another recording. Neither can be played.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.perturbations.levels import measure_level


Kind = Literal["same", "reencoded", "truncated", "wrong"]

_FRAME_SAMPLES = SAMPLING_RATE // 20
_BAND_EDGES_HZ = (200, 500, 1000, 1800, 3200)
# In half decibels below the loudest frame: codecs change what is softer.
_RANGE = 80
# Measured on 331 parts of the bundled sample: another encoding, from MP3 at 10 kbit/s to Opus at 24, correlates by
# 0.95 or more (0.985 above 10 kbit/s); the same recording from 100 ms on by up to 0.85, another recording by 0.64 (the
# 99th percentile: prompts are repeated). A copy that a codec delays by more than about 10 ms counts as another one.
MIN_CORRELATION = 0.9
# Encoders add silence at both ends.
TOLERANCE_S = 0.15


def describe(array: np.ndarray) -> dict[str, Any]:
    """Return duration, level, digest and coarse energies of 16 kHz mono samples, before any channel."""
    samples = np.round(array * 2.0**15).astype("<i4").tobytes()
    return {
        "duration_s": array.size / SAMPLING_RATE,
        "level_dbfs": 20 * math.log10(max(measure_level(array), 1e-5)),
        "digest": hashlib.sha256(samples).hexdigest()[:32],
        "energies": _measure_energies(array).tolist(),
    }


def _measure_energies(array: np.ndarray) -> np.ndarray:
    """Return the energy of each band of each 50 ms, in half decibels above -100 dBFS, frame by frame."""
    frames = np.pad(array, (0, -array.size % _FRAME_SAMPLES)).reshape(-1, _FRAME_SAMPLES)
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(_FRAME_SAMPLES))) ** 2 / _FRAME_SAMPLES**2
    edges = [round(hertz * _FRAME_SAMPLES / SAMPLING_RATE) for hertz in _BAND_EDGES_HZ]
    energies = np.add.reduceat(spectrum[:, : edges[-1]], edges[:-1], axis=1)
    return np.clip(np.round(200 + 20 * np.log10(energies + 1e-12)), 0, 255).astype(np.uint8).ravel()


def correlate(expected: Sequence[int], found: Sequence[int]) -> float:
    """Return the correlation of the common beginning of two lists of energies, whatever their levels."""
    size = min(len(expected), len(found))
    one, other = (np.array(values[:size], dtype=np.float64) for values in (expected, found))
    one, other = (np.maximum(values, values.max(initial=0) - _RANGE) for values in (one, other))
    one, other = one - one.mean(), other - other.mean()
    return float(one @ other / max(np.sqrt((one @ one) * (other @ other)), 1e-9))


def compare(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Kind:
    """Compare a recording with the expected one."""
    if found["digest"] == expected["digest"]:
        return "same"
    missing_s = expected["duration_s"] - found["duration_s"]
    if missing_s < -TOLERANCE_S or correlate(expected["energies"], found["energies"]) < MIN_CORRELATION:
        return "wrong"
    return "truncated" if missing_s > TOLERANCE_S else "reencoded"
