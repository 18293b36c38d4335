"""hibari-tts (Apache-2.0): a small neural synthesizer whose PyPI wheel contains its default voice."""

from __future__ import annotations

import numpy as np

from sdiareward.audio_sdiareward import resample

from . import SynthesisError, describe_distribution


_RATES = (1.0, 0.9, 1.1)


class HibariSynthesizer:
    """One American voice at three speaking rates."""

    uses_reference = False
    languages = ("en",)
    is_deterministic = True

    def __init__(self) -> None:
        from hibari import Hibari

        self._engine = Hibari()
        self.version = describe_distribution("hibari-tts")

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        audio = self._engine(text, seed=voice, speed=_RATES[voice % len(_RATES)])
        if len(audio) == 0:
            raise SynthesisError(f"hibari gives no speech for {text!r}.")
        return resample(audio, 24_000)


build = HibariSynthesizer
