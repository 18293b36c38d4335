"""Fingerprints of recorded parts and synthetic turns in a release, for checking copies.

The digest identifies equal samples. If it differs, coarse energies separate another encoding of the recording, or its
beginning, from a different recording. Neither can be turned back into audio.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.perturbations.effects import measure_level


_Name = TypeVar("_Name")
Kind = Literal["same", "reencoded", "truncated", "wrong"]

_FRAME_SAMPLES = SAMPLING_RATE // 20
_BAND_EDGES_HZ = (200, 500, 1000, 1800, 3200)
# In half decibels below the loudest frame; codecs change softer sounds.
_RANGE = 80
# Measured on 331 parts of the bundled sample: other encodings (from MP3 at 10 kbit/s to Opus at 24) correlate with at
# least 0.95 (0.985 above 10 kbit/s), the recording without its first 100 ms with at most 0.85, other recordings with
# 0.64 (99th percentile: prompts are repeated). A copy delayed by more than about 10 ms counts as another recording.
MIN_CORRELATION = 0.9
# Encoders add silence at both ends.
TOLERANCE_S = 0.15
# Limits for copies; short recordings of different words can correlate like copies.
COPY_S = (2.0, 8.0)
_BLOCK = 256
# Padding at the end changes the correlation slightly.
_MAYBE = MIN_CORRELATION - 0.1


def describe(array: np.ndarray) -> dict[str, Any]:
    """Return duration, level, digest and coarse energies of 16 kHz mono samples, before channel matching."""
    samples = np.round(array * 2.0**15).astype("<i4").tobytes()
    return {
        "duration_s": array.size / SAMPLING_RATE,
        "level_dbfs": 20 * math.log10(max(measure_level(array), 1e-5)),
        "digest": hashlib.sha256(samples).hexdigest()[:32],
        "energies": measure_energies(array).tolist(),
    }


def measure_energies(array: np.ndarray) -> np.ndarray:
    """Return the energy per band and 50 ms frame, in half decibels above -100 dBFS."""
    frames = np.pad(array, (0, -array.size % _FRAME_SAMPLES)).reshape(-1, _FRAME_SAMPLES)
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(_FRAME_SAMPLES))) ** 2 / _FRAME_SAMPLES**2
    edges = [round(hertz * _FRAME_SAMPLES / SAMPLING_RATE) for hertz in _BAND_EDGES_HZ]
    energies = np.add.reduceat(spectrum[:, : edges[-1]], edges[:-1], axis=1)
    return np.clip(np.round(200 + 20 * np.log10(energies + 1e-12)), 0, 255).astype(np.uint8).ravel()


def correlate(expected: Sequence[int] | np.ndarray, found: Sequence[int] | np.ndarray) -> float:
    """Return the level-independent correlation of the common beginning of two lists of energies."""
    size = min(len(expected), len(found))
    return float(_normalise(expected[:size]) @ _normalise(found[:size]))


def _normalise(energies: Sequence[int] | np.ndarray) -> np.ndarray:
    values = np.array(energies, dtype=np.float64)
    values = np.maximum(values, values.max(initial=0) - _RANGE)
    values -= values.mean() if values.size else 0
    return values / max(float(np.linalg.norm(values)), 1e-9)


def find_copies(recordings: Mapping[_Name, tuple[float, np.ndarray]]) -> Iterator[tuple[_Name, _Name]]:
    """Yield the names of any two recordings (given with seconds and energies) that encode the same audio.

    Only recordings of equal duration, at least the first of `COPY_S`, are compared.
    """
    order = sorted((item for item in recordings.items() if item[1][0] >= COPY_S[0]), key=lambda item: item[1][0])
    seconds = [found for _, (found, _) in order]
    for start in range(0, len(order), _BLOCK):
        last = min(start + _BLOCK, len(order)) - 1
        near = order[start : bisect_right(seconds, seconds[last] + TOLERANCE_S)]
        shapes = np.zeros((len(near), max(energies.size for _, (_, energies) in near)), np.float32)
        for row, (_, (_, energies)) in enumerate(near):
            shapes[row, : energies.size] = _normalise(energies)
        for row, column in np.argwhere(np.triu(shapes[: last + 1 - start] @ shapes.T, 1) >= _MAYBE).tolist():
            (name, one), (other, two) = near[row], near[column]
            if two[0] - one[0] <= TOLERANCE_S and correlate(one[1], two[1]) >= MIN_CORRELATION:
                yield name, other


def compare(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Kind:
    """Compare a recording with the expected one."""
    if found["digest"] == expected["digest"]:
        return "same"
    missing_s = expected["duration_s"] - found["duration_s"]
    if missing_s < -TOLERANCE_S or correlate(expected["energies"], found["energies"]) < MIN_CORRELATION:
        return "wrong"
    return "truncated" if missing_s > TOLERANCE_S else "reencoded"
