"""Synthesizers of the user's own: a command, or a Python class."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import read_audio

from . import DialogueSynthesizer, Engine, SynthesisError, Synthesizer


_PLACEHOLDER = re.compile(r"\{(text|voice|output)\}")


@dataclass(eq=False)
class Command(Engine):
    """Any command that speaks a text into a WAV file.

    `command` is a list of arguments in which `{text}`, `{voice}` and `{output}` are replaced. Without `{text}` the
    command reads the text from standard input; without `{output}` it writes the recording to standard output. No shell
    is involved: a text cannot become a command.
    """

    command: Sequence[str]
    voices: Sequence[str] = ()
    languages: Sequence[str] | None = None
    version: str = ""
    is_deterministic: bool = False
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        self._used = set(_PLACEHOLDER.findall(" ".join(self.command)))
        if isinstance(self.command, str) or not self.command:
            raise ValueError(f"command is {self.command!r}; give a list of the program and its arguments.")
        if ("voice" in self._used) != bool(self.voices) or isinstance(self.voices, str):
            raise ValueError(f"voices is {self.voices!r}; give a list of names if command has {{voice}}, else none.")
        if which(self.command[0]) is None:
            raise SynthesisError(f"command {self.command[0]!r} is not found; install it, or give its path.")
        self.version = self.version or f"command {Path(self.command[0]).name}"

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        words = " ".join(text.replace("\0", " ").split())
        with TemporaryDirectory() as folder:
            output = Path(folder, "speech.wav")
            # A text that begins with a dash must not be read as an option.
            values = {"text": f" {words}" if words.startswith("-") else words, "output": str(output)}
            values |= {"voice": self.voices[voice % len(self.voices)]} if self.voices else {}
            arguments = [_PLACEHOLDER.sub(lambda found: values[found[1]], part) for part in self.command]
            stdin = b"" if "text" in self._used else words.encode()
            done = subprocess.run(arguments, input=stdin, capture_output=True, timeout=self.timeout_s)
            if done.returncode:
                reason = " ".join(done.stderr.decode("utf-8", errors="replace").split())[-300:]
                raise SynthesisError(f"{self.version!r} ended with {done.returncode} for {words!r}: {reason}")
            return read_audio(output.read_bytes() if "output" in self._used else done.stdout)


class _EntryPoint(Engine):
    def __init__(self, engine: Synthesizer):
        self._engine = engine
        self.uses_reference, self.is_deterministic = engine.uses_reference, engine.is_deterministic
        self.version, self.languages = engine.version, getattr(engine, "languages", None)

    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        return self._engine.speak(text, voice=voice, reference=reference)


def load_entry_point(*, entry: str, options: dict[str, Any] | None = None) -> Synthesizer | DialogueSynthesizer:
    """Load a Python class, `entry: package.module:Class`, called with `options`; wrong speech costs pairs, no build.

    Its code runs with the rights of the build: name only code that you trust.
    """
    module, _, name = entry.partition(":")
    if not (module and name):
        raise ValueError(f"entry is {entry!r}; give package.module:Class.")
    try:
        engine = getattr(import_module(module), name)(**(options or {}))
    except (ImportError, AttributeError) as error:
        raise SynthesisError(f"entry {entry!r} cannot be loaded ({error}); install it, or set PYTHONPATH.") from error
    if isinstance(engine, DialogueSynthesizer):
        return engine
    if isinstance(engine, Synthesizer):
        return _EntryPoint(engine)
    needed = "speak (or speak_dialogue), uses_reference, is_deterministic and version"
    raise ValueError(f"entry {entry!r} gives a {type(engine).__name__}, which is no synthesizer; it needs {needed}.")
