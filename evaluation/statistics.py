"""Compare scorers on the same pairs, and put intervals around any statistic of pairs.

Intervals are percentiles of a bootstrap that draws whole recordings, because pairs cut from one recording are not
independent. A draw is how often each pair is in it, a weight that any statistic can take.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdiareward.esdr_accuracy.pairwise import NO_SUBSET, wilson_interval


Booleans = NDArray[np.bool_]
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


def mcnemar_exact(num_only_first: int, num_only_second: int) -> float:
    """Return the exact two-sided p value of McNemar's test, as if pairs of one recording were independent."""
    from scipy.stats import binomtest

    discordant = num_only_first + num_only_second
    return float(binomtest(num_only_first, discordant).pvalue) if discordant else 1.0


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    groups: Sequence[Hashable],
    strata: Sequence[Hashable],
    *,
    num_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> list[float] | None:
    """Return the interval of the difference in accuracy; draws keep the groups per stratum, as in the metric."""
    difference = np.asarray(first, dtype=np.int64) - np.asarray(second, dtype=np.int64)
    return bootstrap_mean(difference, groups, strata, num_bootstrap=num_bootstrap, seed=seed, confidence=confidence)


def bootstrap_mean(
    values: ArrayLike,
    groups: Sequence[Hashable],
    strata: Sequence[Hashable],
    *,
    num_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> list[float] | None:
    """Return the interval of a mean from draws of whole groups; None if all draws are equal."""
    times, members = _draw_each_group(groups, strata, num_bootstrap, seed)
    # Sums of whole groups: a matrix of draws by pairs would not fit in memory for large benchmarks.
    sums, sizes = (np.bincount(members, weights, times.shape[1]) for weights in (np.asarray(values), None))
    return compute_percentiles(times @ sums / (times @ sizes), confidence)


def draw_groups(
    groups: Sequence[Hashable], strata: Sequence[Hashable], *, num_bootstrap: int = 1000, seed: int = 0
) -> Counts:
    """Draw groups with replacement within strata; return the count of each value, `(num_bootstrap, num_values)`."""
    times, members = _draw_each_group(groups, strata, num_bootstrap, seed)
    return times[:, members]


def _draw_each_group(
    groups: Sequence[Hashable], strata: Sequence[Hashable], num_bootstrap: int, seed: int
) -> tuple[Counts, Counts]:
    """Return how often each group is in each draw, `(num_bootstrap, num_groups)`, and the group of each value."""
    names: dict[Hashable, set[str]] = {}
    for group, stratum in zip(groups, strata, strict=True):
        names.setdefault(group, set()).add(str(stratum))
    # A group's stratum is the set of its values' subsets.
    by_stratum: dict[tuple[str, ...], list[Hashable]] = {}
    for group in sorted(names, key=str):
        by_stratum.setdefault(tuple(sorted(names[group] - {NO_SUBSET})), []).append(group)
    generator = np.random.default_rng(seed)
    index: dict[Hashable, int] = {}
    drawn = []
    for stratum in sorted(by_stratum):
        for group in by_stratum[stratum]:
            index[group] = len(index)
        size = len(by_stratum[stratum])
        drawn.append(generator.multinomial(size, np.full(size, 1 / size), size=num_bootstrap))
    return np.concatenate(drawn, axis=1), np.array([index[group] for group in groups])


def compute_percentiles(draws: ArrayLike, confidence: float = 0.95) -> list[float] | None:
    """Return a percentile interval, NaN ignored; None if all draws are equal, which shows no uncertainty."""
    values: Floats = np.asarray(draws, dtype=np.float64)
    values = values[np.isfinite(values)]
    # Means of equal values differ by rounding.
    if not values.size or np.ptp(values) <= 1e-12 * np.abs(values).max():
        return None
    tail = (1 - confidence) / 2
    return [float(bound) for bound in np.quantile(values, [tail, 1 - tail])]


def describe_share(
    values: ArrayLike, groups: Sequence[Hashable], strata: Sequence[Hashable], **options: Any
) -> dict[str, Any]:
    """Return a share with its bootstrap interval; if no two draws differ, Wilson's over groups, as in the metric."""
    array = np.asarray(values, dtype=np.bool_)
    if not len(array):
        return {"num_values": 0, "share": None, "interval": None}
    share = float(array.mean())
    interval = paired_bootstrap(array, np.zeros_like(array), groups, strata, **options)
    if interval is None:
        interval = wilson_interval(share, len(set(groups)))
    return {"num_values": len(array), "share": share, "interval": interval}


def compare(
    first: ArrayLike, second: ArrayLike, groups: Sequence[Hashable], strata: Sequence[Hashable], **options: Any
) -> dict[str, Any]:
    """Compare two scorers pair by pair; the `difference` is first minus second."""
    one, other = np.asarray(first, dtype=np.bool_), np.asarray(second, dtype=np.bool_)
    only_first, only_second = int((one & ~other).sum()), int((other & ~one).sum())
    return {
        "num_pairs": len(one),
        "num_both": int((one & other).sum()),
        "num_only_first": only_first,
        "num_only_second": only_second,
        "num_neither": int((~one & ~other).sum()),
        "difference": (only_first - only_second) / len(one),
        "interval": paired_bootstrap(one, other, groups, strata, **options),
        "p_value": mcnemar_exact(only_first, only_second),
    }
