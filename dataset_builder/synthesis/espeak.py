"""eSpeak NG (GPL-3.0): formant synthesis, through the library in the PyPI package `espeakng-loader`.

The library keeps state between texts that neither another voice nor terminating it resets, and draws breath noise from
a generator seeded by the clock. It is therefore loaded and seeded anew for every text: the same call gives the same
samples, unless something else in the process keeps the same library file loaded.
"""

from __future__ import annotations

import _ctypes
import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sdiareward.audio_sdiareward import resample

from . import SynthesisError, describe_distribution


_unload = getattr(_ctypes, "FreeLibrary" if sys.platform == "win32" else "dlclose")
_VOICES = (b"en-us", b"en-us+f2", b"en+m3", b"en-us+f4", b"en", b"en-us+m7")
_RATES_WPM = (165, 180, 150)
# From speak_lib.h: the synchronous mode returns samples through the callback, before the call ends.
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_CHARS_UTF8 = 1
_RATE_PARAMETER = 1
# Seed of the breath noise; any number works.
_SEED = 1
# The library has one state per process; two threads in it at a time crash.
_LOCK = threading.Lock()
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class EspeakSynthesizer:
    """Voices of eSpeak NG at three speaking rates."""

    uses_reference = False
    is_deterministic = True

    def __init__(self, voices: tuple[bytes, ...] = _VOICES, languages: tuple[str, ...] = ("en",)) -> None:
        import espeakng_loader

        self._voices, self.languages = voices, languages
        self.version = describe_distribution("espeakng-loader")
        self._library_path = espeakng_loader.get_library_path()
        self._data_path = espeakng_loader.get_data_path().encode()

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        chunks: list[np.ndarray] = []

        def receive(samples: ctypes._Pointer[ctypes.c_short], count: int, events: int | None) -> int:
            if samples and count > 0:
                chunks.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
            return 0

        # The library keeps the pointer: the callback object must live as long as it does.
        callback = _CALLBACK(receive)
        with _LOCK, self._open_library() as (library, sampling_rate):
            library.espeak_SetSynthCallback(callback)
            name = self._voices[voice % len(self._voices)]
            status = library.espeak_SetVoiceByName(name)
            if status != 0:
                raise SynthesisError(f"espeak-ng has no voice {name!r} (status {status}); reinstall espeakng-loader.")
            library.espeak_SetParameter(_RATE_PARAMETER, _RATES_WPM[voice % len(_RATES_WPM)], 0)
            data = text.encode() + b"\0"
            status = library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 1, 0, _CHARS_UTF8, None, None)
        if status != 0 or not chunks:
            raise SynthesisError(f"espeak-ng gives no speech for {text!r} (status {status}).")
        return resample(np.concatenate(chunks).astype(np.float32) / 32768.0, sampling_rate)

    @contextmanager
    def _open_library(self) -> Iterator[tuple[ctypes.CDLL, int]]:
        """Yield the library in its initial state and its sampling rate in Hz; unload it after use."""
        library = ctypes.CDLL(self._library_path)
        try:
            sampling_rate = library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, self._data_path, 0)
            if sampling_rate <= 0:
                raise SynthesisError(f"espeak-ng does not start with the data in {self._data_path.decode()}.")
            library.espeak_ng_SetRandSeed(ctypes.c_long(_SEED))
            yield library, sampling_rate
            library.espeak_Terminate()
        finally:
            _unload(library._handle)


build = EspeakSynthesizer
