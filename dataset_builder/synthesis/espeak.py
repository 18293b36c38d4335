"""eSpeak NG (GPL-3.0): formant synthesis, through the library in the PyPI package `espeakng-loader`."""

from __future__ import annotations

import ctypes

import numpy as np

from sdiareward.audio_sdiareward import resample
from sdiareward.dataset_builder.synthesis import SynthesisError, distribution_version


_VOICES = (b"en-us", b"en-us+f2", b"en-gb+m3", b"en-us+f4", b"en-gb", b"en-us+m7")
_RATES_WPM = (165, 180, 150)
# From speak_lib.h: the synchronous mode returns samples through the callback, before the call ends.
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_CHARS_UTF8 = 1
_RATE_PARAMETER = 1
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class EspeakSynthesizer:
    """Six English voices at three speaking rates."""

    uses_reference = False

    def __init__(self) -> None:
        import espeakng_loader

        self.version = distribution_version("espeakng-loader")
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data_path = espeakng_loader.get_data_path().encode()
        self._sampling_rate = self._library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, data_path, 0)
        if self._sampling_rate <= 0:
            raise SynthesisError(f"espeak-ng does not start with the data in {data_path.decode()}.")
        self._chunks: list[np.ndarray] = []
        # The library keeps the pointer: the callback object must live as long as this one.
        self._callback = _CALLBACK(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: int | None) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        return 0

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        """Speak `text`; see `Synthesizer.speak`."""
        self._chunks = []
        self._library.espeak_SetVoiceByName(_VOICES[voice % len(_VOICES)])
        self._library.espeak_SetParameter(_RATE_PARAMETER, _RATES_WPM[voice % len(_RATES_WPM)], 0)
        data = text.encode() + b"\0"
        status = self._library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 1, 0, _CHARS_UTF8, None, None)
        if status != 0 or not self._chunks:
            raise SynthesisError(f"espeak-ng gives no speech for {text!r} (status {status}).")
        return resample(np.concatenate(self._chunks).astype(np.float32) / 32768.0, self._sampling_rate)


build = EspeakSynthesizer
