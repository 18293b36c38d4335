"""Rank more than two systems by the strengths of a Bradley-Terry model, which `choix` fits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdiareward.esdr_accuracy.pairwise import has_many, percentile_interval, student_quantile

from ..statistics import Clusters


# Wins of each system over each other one that are added to the counted ones: without them the strength of a system
# that wins every time is infinite.
PRIOR_WINS = 0.5
_MAX_ITERATIONS = 10_000
# Narrower intervals are rounding errors of equal fits.
_MIN_WIDTH = 1e-9


def rank_systems(
    rewards: NDArray[np.float64], groups: Sequence[Hashable], *, num_bootstrap: int = 1000, seed: int = 0
) -> list[dict[str, Any]]:
    """Rank systems, the strongest first; `strength` is the log-odds of a win against a system of mean strength."""
    clusters = Clusters(groups, num_bootstrap=num_bootstrap, seed=seed)
    num_groups, num_systems = len(clusters.strata), rewards.shape[1]
    wins = np.zeros((num_groups, num_systems, num_systems))
    np.add.at(wins, clusters.members, _compute_win_matrices(rewards))
    total = wins.sum(axis=0)
    strengths = fit_strengths(total)
    if has_many(clusters.strata):
        draws = np.array([fit_strengths(drawn) for drawn in np.tensordot(clusters.draws, wins, axes=1)])
        intervals: list[list[float] | None] = [percentile_interval(each) for each in draws.T]
    else:
        intervals = _jackknife(wins, strengths)
    rates = total.sum(axis=1) / (total + total.T).sum(axis=1)
    return [
        {
            "system": int(system),
            "strength": float(strengths[system]),
            # None if no dialogue or group makes a difference.
            "interval": bounds if (bounds := intervals[system]) and np.ptp(bounds) > _MIN_WIDTH else None,
            "num_groups": num_groups,
            "win_rate": float(rates[system]),
        }
        for system in np.argsort(-strengths, kind="stable")
    ]


def _jackknife(wins: NDArray[np.float64], strengths: NDArray[np.float64]) -> list[list[float] | None]:
    """Return intervals of strengths by Student's t from fits without each group; None for one group."""
    num_groups = len(wins)
    if num_groups < 2:
        return [None] * len(strengths)
    changes = np.array([fit_strengths(wins.sum(axis=0) - left_out) for left_out in wins]) - strengths
    half = student_quantile(num_groups - 1) * np.sqrt((1 - 1 / num_groups) * (changes**2).sum(axis=0))
    return np.stack([strengths - half, strengths + half], axis=1).tolist()


def _compute_win_matrices(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each dialogue how often system `i` beats system `j`: 1, 0, or 0.5 of a tie."""
    margins = rewards[:, :, None] - rewards[:, None, :]
    wins = (np.sign(margins) + 1) / 2
    wins[:, np.arange(rewards.shape[1]), np.arange(rewards.shape[1])] = 0
    return wins


def fit_strengths(wins: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log-odds, mean 0, under which the wins of row over column plus `PRIOR_WINS` are most likely."""
    import choix

    prior = PRIOR_WINS * (1 - np.eye(len(wins)))
    strengths = np.asarray(choix.ilsr_pairwise_dense(wins + prior, max_iter=_MAX_ITERATIONS), dtype=np.float64)
    return strengths - strengths.mean()
