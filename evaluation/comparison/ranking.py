"""Rank more than two systems by the strengths of a Bradley-Terry model, which `choix` fits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..statistics import compute_percentiles, draw_groups


# Wins of each system over each other one that are added to the counted ones: without them the strength of a system
# that wins every time is infinite.
PRIOR_WINS = 0.5
_MAX_ITERATIONS = 10_000


def rank_systems(
    rewards: NDArray[np.float64], groups: Sequence[Hashable], *, num_bootstrap: int = 1000, seed: int = 0
) -> list[dict[str, Any]]:
    """Rank systems, the strongest first; `strength` is the log-odds of a win against a system of mean strength."""
    members = {group: index for index, group in enumerate(sorted(set(groups), key=str))}
    num_systems = rewards.shape[1]
    wins = np.zeros((len(members), num_systems, num_systems))
    np.add.at(wins, [members[group] for group in groups], _compute_win_matrices(rewards))
    times = draw_groups(list(members), [""] * len(members), num_bootstrap=num_bootstrap, seed=seed)
    strengths = fit_strengths(wins.sum(axis=0))
    draws = np.array([fit_strengths(drawn) for drawn in np.tensordot(times, wins, axes=1)])
    total = wins.sum(axis=0)
    rates = total.sum(axis=1) / (total + total.T).sum(axis=1)
    return [
        {
            "system": int(system),
            "strength": float(strengths[system]),
            "interval": compute_percentiles(draws[:, system]),
            "win_rate": float(rates[system]),
        }
        for system in np.argsort(-strengths, kind="stable")
    ]


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
