"""Compare scorers on the same pairs, compute intervals of means over pairs, and measure calibration.

Intervals resample whole recordings, because pairs from one recording are not independent: bootstrap percentiles for
many recordings, the intervals of `esdr_accuracy.pairwise` for few, none for one.

Under the Bradley-Terry model of the paper's loss, the chosen side wins with probability `sigmoid(margin)`. Every pair
is labelled "chosen", so calibration folds pairs: a pair's confidence is `sigmoid(|margin|)`, the probability of the
side that the model prefers, and it is right if `margin > 0`. Counting each pair in both orders gives the same error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdiareward.esdr_accuracy import pairwise


Booleans = NDArray[np.bool_]
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
_NUM_FOLDS = 5
_MAX_BINS, _MIN_PAIRS_A_BIN = 10, 20


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
        for group, stratum in zip(groups, strata or [pairwise.NO_SUBSET] * len(groups), strict=True):
            names.setdefault(group, set()).add(str(stratum))
        # The stratum of a group is the set of subsets of its values.
        keys = {group: tuple(sorted(found - {pairwise.NO_SUBSET})) for group, found in names.items()}
        order = sorted(names, key=lambda group: (keys[group], str(group)))
        position = {group: index for index, group in enumerate(order)}
        self.members: Counts = np.array([position[group] for group in groups], dtype=np.int64)
        self.strata: Counts = np.unique([repr(keys[group]) for group in order], return_inverse=True)[1]
        self._options = (num_bootstrap, seed)

    @cached_property
    def draws(self) -> Counts:
        """How often each draw contains each group, `(num_bootstrap, num_groups)`."""
        num_bootstrap, seed = self._options
        generator = np.random.default_rng(seed)
        draws = np.zeros((num_bootstrap, len(self.strata)), dtype=np.int64)
        for stratum in dict.fromkeys(self.strata.tolist()):
            is_in = self.strata == stratum
            size = int(is_in.sum())
            draws[:, is_in] = generator.multinomial(size, np.full(size, 1 / size), size=num_bootstrap)
        return draws

    def add_up(self, values: Counts) -> Counts:
        """Return the sum of values per group."""
        return np.bincount(self.members, values, len(self.strata)).astype(np.int64)

    def measure(
        self,
        values: ArrayLike,
        is_used: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        *,
        is_share: bool = False,
    ) -> dict[str, Any]:
        """Return `mean`, `interval` and `num_groups` of values, or of their ratio to weights; None without values.

        A share is within 0-1 and has an interval unless there is only one group. Another mean has no interval if all
        values are equal.
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
        # Means of equal values may differ by rounding.
        residuals[np.abs(residuals) <= 1e-12 * np.abs(numbers).max()] = 0
        sums = [np.bincount(members, each, len(self.strata)) for each in (numbers, sizes, residuals)]
        variance = pairwise.cluster_variance(sums[2][is_in], sums[1][is_in], float(residuals @ residuals))
        interval = None
        if pairwise.has_many(self.strata[is_in]):
            with np.errstate(invalid="ignore", divide="ignore"):
                draws = (self.draws @ sums[0]) / (self.draws @ sums[1])
            draws = draws[np.isfinite(draws)]
            if np.ptp(draws) > 1e-12 * np.abs(draws).max():
                interval = pairwise.percentile_interval(draws)
        if interval is None and is_share:
            interval = pairwise.wilson_interval(mean, num_groups, variance=variance)
        elif interval is None and 0 < variance < np.inf:
            half = pairwise.student_quantile(num_groups - 1) * variance**0.5
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
    """Compare two scorers pair by pair; `difference` is first minus second."""
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
    """Return the exact two-sided p value for sums over groups with random signs; with single pairs it is McNemar's."""
    from scipy.signal import convolve
    from scipy.stats import binom

    distribution = np.ones(1)
    for size, count in zip(*np.unique(np.abs(differences[differences != 0]), return_counts=True), strict=True):
        of_size = np.zeros(2 * count * size + 1)
        of_size[:: 2 * size] = binom.pmf(np.arange(count + 1), count, 0.5)
        distribution = convolve(distribution, of_size)
    sums = np.arange(len(distribution)) - len(distribution) // 2
    return float(min(1.0, distribution[np.abs(sums) >= abs(differences.sum())].sum()))


def make_equal_mass_bins(values: ArrayLike) -> list[NDArray[np.intp]]:
    """Sort values into at most 10 equal bins of at least 20 values, smallest values first."""
    array = np.asarray(values, dtype=np.float64)
    num_bins = max(1, min(_MAX_BINS, len(array) // _MIN_PAIRS_A_BIN))
    return np.array_split(np.argsort(array, kind="stable"), num_bins)


def fold(margins: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    """Return each pair's confidence, 0.5-1, and whether the model orders it correctly; a tie is wrong."""
    from scipy.special import expit

    array = np.asarray(margins, dtype=np.float64)
    return expit(np.abs(array)), array > 0


def expected_calibration_error(margins: ArrayLike) -> float:
    """Return the mean over pairs of their bin's `|accuracy - confidence|`; lower is better, few pairs inflate it."""
    confidence, is_right = fold(margins)
    bins = make_equal_mass_bins(confidence)
    gaps = [len(rows) * abs(is_right[rows].mean() - confidence[rows].mean()) for rows in bins]
    return float(sum(gaps) / len(confidence))


def fit_temperature(margins: ArrayLike) -> float | None:
    """Return the maximum-likelihood T of `sigmoid(margin / T)`; above 1: overconfident. None if no T helps."""
    from scipy.optimize import brentq
    from scipy.special import expit

    array = np.asarray(margins, dtype=np.float64)
    # If all pairs are right, the likelihood has no maximum. Therefore, as in Platt scaling, labels are below 1.
    target = (len(array) + 1) / (len(array) + 2)

    def slope(inverse: float) -> float:
        """Return the derivative of the smoothed negative log likelihood by 1 / T; it never decreases."""
        return float(np.mean(array * (expit(inverse * array) - target)))

    if len(array) == 0 or slope(0.0) >= 0:
        return None
    high = 1.0 / float(np.abs(array).max())
    while slope(high) < 0:
        high *= 2
    return 1.0 / brentq(slope, 0.0, high, xtol=1e-12 * high)


def deal_folds(groups: Sequence[Hashable], strata: Sequence[str], num_folds: int = _NUM_FOLDS) -> NDArray[np.int64]:
    """Deal whole groups into folds, evenly per stratum; the order depends only on their names."""
    stratum: dict[Hashable, str] = {}
    for group, name in zip(groups, strata, strict=True):
        stratum.setdefault(group, name)
    order = sorted(stratum, key=lambda group: (stratum[group], hashlib.sha256(str(group).encode()).digest()))
    position = {group: number % num_folds for number, group in enumerate(order)}
    return np.array([position[group] for group in groups], dtype=np.int64)


def cross_fit_temperatures(margins: ArrayLike, folds: ArrayLike) -> Floats | None:
    """Return each pair's temperature, fitted on the other folds; None for a single fold or a failed fit."""
    array, fold_of = np.asarray(margins, dtype=np.float64), np.asarray(folds)
    temperatures = np.empty_like(array)
    for number in np.unique(fold_of):
        fitted = fit_temperature(array[fold_of != number])
        if fitted is None:
            return None
        temperatures[fold_of == number] = fitted
    return temperatures
