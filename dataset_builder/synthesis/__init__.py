"""Speech synthesizers, each loaded on first use.

An engine speaks one text in one of its voices (`speak`), or a whole dialogue in voices cloned from reference clips
(`speak_dialogue`), like the paper's synthesizer (appendix B.1). The options can name a custom class:
`{"engine": "entry-point", "entry": "package.module:Class"}`.
"""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import import_module, metadata, util
from inspect import signature
from shutil import which
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from sdiareward.common.settings import make_settings


class SynthesisError(RuntimeError):
    """Raised if a synthesizer is not installed or returns no usable speech for a text; `kind` is for the report."""

    kind = "synthesis_failed"


@dataclass(frozen=True)
class ReferenceClip:
    """A recording for voice cloning."""

    array: np.ndarray  # (num_samples,), mono, 16 kHz, float32
    text: str


# Role and text of each turn.
Lines = Sequence[tuple[str, str]]
Names = Annotated[Sequence[str], Field(min_length=1)]


class Engine(ABC):
    """Speaks a text with `say`, or resynthesises a recorded turn; subclasses are dataclasses of their options."""

    needs: tuple[str, ...] = ()  # Modules or commands.
    remedy = ""
    uses_reference = False  # Copy-synthesis needs the recording and keeps its channel.
    is_deterministic = False  # Same call, same samples, in any process of a machine and at any time.
    languages: Sequence[str] | None = None  # Primary subtags, such as `("en",)`; None: any language.
    version = ""

    @abstractmethod
    def say(self, text: str, voice: int, reference: np.ndarray | None) -> np.ndarray:
        """Return a text as mono 16 kHz speech."""

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        """Return `text` as mono 16 kHz float32 speech; `voice` counts modulo the number of voices."""
        label = f"{self.version!r} has no speech for {text!r}"
        try:
            speech = np.asarray(self.say(text, voice, reference))
        # `requests` raises OSErrors, decoding raises ValueErrors.
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SynthesisError(f"{label}: {error}") from error
        if not (speech.ndim == 1 and speech.size and speech.dtype.kind == "f" and np.isfinite(speech).all()):
            raise SynthesisError(f"{label}: {speech.dtype} of shape {speech.shape}; return mono floats at 16 kHz.")
        return speech.astype(np.float32, copy=False)


# Name -> module and class.
_ENGINES = {
    "command": "local:Command",
    "entry-point": "local:EntryPoint",
    "espeak-ng": "local:Espeak",
    "flite": "local:Flite",
    "hibari": "local:Hibari",
    "kokoro": "local:Kokoro",
    "openai-speech": "servers:OpenAISpeech",
    "piper": "local:Piper",
    "soulx-podcast": "servers:SoulXPodcast",
    "voice-cloning": "servers:VoiceCloning",
    "world": "local:World",
}
SYNTHESIZERS = tuple(sorted(_ENGINES))
# Tried in this order; all work offline.
_OFFLINE = ("espeak-ng", "flite", "hibari", "piper")


def is_available(name: str, options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a synthesizer can be loaded; one with required options is loaded, to check them."""
    engine = _find_engine(name, options)
    if any(option.default is option.empty for option in signature(engine).parameters.values()):
        if not options:
            return False
        try:
            load_synthesizer(name, options)
        except SynthesisError as error:
            raise ValueError(f"synthesizer {name!r}: {error}") from error
    return _is_installed(engine)


def load_synthesizer(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Load a synthesizer, once per process and set of options."""
    return _load(name, json.dumps(dict(options or {}), sort_keys=True))


@cache
def find_voice() -> Callable[[str], np.ndarray] | None:
    """Return a function that speaks a text with the first installed offline synthesizer; None if there is none."""
    name = next(filter(is_available, _OFFLINE), None)
    return lru_cache(32)(partial(load_synthesizer(name).speak, voice=0)) if name else None


def describe_distribution(distribution: str) -> str:
    return f"{distribution} {metadata.version(distribution)}"


@cache
def _load(name: str, options_json: str) -> Any:
    options = json.loads(options_json)
    engine = _find_engine(name, options)
    options.pop("engine", None)
    if not _is_installed(engine):
        raise SynthesisError(f"synthesizer {name!r} is not installed; {engine.remedy}.")
    return make_settings(engine, options, f"synthesizer {name!r}")


def _is_installed(engine: Any) -> bool:
    return all(util.find_spec(need) is not None or which(need) is not None for need in engine.needs)


def _find_engine(name: str, options: Mapping[str, Any] | None) -> Any:
    """Return the class in the option `engine`, or the class with this name."""
    engine = (options or {}).get("engine", name)
    if name in _ENGINES and engine != name:
        raise ValueError(f"synthesizer {name!r} has the engine {engine!r} but the name of another; rename it.")
    if engine not in _ENGINES:
        raise ValueError(f"unknown synthesizer {engine!r}; choose one of {list(SYNTHESIZERS)}, or set its engine.")
    module, _, class_name = _ENGINES[engine].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), class_name)
