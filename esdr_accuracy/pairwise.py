"""Pairwise accuracy by subset with micro and macro averages, counts and intervals; NumPy only.

A pair is right if `chosen > rejected` strictly (section 5.1 of the paper); a tie is wrong and also counted.

Notable choices:

- Pairs from one recording are not independent, so intervals are over groups. If every stratum (the set of subsets in
  which a group has pairs) has `MIN_BOOTSTRAP_GROUPS`, they are percentiles of a bootstrap that keeps the number of
  groups per stratum, so that every draw has all subsets. Groups with equal counts are exchangeable, so drawing how
  often each distinct row of counts occurs costs the same for a hundred pairs and for a million.
- With fewer groups, percentiles are too narrow. Then we use a Wilson interval with Student's quantile for the number
  of groups and the number of trials that has the variance over groups, at most the number of pairs.
- Values without spread do not show certainty: 824 right of 824 is not certain. Then we use a Wilson interval with the
  groups as trials. One group has no interval.
- The bounds of a macro average without a bootstrap combine the bounds of its members (MOVER, Zou and Donner, 2008):
  the distance to a bound is the root of the summed squared distances, or their sum if members share groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from functools import cache, lru_cache
from numbers import Integral, Real
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray


MODALITY_SUBSETS = ("wild", "semi_wild", "scripted")
SUBSETS = (*MODALITY_SUBSETS, "colloquialness")
# For pairs without a subset, such as other data; they count only in overall micro.
NO_SUBSET = "all"
_STRATA = (*SUBSETS, NO_SUBSET)
# The columns of Table 2, in its order.
COLUMNS = (*MODALITY_SUBSETS, "modality_micro", "modality_macro", "colloquialness", "overall_micro", "overall_macro")
MACRO_MEMBERS = {"modality_macro": MODALITY_SUBSETS, "overall_macro": ("modality_macro", "colloquialness")}
# The `COLUMNS` that count the pairs of each of `_STRATA`.
_COUNTED: dict[str, Sequence[str]] = {name: (name,) for name in SUBSETS}
_COUNTED |= {"modality_micro": MODALITY_SUBSETS, "modality_macro": MODALITY_SUBSETS}
_COUNTED |= {"overall_micro": _STRATA, "overall_macro": SUBSETS}
_IS_COUNTED = np.array([[int(name in _COUNTED[column]) for column in COLUMNS] for name in _STRATA])
# With fewer groups, bootstrap percentiles are too narrow: see the table in `docs/evaluate.md`.
MIN_BOOTSTRAP_GROUPS = 100

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


def pairwise_accuracy(
    chosen: ArrayLike,
    rejected: ArrayLike,
    subset: Sequence[str] | None = None,
    group_id: Sequence[Hashable] | None = None,
    *,
    nan: Literal["error", "wrong"] = "error",
    missing: Literal["report", "error"] = "report",
    num_bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """Compute the accuracies of Table 2 from the rewards of both sides of each pair.

    Modality micro is over all pairs of the three modality subsets; modality macro is the plain mean of their
    accuracies. Overall micro is over all pairs; overall macro is the mean of modality macro and colloquialness. Macro
    averages use the subsets that are present.

    Args:
        chosen (`ArrayLike` of shape `(num_pairs,)`): Rewards of the preferred dialogues; higher is better.
        rejected (`ArrayLike` of shape `(num_pairs,)`): Rewards of the other dialogues.
        subset (`Sequence[str]`, *optional*): `"wild"`, `"semi_wild"`, `"scripted"` or `"colloquialness"` for each
            pair; `"all"`, the default, for other pairs, which count only in overall micro.
        group_id (`Sequence`, *optional*): Original recording of each pair; by default every pair is its own group.
        nan (`"error"` or `"wrong"`, *optional*, defaults to `"error"`):
            How to treat a pair with a missing, NaN or infinite reward; `"wrong"` also counts it as invalid.
        missing (`"report"` or `"error"`, *optional*, defaults to `"report"`): How to treat an absent subset.
        num_bootstrap (`int`, *optional*, defaults to 1000): Number of bootstrap draws, used from 100 groups on.
        seed (`int`, *optional*, defaults to 0): Seed of the draws; the order of the pairs does not matter.
        confidence (`float`, *optional*, defaults to 0.95): Coverage of the intervals.

    Returns:
        `dict[str, Any]`: Accuracies in 0-1 under the names in `COLUMNS`, None without pairs. By the same names:
        `num_pairs`, `num_correct`, `num_ties`, `num_invalid`, `num_groups`, `interval` (`[low, high]`, None for one
        group) and `interval_method` (`"bootstrap"`, `"wilson"` or None). `missing_subsets` lists the absent subsets.

    Raises:
        ValueError: There are no pairs, lengths differ, a subset is unknown, a reward is missing or not finite while
            `nan` is `"error"`, a group is missing, a subset is absent while `missing` is `"error"`, or an option is
            out of range.
        TypeError: A column is not a list, a reward is not a real number, or a group is not hashable.

    Examples:
        >>> result = pairwise_accuracy([2.0, 1.0, 0.5], [1.0, 1.0, 0.0], ["wild", "wild", "scripted"])
        >>> result["wild"], result["scripted"], result["modality_macro"], result["num_ties"]["wild"]
        (0.5, 1.0, 0.75, 1)
        >>> result["colloquialness"] is None, result["missing_subsets"]
        (True, ['semi_wild', 'colloquialness'])
        >>> pairwise_accuracy([2.0, 1.0], [1.0, 1.5])["overall_micro"]
        0.5
    """
    _check_options(nan, missing, num_bootstrap, confidence)
    first, second, strata = _read_inputs(chosen, rejected, subset)
    membership = np.eye(len(_STRATA), dtype=np.int64)[strata]
    totals = membership.sum(axis=0)
    absent = [name for name, total in zip(SUBSETS, totals, strict=False) if total == 0]
    if absent and missing == "error":
        raise ValueError(f"no pairs of subset {absent}; add them or pass missing='report'.")
    is_valid: NDArray[np.bool_] = np.isfinite(first) & np.isfinite(second)
    if nan == "error" and not is_valid.all():
        index = int(is_valid.argmin())
        raise ValueError(
            f"{int((~is_valid).sum())} pairs have a missing or non-finite reward, first: pair {index} "
            f"(chosen {first[index]}, rejected {second[index]}); score them again or pass nan='wrong'."
        )
    is_correct = is_valid & (first > second)
    # Pairs and correct pairs of each group by stratum, shape (num_groups, 2, num_strata).
    groups = np.stack([membership, membership * is_correct[:, None]], axis=1)
    if group_id is not None:
        position = _number_groups(group_id, len(first))
        pairs, groups = groups, np.zeros((max(position) + 1, *groups.shape[1:]), dtype=np.int64)
        np.add.at(groups, position, pairs)
    correct = membership[is_correct].sum(axis=0)
    numbers = {
        "num_pairs": totals @ _IS_COUNTED,
        "num_correct": correct @ _IS_COUNTED,
        "num_ties": membership[is_valid & (first == second)].sum(axis=0) @ _IS_COUNTED,
        "num_invalid": membership[~is_valid].sum(axis=0) @ _IS_COUNTED,
        "num_groups": (groups[:, 0] @ _IS_COUNTED > 0).sum(axis=0),
    }
    accuracy = {
        name: None if math.isnan(value) else float(value) for name, value in _by_column(correct, totals).items()
    }
    draw = cache(lambda: _by_column(*_bootstrap(groups, num_bootstrap, seed)))
    intervals, methods = _compute_intervals(accuracy, groups, draw, confidence)
    return {
        **accuracy,
        **{name: dict(zip(COLUMNS, values.tolist(), strict=True)) for name, values in numbers.items()},
        "missing_subsets": absent,
        "confidence": confidence,
        "interval": intervals,
        "interval_method": methods,
    }


def _check_options(nan: str, missing: str, num_bootstrap: int, confidence: float) -> None:
    for name, value, other in (("nan", nan, "wrong"), ("missing", missing, "report")):
        if value not in ("error", other):
            raise ValueError(f"{name} is {value!r}; it must be 'error' or {other!r}.")
    if not isinstance(num_bootstrap, Integral) or num_bootstrap < 1:
        raise ValueError(f"num_bootstrap is {num_bootstrap!r}; it must be a positive integer, usually 1000.")
    # A value that rounds to 1 would need an infinite quantile.
    if not (isinstance(confidence, Real) and confidence > 0 and (1 + confidence) / 2 < 1):
        raise ValueError(f"confidence is {confidence}; it must be between 0 and 1, usually 0.95.")


def _read_inputs(chosen: Any, rejected: Any, subset: Any) -> tuple[Floats, Floats, list[int]]:
    """Return the rewards of each pair, and the position of its subset in `_STRATA`."""
    if subset is None and hasattr(chosen, "__len__"):
        subset = [NO_SUBSET] * len(chosen)
    for name, values in (("chosen", chosen), ("rejected", rejected), ("subset", subset)):
        if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
            raise TypeError(f"{name} is {values!r:.80}; give a list with one entry per pair.")
    first, second = _read_rewards(chosen, "chosen"), _read_rewards(rejected, "rejected")
    if not len(first) == len(second) == len(subset) > 0:
        raise ValueError(f"got {len(first)} chosen, {len(second)} rejected and {len(subset)} subset; give as many.")
    for index, name in enumerate(subset):
        if name not in _STRATA:
            known = f"one of {', '.join(SUBSETS)}, or {NO_SUBSET!r} for pairs of other data"
            raise ValueError(f"subset of pair {index} is {name!r}; give {known}.")
    return first, second, [_STRATA.index(name) for name in subset]


def _read_rewards(values: Any, name: str) -> Floats:
    """Return one float64 per pair; None and masked values become NaN."""
    array = np.ma.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; give one reward per pair, shape (num_pairs,).")
    if array.dtype.kind not in "biuf":
        for index, value in enumerate(array.tolist()):
            if not isinstance(value, (Real, Decimal, type(None))):
                raise TypeError(f"{name} of pair {index} is {value!r}; give a real number, or None if it is missing.")
    rewards: Floats = np.ma.filled(array.astype(np.float64), np.nan)
    return rewards


def _number_groups(group_id: Any, num_pairs: int) -> list[int]:
    """Number the groups from 0; return the number of each pair's group."""
    groups = [group_id] if isinstance(group_id, str) else getattr(group_id, "tolist", lambda: list(group_id))()
    if len(groups) != num_pairs:
        raise ValueError(f"got {num_pairs} pairs and {len(groups)} group_id; give one per pair.")
    for index, group in enumerate(groups):
        # NaN and NaT differ from themselves.
        if group is None or group != group:
            raise ValueError(f"group_id of pair {index} is missing ({group!r}); give all of them or none.")
    position: dict[Hashable, int] = {}
    return [position.setdefault(group, len(position)) for group in groups]


