"""Apply perturbations by name. Add a new one as a decorated effect in `effects` or `channel`, which comes after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio

# Importing `channel` registers the codecs.
from . import channel as channel
from .effects import PERTURBATIONS, Perturbation


def apply(
    name: str, array: np.ndarray, sampling_rate: int, severity: float | None = None, *, seed: int = 0
) -> np.ndarray:
    """Apply a perturbation to a copy of a mono recording; return float32."""
    (perturbation,) = require_known([name])
    if array.ndim != 1 or not array.size:
        raise ValueError(f"the signal has shape {array.shape}; it must be mono and not empty: (num_samples,).")
    value = perturbation.default if severity is None else float(severity)
    low, high = perturbation.limits
    if not low <= value <= high:
        unit = f" {perturbation.unit}" if perturbation.unit else ""
        raise ValueError(f"{name} is {value:g}{unit}; it must be between {low:g} and {high:g}.")
    samples = np.asarray(array, dtype=np.float32)
    changed = perturbation.effect(samples, sampling_rate, np.random.default_rng(seed), value)
    changed = np.asarray(changed, dtype=np.float32)
    if perturbation.keeps_length:
        # Resampling and codecs may change the length by a few samples.
        changed = np.pad(changed[: len(array)], (0, max(len(array) - len(changed), 0)))
    return changed


def require_known(names: Iterable[str]) -> list[Perturbation]:
    unknown = [name for name in names if name not in PERTURBATIONS]
    if unknown:
        raise ValueError(f"unknown perturbation {unknown[0]!r}; it must be one of {', '.join(sorted(PERTURBATIONS))}.")
    return [PERTURBATIONS[name] for name in names]


def draw_chain(names: Sequence[str], rng: np.random.Generator) -> list[tuple[str, float]]:
    """Draw one to three perturbations and their severities, in the order of `PERTURBATIONS`."""
    count = rng.integers(1, min(3, len(names)) + 1)
    drawn = set(rng.choice(np.array(names), count, replace=False).tolist())
    return [(name, each.draw_severity(rng)) for name, each in PERTURBATIONS.items() if name in drawn]


def apply_chain(array: np.ndarray, sampling_rate: int, chain: Iterable[tuple[str, float]], *, seed: int) -> np.ndarray:
    for name, severity in chain:
        array = apply(name, array, sampling_rate, severity, seed=seed)
    return array


def change_recordings(
    messages: Sequence[Mapping[str, Any]], change: Callable[[int, np.ndarray], np.ndarray]
) -> list[dict[str, Any]]:
    """Return a dialogue with every recording changed: `change` gets the message number and the 16 kHz samples."""

    def change_item(item: Mapping[str, Any], number: int) -> dict[str, Any]:
        if item.get("audio") is None:
            return dict(item)
        array = change(number, read_audio(item["audio"]))
        return {**item, "audio": {"array": array, "sampling_rate": SAMPLING_RATE}}

    return [
        dict(message)
        if isinstance(message["content"], str)
        else {**message, "content": [change_item(item, number) for item in message["content"]]}
        for number, message in enumerate(messages)
    ]


# A noise, a band and a codec; the audit compares each with a similar perturbation seen in training.
HELD_OUT = tuple(name for name, perturbation in PERTURBATIONS.items() if perturbation.is_held_out)
