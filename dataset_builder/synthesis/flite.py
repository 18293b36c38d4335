"""Flite (BSD-like), from Debian's package `flite`, through its command line."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from sdiareward.audio_sdiareward import AudioError, read_audio

from . import SynthesisError


_VOICES = ("slt", "rms", "awb", "kal16")
# Standard deviation of the pitch in Hz at which a voice sounds as without the option; `rms` does not take it.
_PITCH_SD_HZ = {"slt": 28.0, "awb": 22.0, "kal16": 12.0}
# Some words make flite hang; a turn takes a fraction of a second.
_TIMEOUT_S = 30


class FliteSynthesizer:
    """Four English voices, statistical and diphone."""

    uses_reference = False
    is_deterministic = True

    def __init__(self) -> None:
        printed = subprocess.run(["flite", "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S)
        # "  version: flite-2.2-current Sep 2018 (...)"
        found = re.search(r"flite-(\S+)", printed.stdout + printed.stderr)
        self.version = f"flite {found[1]}" if found else "flite"

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        """Speak `text`; see `Synthesizer.speak`."""
        return self.speak_phrase(text, voice=voice)

    def speak_phrase(self, text: str, *, voice: int, rate: float = 1.0, pitch_range: float = 1.0) -> np.ndarray:
        """Speak `text`; see `rhythm.PhraseSpeaker`. The voice `rms` keeps its own pitch range."""
        name = _VOICES[voice % len(_VOICES)]
        features = [] if rate == 1.0 else ["--setf", f"duration_stretch={1 / rate:.3f}"]
        if pitch_range != 1.0 and name in _PITCH_SD_HZ:
            features += ["--setf", f"int_f0_target_stddev={pitch_range * _PITCH_SD_HZ[name]:.1f}"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "speech.wav")
            command = ["flite", "-voice", name, *features, "-t", text, "-o", str(path)]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
                return read_audio(path)
            except (subprocess.SubprocessError, AudioError, FileNotFoundError) as error:
                raise SynthesisError(f"flite gives no speech for {text!r}: {error}") from error


build = FliteSynthesizer
