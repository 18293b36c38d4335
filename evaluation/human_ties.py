"""Report pairs that people called a tie: no side is better, so that they are in no accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def measure_ties(
    ties: Iterable[Mapping[str, Any]], pairs: Iterable[Mapping[str, Any]], num_skipped: int
) -> dict[str, Any]:
    """Compare the margins of human ties with those of the pairs that people decided.

    Args:
        ties (`Iterable[Mapping]`): Scores of each tie, with `margin`, None where a reward is not finite.
        pairs (`Iterable[Mapping]`): The same of each decided pair.
        num_skipped (`int`): Ties that could not be scored.

    Returns:
        `dict`: `num_pairs`, `num_skipped`, `num_equal` (both sides have the same reward), and the medians of |margin|,
        `median_margin` of ties and `median_margin_of_decided`; a model that agrees with people has the smaller one on
        ties. None where nothing was scored.
    """
    margins = _compute_sizes(ties)
    return {
        "num_pairs": len(margins),
        "num_skipped": num_skipped,
        "num_equal": int(np.sum(margins == 0)),
        "median_margin": _compute_median(margins),
        "median_margin_of_decided": _compute_median(_compute_sizes(pairs)),
    }


def _compute_sizes(scores: Iterable[Mapping[str, Any]]) -> np.ndarray:
    return np.abs([score["margin"] for score in scores if score["margin"] is not None])


def _compute_median(margins: np.ndarray) -> float | None:
    return float(np.median(margins)) if margins.size else None


def describe_ties(found: Mapping[str, Any] | None) -> str | None:
    """Return a note of the ties, as `measure_ties` gives them; None if there are none."""
    if not found or not found["num_pairs"] + found["num_skipped"]:
        return None
    note = f"Ties of the human label: {found['num_pairs'] + found['num_skipped']}, in no accuracy"
    if found["num_skipped"]:
        note += f", {found['num_skipped']} of them skipped"
    if found["median_margin"] is not None:
        note += f"; the median |margin| is {found['median_margin']:.3g}"
    if found["median_margin"] is not None and found["median_margin_of_decided"] is not None:
        note += f", that of decided pairs {found['median_margin_of_decided']:.3g}"
    return f"{note}."