def _bootstrap(groups: Counts, num_bootstrap: int, seed: int) -> tuple[Counts, Counts]:
    """Return correct pairs and pairs of each draw, both of shape `(num_bootstrap, num_strata)`."""
    rows, sizes = np.unique(groups.reshape(len(groups), -1), axis=0, return_counts=True)
    # Pairs without a subset form no stratum; otherwise groups that also have other pairs would be alone in theirs.
    _, stratum = np.unique(rows[:, : len(SUBSETS)] > 0, axis=0, return_inverse=True)
    stratum = stratum.reshape(-1)
    generator = np.random.default_rng(seed)
    draws = np.zeros((num_bootstrap, rows.shape[1]), dtype=np.int64)
    for index in range(stratum.max() + 1):
        is_member = stratum == index
        num_groups = int(sizes[is_member].sum())
        times = generator.multinomial(num_groups, sizes[is_member] / num_groups, size=num_bootstrap)
        draws += times @ rows[is_member]
    return draws[:, len(_STRATA) :], draws[:, : len(_STRATA)]


def _by_column(correct: Counts, totals: Counts) -> dict[str, Any]:
    """Return each column's accuracy, NaN without pairs; the last axis of both arguments is the stratum."""
    accuracy = np.moveaxis(_divide(correct @ _IS_COUNTED, totals @ _IS_COUNTED), -1, 0)
    columns = dict(zip(COLUMNS, accuracy, strict=True))
    for name, members in MACRO_MEMBERS.items():
        values = np.stack([columns[member] for member in members])
        columns[name] = _divide(np.nansum(values, axis=0), (~np.isnan(values)).sum(axis=0))
    return columns


