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
# Some words make flite hang; a turn takes a fraction of a second.
_TIMEOUT_S = 30


class FliteSynthesizer:
    """Four English voices, statistical and diphone."""

    uses_reference = False
    languages = ("en",)
    is_deterministic = True

    def __init__(self) -> None:
        printed = subprocess.run(["flite", "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S)
        # "  version: flite-2.2-current Sep 2018 (...)"
        found = re.search(r"flite-(\S+)", printed.stdout + printed.stderr)
        self.version = f"flite {found[1]}" if found else "flite"

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "speech.wav")
            command = ["flite", "-voice", _VOICES[voice % len(_VOICES)], "-t", text, "-o", str(path)]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
                return read_audio(path)
            except (subprocess.SubprocessError, AudioError, FileNotFoundError) as error:
                raise SynthesisError(f"flite gives no speech for {text!r}: {error}") from error


build = FliteSynthesizer
