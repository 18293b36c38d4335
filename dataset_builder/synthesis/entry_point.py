"""A custom synthesizer in Python, by the name of its class: `entry: package.module:Class`.

The class is called with `options`. Its code runs with the rights of the build: name only code that you trust.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from . import DialogueSynthesizer, SynthesisError, Synthesizer


_MEMBERS = "speak (or speak_dialogue), uses_reference, is_deterministic and version"


def build(*, entry: str, options: dict[str, Any] | None = None) -> Synthesizer | DialogueSynthesizer:
    module, _, name = entry.partition(":") if isinstance(entry, str) else ("", "", "")
    if not (module and name):
        raise ValueError(f"entry is {entry!r}; give package.module:Class.")
    try:
        found: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SynthesisError(
            f"entry {entry!r} cannot be imported ({error}); install it, or set PYTHONPATH."
        ) from error
    engine = found(**(options or {}))
    if isinstance(engine, DialogueSynthesizer):
        return engine
    if not isinstance(engine, Synthesizer):
        raise ValueError(f"entry {entry!r} gives a {type(engine).__name__}, no synthesizer; it needs {_MEMBERS}.")
    return _Checked(engine, entry)


class _Checked:
    """Checks the speech: a mistake in the class costs pairs, not the build."""

    def __init__(self, engine: Synthesizer, entry: str):
        self._engine, self._entry = engine, entry
        self.uses_reference, self.is_deterministic = engine.uses_reference, engine.is_deterministic
        self.version, self.languages = engine.version, getattr(engine, "languages", None)

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        speech = np.asarray(self._engine.speak(text, voice=voice, reference=reference))
        is_sound = speech.ndim == 1 and speech.size and speech.dtype.kind == "f" and np.isfinite(speech).all()
        if not is_sound:
            raise SynthesisError(
                f"{self._entry} gives {speech.dtype} of shape {speech.shape} for {text!r}; mono floats at 16 kHz, of "
                "shape (num_samples,), are needed."
            )
        return speech.astype(np.float32)
