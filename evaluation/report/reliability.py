"""How far `sigmoid(margin)` can be read as a probability: bins, calibration error, temperature.

The Bradley-Terry model of the paper's loss says that the chosen side wins with probability `sigmoid(margin)`. Every
pair is labelled "chosen", so a pair is folded: its confidence is `sigmoid(|margin|)`, the probability the model gives
to the side it prefers, and it is right if `margin > 0`. Counting each pair in both orders, `(margin, 1)` and
`(-margin, 0)`, gives the same error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


Floats = NDArray[np.float64]
NUM_FOLDS = 5
_MAX_BINS, _MIN_PAIRS_A_BIN = 10, 20


def num_bins(num_pairs: int) -> int:
    """Return the number of bins for a number of pairs: at most 10, with at least 20 pairs each."""
    return max(1, min(_MAX_BINS, num_pairs // _MIN_PAIRS_A_BIN))


def make_equal_mass_bins(values: ArrayLike) -> list[NDArray[np.intp]]:
    """Sort values into `num_bins` bins of equal size, to within one, smallest values first."""
    array = np.asarray(values, dtype=np.float64)
    return np.array_split(np.argsort(array, kind="stable"), num_bins(len(array)))


def fold(margins: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    """Return each pair's confidence, 0.5-1, and whether the model orders it correctly; a tie is wrong."""
    from scipy.special import expit

    array = np.asarray(margins, dtype=np.float64)
    return expit(np.abs(array)), array > 0


def expected_calibration_error(margins: ArrayLike, bins: Sequence[NDArray[np.intp]] | None = None) -> float:
    """Return the mean over pairs of `|accuracy - confidence|` of their bin; lower is better, few pairs inflate it."""
    confidence, is_right = fold(margins)
    if len(confidence) == 0:
        raise ValueError("there are no margins; a calibration error needs at least one pair.")
    found = make_equal_mass_bins(confidence) if bins is None else bins
    gaps = [len(rows) * abs(is_right[rows].mean() - confidence[rows].mean()) for rows in found]
    return float(sum(gaps) / len(confidence))


def negative_log_likelihood(margins: ArrayLike) -> float:
    """Return the mean of `-log sigmoid(margin)` in nats, the paper's ranking loss; lower is better."""
    return float(np.logaddexp(0.0, -np.asarray(margins, dtype=np.float64)).mean())


def fit_temperature(margins: ArrayLike) -> float | None:
    """Return the likeliest T of `sigmoid(margin / T)`; above 1 the model is overconfident. None if no T helps."""
    from scipy.optimize import brentq
    from scipy.special import expit

    array = np.asarray(margins, dtype=np.float64)
    # Pairs that are all right have no maximum of the likelihood. So, as in Platt scaling, the labels are not 1.
    target = (len(array) + 1) / (len(array) + 2)

    def slope(inverse: float) -> float:
        """Return the derivative of the smoothed negative log likelihood by 1 / T, which never falls."""
        return float(np.mean(array * (expit(inverse * array) - target)))

    if len(array) == 0 or slope(0.0) >= 0:
        return None
    high = 1.0 / float(np.abs(array).max())
    while slope(high) < 0:
        high *= 2
    return 1.0 / brentq(slope, 0.0, high, xtol=1e-12 * high)


def deal_folds(groups: Sequence[Hashable], strata: Sequence[str], num_folds: int = NUM_FOLDS) -> NDArray[np.int64]:
    """Deal whole groups into folds, those of each stratum evenly, in an order that depends on their names alone."""
    stratum: dict[Hashable, str] = {}
    for group, name in zip(groups, strata, strict=True):
        stratum.setdefault(group, name)
    order = sorted(stratum, key=lambda group: (stratum[group], hashlib.sha256(str(group).encode()).digest()))
    position = {group: number % num_folds for number, group in enumerate(order)}
    return np.array([position[group] for group in groups], dtype=np.int64)


def cross_fit_temperatures(margins: ArrayLike, folds: ArrayLike) -> Floats | None:
    """Return each pair's temperature, fitted on the other folds; None with a single fold or if a fit fails."""
    array, fold_of = np.asarray(margins, dtype=np.float64), np.asarray(folds)
    temperatures = np.empty_like(array)
    for number in np.unique(fold_of):
        fitted = fit_temperature(array[fold_of != number])
        if fitted is None:
            return None
        temperatures[fold_of == number] = fitted
    return temperatures
