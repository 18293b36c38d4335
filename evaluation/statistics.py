"""Compare scorers on the same pairs, and put intervals around any mean over pairs.

Intervals are over whole recordings, because pairs cut from one recording are not independent: from many recordings
percentiles of a bootstrap, from few the intervals of `esdr_accuracy.pairwise`, from one none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdiareward.esdr_accuracy.pairwise import (
    NO_SUBSET,
    cluster_variance,
    has_many,
    percentile_interval,
    student_quantile,
    wilson_interval,
)


Booleans = NDArray[np.bool_]
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


class Clusters:
    """Groups of values, such as the recordings of pairs, and the bootstrap draws of whole groups within strata."""

    def __init__(
        self,
        groups: Sequence[Hashable],
        strata: Sequence[Hashable] | None = None,
        *,
        num_bootstrap: int = 1000,
        seed: int = 0,
    ):
        names: dict[Hashable, set[str]] = {}
        for group, stratum in zip(groups, strata or [NO_SUBSET] * len(groups), strict=True):
            names.setdefault(group, set()).add(str(stratum))
        # A group's stratum is the set of its values' subsets.
        keys = {group: tuple(sorted(found - {NO_SUBSET})) for group, found in names.items()}
        order = sorted(names, key=lambda group: (keys[group], str(group)))
        position = {group: index for index, group in enumerate(order)}
        self.members: Counts = np.array([position[group] for group in groups], dtype=np.int64)
        self.strata: Counts = np.unique([repr(keys[group]) for group in order], return_inverse=True)[1]
        self._options = (num_bootstrap, seed)

    @cached_property
    def draws(self) -> Counts:
        """How often each group is in each draw, `(num_bootstrap, num_groups)`."""
        num_bootstrap, seed = self._options
        generator = np.random.default_rng(seed)
        draws = np.zeros((num_bootstrap, len(self.strata)), dtype=np.int64)
        for stratum in dict.fromkeys(self.strata.tolist()):
            is_in = self.strata == stratum
            size = int(is_in.sum())
            draws[:, is_in] = generator.multinomial(size, np.full(size, 1 / size), size=num_bootstrap)
        return draws

    def add_up(self, values: Counts) -> Counts:
        """Return the sum of the values of each group."""
        return np.bincount(self.members, values, len(self.strata)).astype(np.int64)

    def measure(
        self,
        values: ArrayLike,
        is_used: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        *,
        is_share: bool = False,
        confidence: float = 0.95,
    ) -> dict[str, Any]:
        """Return `mean`, `interval` and `num_groups` of some values, or of their ratio to weights; None without any.

        A share is within 0-1 and always has an interval, except from one group. Another mean has none if all values
        are equal.
        """
        used = np.arange(len(self.members)) if is_used is None else np.flatnonzero(is_used)
        numbers = np.asarray(values, dtype=np.float64)[used]
        sizes = np.ones(len(used)) if weights is None else np.asarray(weights, dtype=np.float64)[used]
        members = self.members[used]
        is_in = np.bincount(members, minlength=len(self.strata)) > 0
        num_groups = int(is_in.sum())
        if not len(used) or not sizes.sum():
            return {"mean": None, "interval": None, "num_groups": num_groups}
        mean = float(numbers.sum() / sizes.sum())
        residuals = numbers - mean * sizes
        # Means of equal values differ by rounding.
        residuals[np.abs(residuals) <= 1e-12 * np.abs(numbers).max()] = 0
        sums = [np.bincount(members, each, len(self.strata)) for each in (numbers, sizes, residuals)]
        variance = cluster_variance(sums[2][is_in], sums[1][is_in], float(residuals @ residuals))
        interval = None
        if has_many(self.strata[is_in]):
            with np.errstate(invalid="ignore", divide="ignore"):
                draws = (self.draws @ sums[0]) / (self.draws @ sums[1])
            draws = draws[np.isfinite(draws)]
            if np.ptp(draws) > 1e-12 * np.abs(draws).max():
                interval = percentile_interval(draws, confidence)
        if interval is None and is_share:
            interval = wilson_interval(mean, num_groups, confidence, variance)
        elif interval is None and 0 < variance < np.inf:
            half = student_quantile(num_groups - 1, confidence) * variance**0.5
            interval = [mean - half, mean + half]
        return {"mean": mean, "interval": interval, "num_groups": num_groups}


def describe_share(
    values: ArrayLike, groups: Sequence[Hashable], strata: Sequence[Hashable] | None = None, **options: Any
) -> dict[str, Any]:
    """Return a share with its interval and the numbers of values and groups."""
    array = np.asarray(values, dtype=np.float64)
    found = Clusters(groups, strata, **options).measure(array, is_share=True)
    return {"num_values": len(array), "share": found.pop("mean"), **found}


def compare(
    first: ArrayLike, second: ArrayLike, groups: Sequence[Hashable], strata: Sequence[Hashable], **options: Any
) -> dict[str, Any]:
    """Compare two scorers pair by pair; the `difference` is first minus second."""
    one, other = np.asarray(first, dtype=np.bool_), np.asarray(second, dtype=np.bool_)
    counts = {"both": one & other, "only_first": one & ~other, "only_second": other & ~one, "neither": ~one & ~other}
    difference = one.astype(np.int64) - other
    clusters = Clusters(groups, strata, **options)
    found = clusters.measure(difference)
    return {
        "num_pairs": len(one),
        **{f"num_{name}": int(is_so.sum()) for name, is_so in counts.items()},
        "difference": found.pop("mean"),
        **found,
        "p_value": sign_flip_test(clusters.add_up(difference)),
    }


def sign_flip_test(differences: Counts) -> float:
    """Return the exact two-sided p value of sums over groups with random signs; for single pairs it is McNemar's."""
    from scipy.signal import convolve
    from scipy.stats import binom

    distribution = np.ones(1)
    for size, count in zip(*np.unique(np.abs(differences[differences != 0]), return_counts=True), strict=True):
        of_size = np.zeros(2 * count * size + 1)
        of_size[:: 2 * size] = binom.pmf(np.arange(count + 1), count, 0.5)
        distribution = convolve(distribution, of_size)
    sums = np.arange(len(distribution)) - len(distribution) // 2
    return float(min(1.0, distribution[np.abs(sums) >= abs(differences.sum())].sum()))