def _divide(numerator: Any, denominator: Any) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.true_divide(numerator, denominator), dtype=np.float64)


def _compute_intervals(
    accuracy: dict[str, Any], groups: Counts, draw: Callable[[], dict[str, Floats]], confidence: float
) -> tuple[dict[str, list[float] | None], dict[str, str | None]]:
    """Return the interval and method of each column."""
    intervals: dict[str, list[float] | None] = dict.fromkeys(COLUMNS)
    methods: dict[str, str | None] = dict.fromkeys(COLUMNS)
    counts = dict(zip(COLUMNS, np.moveaxis(groups @ _IS_COUNTED, -1, 0), strict=True))
    strata = (groups[:, 0, : len(SUBSETS)] > 0) @ (1 << np.arange(len(SUBSETS)))
    # In `COLUMNS` a macro average comes after its members.
    for name, share in accuracy.items():
        members = [member for member in MACRO_MEMBERS.get(name, ()) if accuracy[member] is not None]
        is_in = counts[name][:, 0] > 0
        is_drawn = {methods[member] for member in members} == {"bootstrap"} if members else has_many(strata[is_in])
        if is_drawn and np.ptp(draws := draw()[name]) > 0:
            intervals[name] = percentile_interval(draws, confidence)
            methods[name] = "bootstrap"
            continue
        if members:
            has_pairs = np.stack([counts[member][:, 0] > 0 for member in members]).astype(np.int64)
            bounds = [(accuracy[member], intervals[member]) for member in members]
            intervals[name] = combine_intervals(bounds, has_pairs @ has_pairs.T > 0)
        elif share is not None:
            pairs, correct = counts[name][is_in].T
            variance = cluster_variance(correct - share * pairs, pairs, share * (1 - share) * pairs.sum())
            intervals[name] = wilson_interval(share, len(pairs), confidence, variance)
        methods[name] = "wilson" if intervals[name] else None
    return intervals, methods


