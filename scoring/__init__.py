"""Score dialogues: `Scorer`, the packed forward, data sets, Ray, cached features, reward functions for RL."""

from __future__ import annotations

from typing import Any


__all__ = ["Scorer"]


def __getattr__(name: str) -> Any:
    # Lazily: what needs no model must not import torch.
    if name == "Scorer":
        from .scorer import Scorer

        return Scorer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
