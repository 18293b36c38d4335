"""Any command that speaks a text into a WAV file: a custom synthesizer without code.

Options: `command`, a list of arguments in which `{text}`, `{voice}` and `{output}` are replaced, `voices`, and the
`languages` that it speaks, any by default. Without `{text}` the command reads the text from standard input; without
`{output}` it writes the recording to standard output.
No shell is involved: a text cannot become a command.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shutil import which

import numpy as np

from sdiareward.audio_sdiareward import AudioError, read_audio

from . import SynthesisError


_PLACEHOLDER = re.compile(r"\{(text|voice|output)\}")
_MAX_QUOTED_CHARS = 300


class CommandSynthesizer:
    uses_reference = False

    def __init__(
        self,
        *,
        command: Sequence[str],
        voices: Sequence[str] = (),
        languages: Sequence[str] | None = None,
        version: str | None = None,
        is_deterministic: bool = False,
        timeout_s: float = 120.0,
    ) -> None:
        is_list = isinstance(command, (list, tuple)) and all(isinstance(part, str) for part in command)
        if not is_list or not command:
            raise ValueError(
                f"command is {command!r}; give a list of the program and its arguments, such as [say, ...]."
            )
        used = set(_PLACEHOLDER.findall(" ".join(command)))
        if ("voice" in used) != bool(voices) or isinstance(voices, str):
            raise ValueError(f"voices is {voices!r}; give a list of names if, and only if, command has {{voice}}.")
        if which(command[0]) is None:
            raise SynthesisError(f"command {command[0]!r} is not found; install it, or give its path.")
        self._command, self._voices, self._used = list(command), tuple(voices), used
        self._timeout_s, self.languages = timeout_s, languages
        self.is_deterministic = is_deterministic
        self.version = version or f"command {Path(command[0]).name}"

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        words = " ".join(text.replace("\0", " ").split())
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "speech.wav"
            # A text that begins with a dash must not be read as an option.
            values = {"text": f" {words}" if words.startswith("-") else words, "output": str(output)}
            if self._voices:
                values["voice"] = self._voices[voice % len(self._voices)]
            arguments = [_PLACEHOLDER.sub(lambda found: values[found[1]], part) for part in self._command]
            spoken = self._run(arguments, None if "text" in self._used else words, words)
            if "output" not in self._used:
                output.write_bytes(spoken)
            try:
                return read_audio(output.read_bytes(), name=f"what {self.version!r} wrote")
            except (AudioError, FileNotFoundError) as error:
                raise SynthesisError(f"{self.version!r} gives no speech for {words!r}: {error}") from error

    def _run(self, arguments: list[str], stdin: str | None, words: str) -> bytes:
        data = b"" if stdin is None else stdin.encode()
        try:
            done = subprocess.run(arguments, input=data, capture_output=True, timeout=self._timeout_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SynthesisError(f"{self.version!r} gives no speech for {words!r}: {error}") from error
        if done.returncode:
            reason = " ".join(done.stderr.decode("utf-8", errors="replace").split())[-_MAX_QUOTED_CHARS:]
            raise SynthesisError(f"{self.version!r} ended with {done.returncode} for {words!r}: {reason}")
        return done.stdout


build = CommandSynthesizer