def has_many(strata: Counts) -> bool:
    """Return whether each stratum has enough groups for a bootstrap; `strata` are codes."""
    counts = np.bincount(strata)
    return bool(len(strata) and counts[counts > 0].min() >= MIN_BOOTSTRAP_GROUPS)


def percentile_interval(draws: Floats, confidence: float = 0.95) -> list[float]:
    tail = (1 - confidence) / 2
    return [float(bound) for bound in np.quantile(draws, [tail, 1 - tail])]


def cluster_variance(residuals: ArrayLike, sizes: ArrayLike, squares: float) -> float:
    """Return the jackknife variance of a mean over groups, at least the variance of independent values.

    `residuals` and `sizes` are sums over each group, of values minus the mean and of weights; `squares` is the sum of
    squared residuals of single values.
    """
    sums, weights = np.asarray(residuals, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    total = weights.sum()
    changes = _divide(sums, total - weights)
    return float(max((1 - 1 / len(sums)) * math.fsum(changes**2), squares / total**2)) if len(sums) > 1 else 0.0


@lru_cache
def student_quantile(degrees: int, confidence: float = 0.95) -> float:
    """Return the bound that the absolute value of Student's t exceeds with probability `1 - confidence`."""
    # As t = sqrt(degrees) tan(angle), the density of the angle is cos(angle) ** (degrees - 1).
    degrees = min(degrees, 100_000)
    angle = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angle) ** (degrees - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(degrees) * math.tan(np.interp(confidence, share / share[-1], angle))


def wilson_interval(
    share: float, num_groups: int, confidence: float = 0.95, variance: float = 0.0
) -> list[float] | None:
    """Return Wilson's score interval of a share, in 0-1; None for one group.

    Without a variance, the groups are the trials. With a variance, the number of trials matches it, and the quantile
    is Student's.
    """
    if num_groups < 2:
        return None
    z = student_quantile(num_groups - 1, confidence) if variance else NormalDist().inv_cdf((1 + confidence) / 2)
    num_trials = share * (1 - share) / variance if variance else num_groups
    scale = 1 + z * z / num_trials
    centre = (share + z * z / (2 * num_trials)) / scale
    half = z * math.sqrt(share * (1 - share) / num_trials + (z / (2 * num_trials)) ** 2) / scale
    # Rounded, because a proportion of 1 would end at 0.9999999999999999.
    return [max(0.0, round(centre - half, 12)), min(1.0, round(centre + half, 12))]


def combine_intervals(
    estimates: Sequence[tuple[float, Sequence[float] | None]], is_shared: ArrayLike | None = None
) -> list[float] | None:
    """Return the interval of the mean of shares with intervals, by MOVER; None if one has none.

    `is_shared` marks pairs of dependent shares, by default the identity matrix.
    """
    if any(bounds is None for _, bounds in estimates):
        return None
    shares = np.array([share for share, _ in estimates])
    distances = np.abs(shares[:, None] - np.array([bounds for _, bounds in estimates]))
    related = np.eye(len(shares)) if is_shared is None else np.asarray(is_shared, dtype=np.float64)
    below, above = (np.sqrt(np.einsum("ib,ij,jb->b", distances, related, distances)) / len(shares)).tolist()
    centre = float(shares.mean())
    return [max(0.0, round(centre - below, 12)), min(1.0, round(centre + above, 12))]
