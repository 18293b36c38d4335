"""Find the pairs that one scorer has right and another wrong, first those on which both are most confident."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdiareward.pairs.schema import SIDES

from .inputs import ComparedEvaluation, check_same_pairs, is_finite, is_right


MAX_SHOWN = 20
Scores = Mapping[str, Mapping[str, Any]]


def find_disagreements(
    labels: Sequence[Mapping[str, Any]],
    scores: Scores,
    others: Sequence[ComparedEvaluation],
    nan: str,
    count: int = MAX_SHOWN,
) -> list[dict[str, Any]]:
    """Find where an evaluation and others disagree; `confidence` is the mean of both scorers' ranks of |margin|."""
    ids = [label["pair_id"] for label in labels]
    found = []
    for other in others:
        check_same_pairs(other, ids, nan)
        ranks = [_rank_margins([compute_margin(each[pair_id]) for pair_id in ids]) for each in (scores, other.scores)]
        confidence = (ranks[0] + ranks[1]) / 2
        differing = [
            row for row, pair_id in enumerate(ids) if is_right(scores[pair_id]) != is_right(other.scores[pair_id])
        ]
        differing.sort(key=lambda row: (-confidence[row], ids[row]))
        rows = [_describe(labels[row], scores, other.scores, float(confidence[row])) for row in differing[:count]]
        found.append({"title": other.model, "folder": other.folder, "num_pairs": len(differing), "rows": rows})
    return found


def compute_margin(score: Mapping[str, Any]) -> float | None:
    """Return chosen minus rejected reward; None if one of them is missing or not finite."""
    return float(score[SIDES[0]] - score[SIDES[1]]) if is_finite(score) else None


def _describe(label: Mapping[str, Any], own: Scores, other: Scores, confidence: float) -> dict[str, Any]:
    pair_id = label["pair_id"]
    margins = {"margin": compute_margin(own[pair_id]), "other_margin": compute_margin(other[pair_id])}
    return {**label, "is_right": is_right(own[pair_id]), **margins, "confidence": confidence}


def _rank_margins(margins: Sequence[float | None]) -> NDArray[np.float64]:
    """Return the share of pairs with a smaller |margin|: models and judges share no scale; no margin is last."""
    sizes = np.array([-1.0 if margin is None else abs(margin) for margin in margins])
    return np.searchsorted(np.sort(sizes), sizes, side="left") / len(sizes)
