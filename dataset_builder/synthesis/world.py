"""Copy-synthesis with the WORLD vocoder (`pyworld`, MIT): the same speaker and words, with most intonation removed.

The recording is analysed into pitch, envelope and aperiodicity and synthesised again with its pitch drawn towards its
mean. It inherits the recording's channel, so only prosody and the vocoder differ.
"""

from __future__ import annotations

import numpy as np

from sdiareward.perturbations.vocoder import analyze_speech, flatten_pitch, synthesize_speech

from . import SynthesisError, describe_distribution


# Share of the deviation from the mean log pitch that is kept.
_KEPT_VARIATION = (0.1, 0.3, 0.5)
# `kept` changes nothing but what the vocoder does; without a contour the voice decides how much intonation is kept.
CONTOURS = ("kept", "flat", "uneven")
# Twice the vocoder's default: half the work, for speech whose pitch hardly moves.
_FRAME_PERIOD_MS = 10.0


class WorldSynthesizer:
    uses_reference = True
    is_deterministic = True

    def __init__(self, contour: str | None = None) -> None:
        if contour is not None and contour not in CONTOURS:
            raise ValueError(f"contour is {contour!r}; it must be one of {', '.join(CONTOURS)}.")
        self.contour = contour
        self.version = describe_distribution("pyworld")

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        if reference is None:
            raise SynthesisError(f"copy-synthesis needs a recording, and there is none of {text!r}.")
        pitch, envelope, aperiodicity = analyze_speech(reference, _FRAME_PERIOD_MS)
        if self.contour is None:
            pitch = flatten_pitch(pitch, _KEPT_VARIATION[voice % len(_KEPT_VARIATION)])
        elif self.contour == "flat":
            pitch = flatten_pitch(pitch, _KEPT_VARIATION[0])
        elif self.contour == "uneven":
            frames = draw_uneven_frames(len(pitch), np.random.default_rng(len(pitch)))
            pitch, envelope, aperiodicity = pitch[frames], envelope[frames], aperiodicity[frames]
        return synthesize_speech(pitch, envelope, aperiodicity, _FRAME_PERIOD_MS)


def draw_uneven_frames(num_frames: int, rng: np.random.Generator) -> np.ndarray:
    """Return frame indices at 0.5 to 2 times the natural rate, redrawn every quarter of a second; the length stays."""
    num_stretches = max(2, round(num_frames * _FRAME_PERIOD_MS / 250))
    rates = np.exp2(rng.uniform(-1, 1, num_stretches))
    ends = np.concatenate([[0], np.cumsum(rates)])
    places = np.interp(np.linspace(0, num_stretches, num_frames), np.arange(num_stretches + 1), ends / ends[-1])
    return np.minimum((places * (num_frames - 1)).round().astype(np.int64), num_frames - 1)


build = WorldSynthesizer
