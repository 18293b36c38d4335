"""Analysis and synthesis of speech with the WORLD vocoder (`pyworld`, MIT)."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE


def can_vocode() -> bool:
    """Return whether `pyworld` and its imports are installed."""
    return all(find_spec(name) is not None for name in ("pyworld", "pkg_resources"))


def load_world() -> Any:
    """Import `pyworld` without its warning."""
    with warnings.catch_warnings():
        # pyworld imports pkg_resources, which warns of its removal; setuptools is held below 81 for it.
        warnings.simplefilter("ignore", UserWarning)
        import pyworld

    return pyworld


def analyze_speech(array: np.ndarray, frame_period_ms: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pitch in Hz `(num_frames,)`, 0 if unvoiced; envelope and aperiodicity `(num_frames, num_bins)`."""
    world, signal = load_world(), array.astype(np.float64)
    pitch, times = world.dio(signal, SAMPLING_RATE, frame_period=frame_period_ms)
    pitch = world.stonemask(signal, pitch, times, SAMPLING_RATE)
    envelope = world.cheaptrick(signal, pitch, times, SAMPLING_RATE)
    return pitch, envelope, world.d4c(signal, pitch, times, SAMPLING_RATE)


def synthesize_speech(
    pitch: np.ndarray, envelope: np.ndarray, aperiodicity: np.ndarray, frame_period_ms: float
) -> np.ndarray:
    """Return 16 kHz float32 speech from the results of `analyze_speech`."""
    frames = map(np.ascontiguousarray, (pitch, envelope, aperiodicity))
    return load_world().synthesize(*frames, SAMPLING_RATE, frame_period_ms).astype(np.float32)


def flatten_pitch(pitch: np.ndarray, kept: float) -> np.ndarray:
    """Move voiced frames towards their mean log pitch; keep the share `kept` of their deviation."""
    voiced = pitch > 0
    if not voiced.any():
        return pitch
    log_pitch = np.log(pitch[voiced])
    flat = pitch.copy()
    flat[voiced] = np.exp(log_pitch.mean() + kept * (log_pitch - log_pitch.mean()))
    return flat
