"""Copy-synthesis with the WORLD vocoder (`pyworld`, MIT): the same speaker and words, most of the intonation gone.

The recording is analysed into pitch, envelope and aperiodicity and put together again with its pitch drawn towards its
mean. It inherits the recording's channel, so what is left to hear is prosody and the vocoder.
"""

from __future__ import annotations

import warnings

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE

from . import SynthesisError, distribution_version


# Share of the deviation from the mean log pitch that is kept.
_KEPT_VARIATION = (0.1, 0.3, 0.5)
# Twice the vocoder's default: half the work, for speech whose pitch hardly moves.
_FRAME_PERIOD_MS = 10.0


class WorldSynthesizer:
    """The recorded speaker with flattened pitch."""

    uses_reference = True
    is_deterministic = True

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # pyworld imports pkg_resources, which warns of its own end; setuptools is held below 81 for it.
            warnings.simplefilter("ignore", UserWarning)
            import pyworld

        self._world = pyworld
        self.version = distribution_version("pyworld")

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        """Speak `reference` again; see `Synthesizer.speak`."""
        if reference is None:
            raise SynthesisError(f"copy-synthesis needs a recording, and there is none of {text!r}.")
        signal = reference.astype(np.float64)
        pitch, times = self._world.dio(signal, SAMPLING_RATE, frame_period=_FRAME_PERIOD_MS)
        pitch = self._world.stonemask(signal, pitch, times, SAMPLING_RATE)
        envelope = self._world.cheaptrick(signal, pitch, times, SAMPLING_RATE)
        aperiodicity = self._world.d4c(signal, pitch, times, SAMPLING_RATE)
        flat = flatten_pitch(pitch, _KEPT_VARIATION[voice % len(_KEPT_VARIATION)])
        return self._world.synthesize(flat, envelope, aperiodicity, SAMPLING_RATE, _FRAME_PERIOD_MS).astype(np.float32)


def flatten_pitch(pitch: np.ndarray, kept: float) -> np.ndarray:
    """Draw voiced frames towards their mean log pitch, keeping the share `kept` of their deviation."""
    voiced = pitch > 0
    if not voiced.any():
        return pitch
    log_pitch = np.log(pitch[voiced])
    flat = pitch.copy()
    flat[voiced] = np.exp(log_pitch.mean() + kept * (log_pitch - log_pitch.mean()))
    return flat


build = WorldSynthesizer
