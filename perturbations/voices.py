"""Change a recorded or synthetic voice by rule: pitch, formants, tempo, level, breath, tremor.

Rules make a voice higher, shakier or duller; they do not replace acting. The WORLD vocoder (`pyworld`, MIT)
does analysis and synthesis.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, resample

from .effects import Samples, change_tempo, set_level, trim_silence


# The loudest category does not clip at this level.
NORMAL_LEVEL_DBFS = -28.0
_TRIM_DB = 35.0
_RISE_FRAMES = 80
_FRAME_PERIOD_MS = 5.0
# Above this frequency all aperiodicity is added, below it only a part.
_BREATH_HZ = 4000.0
_TILT_PIVOT_HZ = 500.0


def can_vocode() -> bool:
    """Return whether `pyworld` and its imports are installed."""
    return all(find_spec(name) is not None for name in ("pyworld", "pkg_resources"))


def _load_world() -> Any:
    with warnings.catch_warnings():
        # pyworld imports pkg_resources, which warns about its removal; setuptools is pinned below 81 for it.
        warnings.simplefilter("ignore", UserWarning)
        import pyworld

    return pyworld


def analyze_speech(array: Samples, frame_period_ms: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pitch in Hz, 0 if unvoiced, `(num_frames,)`; envelope and aperiodicity, `(num_frames, num_bins)`."""
    world, signal = _load_world(), array.astype(np.float64)
    pitch, times = world.dio(signal, SAMPLING_RATE, frame_period=frame_period_ms)
    pitch = world.stonemask(signal, pitch, times, SAMPLING_RATE)
    envelope = world.cheaptrick(signal, pitch, times, SAMPLING_RATE)
    return pitch, envelope, world.d4c(signal, pitch, times, SAMPLING_RATE)


def synthesize_speech(
    pitch: np.ndarray, envelope: np.ndarray, aperiodicity: np.ndarray, frame_period_ms: float
) -> Samples:
    """Return 16 kHz float32 speech from the results of `analyze_speech`."""
    frames = map(np.ascontiguousarray, (pitch, envelope, aperiodicity))
    return _load_world().synthesize(*frames, SAMPLING_RATE, frame_period_ms).astype(np.float32)


def flatten_pitch(pitch: np.ndarray, kept: float) -> np.ndarray:
    """Move voiced frames towards the mean log pitch; keep the share `kept` of their deviation."""
    flat, voiced = pitch.copy(), pitch > 0
    if voiced.any():
        log_pitch = np.log(pitch[voiced])
        flat[voiced] = np.exp(log_pitch.mean() + kept * (log_pitch - log_pitch.mean()))
    return flat


@dataclass(frozen=True)
class VoiceShape:
    """Change a voice, trim the silence around the speech and set its level; the defaults leave the voice unchanged."""

    pitch: float = 1.0
    pitch_range: float = 1.0  # Factor of the deviation from the mean log pitch; flatter below 1.
    formants: float = 1.0  # Above 1 for a shorter vocal tract.
    rise: float = 1.0  # Factor of the final pitch, reached within the last 0.4 s.
    tremor: float = 0.0  # Depth of the pitch tremor, relative to the pitch.
    tremor_hz: float = 6.0
    breath: float = 0.0  # Share of the voice replaced by noise at high frequencies.
    tilt_db: float = 0.0  # dB per octave above 500 Hz.
    tempo: float = 1.0
    gain_db: float = 0.0  # Relative to `NORMAL_LEVEL_DBFS`.
    # Use WORLD, which everything but tempo and gain needs. Set it for all categories of an attribute or for none,
    # so that the vocoder's sound does not identify a category.
    is_vocoded: bool = False

    def __call__(self, samples: Samples, sampling_rate: int) -> Samples:
        """Return the changed recording, float32."""
        speech = trim_silence(resample(samples, sampling_rate), _TRIM_DB)
        if self.is_vocoded:
            speech = self._vocode(speech)
        if self.tempo != 1:
            speech = change_tempo(speech, SAMPLING_RATE, self.tempo)
        speech = set_level(speech, NORMAL_LEVEL_DBFS + self.gain_db)
        return resample(speech, SAMPLING_RATE, sampling_rate)

    def change_pitch(self, pitch: np.ndarray) -> np.ndarray:
        """Change a pitch contour in Hz, one value per 5 ms; unvoiced frames stay at 0."""
        contour = flatten_pitch(pitch, self.pitch_range) * self.pitch
        voiced = np.flatnonzero(pitch)
        if self.rise != 1 and voiced.size:
            contour *= np.interp(np.arange(len(pitch)), [voiced[-1] - _RISE_FRAMES, voiced[-1]], [1, self.rise])
        seconds = np.arange(len(pitch)) * _FRAME_PERIOD_MS / 1000
        return contour * (1 + self.tremor * np.sin(2 * np.pi * self.tremor_hz * seconds))

    def _vocode(self, array: Samples) -> Samples:
        pitch, envelope, aperiodicity = analyze_speech(array, _FRAME_PERIOD_MS)
        hertz = np.linspace(0, SAMPLING_RATE / 2, envelope.shape[1])
        if self.formants != 1:
            # Warp the frequency axis.
            envelope, aperiodicity = (
                np.stack([np.interp(hertz / self.formants, hertz, frame) for frame in frames])
                for frames in (envelope, aperiodicity)
            )
        envelope = envelope * 10 ** (self.tilt_db / 10 * np.log2(np.maximum(hertz / _TILT_PIVOT_HZ, 1)))
        aperiodicity = aperiodicity + self.breath * np.minimum(hertz / _BREATH_HZ, 1) * (1 - aperiodicity)
        return synthesize_speech(self.change_pitch(pitch), envelope, aperiodicity, _FRAME_PERIOD_MS)
