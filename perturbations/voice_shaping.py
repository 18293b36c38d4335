"""Change a recorded or synthetic voice by rule: pitch, formants, tempo, level, breath, tremor.

Rules make a voice higher, shakier or duller, but they do not act.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, resample

from .effects import ChangeTempo, SetLevel
from .levels import trim_silence
from .transform import Transform
from .vocoder import analyze_speech, flatten_pitch, synthesize_speech


# A level at which the loudest category does not clip yet.
NORMAL_LEVEL_DBFS = -28.0
_TRIM_DB = 35.0
_RISE_FRAMES = 80
_FRAME_PERIOD_MS = 5.0
# Aperiodicity is added fully from here on; below, a voice is breathy only to a degree.
_BREATH_HZ = 4000.0
_TILT_PIVOT_HZ = 500.0


@dataclass(frozen=True)
class VoiceShape(Transform):
    """Change a voice, trim the silence around the speech and set its level; the defaults leave the voice unchanged."""

    pitch: float = 1.0
    pitch_range: float = 1.0  # Factor of the deviations from the mean log pitch: below 1 flatter.
    formants: float = 1.0  # A shorter vocal tract has more than 1.
    rise: float = 1.0  # Factor of the pitch at the end, reached within the last 0.4 s.
    tremor: float = 0.0  # Depth of a shake of the pitch, as a share of it.
    tremor_hz: float = 6.0
    breath: float = 0.0  # Share of the voice that becomes noise at high frequencies.
    tilt_db: float = 0.0  # Per octave above 500 Hz.
    tempo: float = 1.0
    gain_db: float = 0.0  # Relative to `NORMAL_LEVEL_DBFS`.
    # Use WORLD, which all but tempo and gain need. Set it for all categories of an attribute or none, so that
    # the sound of the vocoder identifies none of them.
    is_vocoded: bool = False

    def __post_init__(self) -> None:
        for name in ("pitch", "formants", "rise", "tempo"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; a factor must be more than 0.")
        if self.pitch_range < 0 or not 0 <= self.breath <= 1:
            raise ValueError(f"pitch_range={self.pitch_range}, breath={self.breath}: must be at least 0, and 0 to 1.")

    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        speech = trim_silence(resample(samples, sampling_rate), _TRIM_DB)
        if self.is_vocoded:
            speech = self._vocode(speech)
        if self.tempo != 1:
            speech = ChangeTempo(self.tempo)(speech, SAMPLING_RATE)
        speech = SetLevel(NORMAL_LEVEL_DBFS + self.gain_db)(speech, SAMPLING_RATE)
        return resample(speech, SAMPLING_RATE, sampling_rate)

    def change_pitch(self, pitch: np.ndarray) -> np.ndarray:
        """Change a pitch contour in Hz, one value per 5 ms; unvoiced frames stay at 0."""
        contour = flatten_pitch(pitch, self.pitch_range) * self.pitch
        voiced = np.flatnonzero(pitch)
        if self.rise != 1 and voiced.size:
            contour *= np.interp(np.arange(len(pitch)), [voiced[-1] - _RISE_FRAMES, voiced[-1]], [1, self.rise])
        seconds = np.arange(len(pitch)) * _FRAME_PERIOD_MS / 1000
        return contour * (1 + self.tremor * np.sin(2 * np.pi * self.tremor_hz * seconds))

    def _vocode(self, array: np.ndarray) -> np.ndarray:
        pitch, envelope, aperiodicity = analyze_speech(array, _FRAME_PERIOD_MS)
        hertz = np.linspace(0, SAMPLING_RATE / 2, envelope.shape[1])
        if self.formants != 1:
            envelope, aperiodicity = (_warp(frames, hertz, self.formants) for frames in (envelope, aperiodicity))
        envelope = envelope * 10 ** (self.tilt_db / 10 * np.log2(np.maximum(hertz / _TILT_PIVOT_HZ, 1)))
        aperiodicity = aperiodicity + self.breath * np.minimum(hertz / _BREATH_HZ, 1) * (1 - aperiodicity)
        return synthesize_speech(self.change_pitch(pitch), envelope, aperiodicity, _FRAME_PERIOD_MS)


def _warp(frames: np.ndarray, hertz: np.ndarray, factor: float) -> np.ndarray:
    """Stretch the frequency axis of `(num_frames, num_bins)` by `factor`."""
    return np.stack([np.interp(hertz / factor, hertz, frame) for frame in frames])
