"""Intervals of any statistic of pairs: whole recordings are drawn, because pairs cut from one are not independent.

The metric and the report's comparisons count pairs; what is measured here are sizes of margins, ratios and ranks. A
draw is therefore how often each pair is in it, a weight that any statistic can take.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


def draw_groups(
    groups: Sequence[Hashable], strata: Sequence[Hashable], *, num_bootstrap: int = 1000, seed: int = 0
) -> Counts:
    """Draw groups with replacement, as many of each stratum as there are, and say how often each value is drawn.

    Args:
        groups (`Sequence[Hashable]`): Recording that each value stems from, as `summary.groups_of` names it.
        strata (`Sequence[Hashable]`): Subset of each value; a group's stratum is the set of its values' subsets.
        num_bootstrap (`int`, *optional*, defaults to 1000): Number of draws.
        seed (`int`, *optional*, defaults to 0): Seed of the draws; the order of the values does not matter.

    Returns:
        `np.ndarray` of shape `(num_bootstrap, num_values)`: How often each value is in each draw.

    Example:
        >>> draw_groups(["a", "a"], ["wild", "wild"], num_bootstrap=2).tolist()
        [[1, 1], [1, 1]]
    """
    members: dict[Hashable, set[str]] = {}
    for group, stratum in zip(groups, strata, strict=True):
        members.setdefault(group, set()).add(str(stratum))
    by_stratum: dict[tuple[str, ...], list[Hashable]] = {}
    for group in sorted(members, key=str):
        by_stratum.setdefault(tuple(sorted(members[group])), []).append(group)
    generator = np.random.default_rng(seed)
    times: dict[Hashable, Counts] = {}
    for stratum in sorted(by_stratum):
        names = by_stratum[stratum]
        drawn = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=num_bootstrap)
        times.update(zip(names, drawn.T, strict=True))
    return np.stack([times[group] for group in groups], axis=1)


def percentiles(draws: ArrayLike, confidence: float = 0.95) -> list[float] | None:
    """Return the interval that a statistic's values in the draws give.

    Args:
        draws (`ArrayLike` of shape `(num_bootstrap,)`): One value a draw; NaN where it has none, left out.
        confidence (`float`, *optional*, defaults to 0.95): Coverage.

    Returns:
        `list[float]` or None: `[low, high]`; None if all draws are equal or have none, which says nothing about
        uncertainty.

    Example:
        >>> percentiles([0.0, 1.0, 2.0, 3.0, 4.0], confidence=0.5)
        [1.0, 3.0]
    """
    values: Floats = np.asarray(draws, dtype=np.float64)
    values = values[np.isfinite(values)]
    if not values.size or np.ptp(values) == 0:
        return None
    tail = (1 - confidence) / 2
    return [float(bound) for bound in np.quantile(values, [tail, 1 - tail])]
