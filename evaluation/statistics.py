"""Two scorers on the same pairs: who is right where the other is wrong, and how sure the difference is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdiareward.esdr_accuracy.pairwise import wilson_interval


Booleans = NDArray[np.bool_]


def mcnemar_exact(num_only_first: int, num_only_second: int) -> float:
    """Return the p value of McNemar's test in its exact, two-sided form.

    Of the pairs that one scorer has right and the other wrong, each is as likely to be the first's as the second's if
    both are equally good. The test takes pairs as independent; those cut from one recording are not.

    Args:
        num_only_first (`int`): Pairs that only the first scorer has right.
        num_only_second (`int`): Pairs that only the second has right.

    Example:
        >>> mcnemar_exact(1, 5)  # 2 * (1 + 6) / 2**6
        0.21875
    """
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
    """Find the interval of the difference in accuracy by drawing whole groups, both scorers' pairs together.

    Draws keep the number of groups of each stratum, as the metric's own intervals do.

    Args:
        first (`ArrayLike` of shape `(num_pairs,)`): Whether the first scorer has each pair right.
        second (`ArrayLike` of shape `(num_pairs,)`): Whether the second has.
        groups (`Sequence[Hashable]`): Recording of each pair.
        strata (`Sequence[Hashable]`): Subset of each pair; a group's stratum is the set of its pairs' subsets.
        num_bootstrap (`int`, *optional*, defaults to 1000): Number of draws.
        seed (`int`, *optional*, defaults to 0): Seed of the draws.
        confidence (`float`, *optional*, defaults to 0.95): Coverage.

    Returns:
        `list[float]` or None: Percentiles `[low, high]` of first minus second; None if all draws are equal, which says
        nothing about uncertainty.
    """
    difference = np.asarray(first, dtype=np.int64) - np.asarray(second, dtype=np.int64)
    generator = np.random.default_rng(seed)
    sums = np.zeros((num_bootstrap, 2), dtype=np.int64)
    for counts in _counts_by_stratum(difference, groups, strata):
        # Groups of equal counts are exchangeable: draw how often each distinct row occurs.
        rows, sizes = np.unique(counts, axis=0, return_counts=True)
        times = generator.multinomial(len(counts), sizes / len(counts), size=num_bootstrap)
        sums += times @ rows
    draws = sums[:, 0] / sums[:, 1]
    if np.ptp(draws) == 0:
        return None
    tail = (1 - confidence) / 2
    return [float(bound) for bound in np.quantile(draws, [tail, 1 - tail])]


def describe_share(
    values: ArrayLike, groups: Sequence[Hashable], strata: Sequence[Hashable], **options: Any
) -> dict[str, Any]:
    """Return how often something is so, with the interval of a bootstrap that draws whole groups.

    Where no two draws differ the interval is Wilson's, with the number of groups as sample size, as the metric has it.

    Args:
        values (`ArrayLike` of shape `(num_values,)`): Whether it is so.
        groups (`Sequence[Hashable]`): Recording of each.
        strata (`Sequence[Hashable]`): Subset of each.
        **options: Of `paired_bootstrap`.

    Returns:
        `dict[str, Any]`: `num_values`, `share` (0-1) and its `interval`; both None where there are no values.
    """
    array = np.asarray(values, dtype=np.bool_)
    if not len(array):
        return {"num_values": 0, "share": None, "interval": None}
    share = float(array.mean())
    interval = paired_bootstrap(array, np.zeros_like(array), groups, strata, **options)
    if interval is None:
        interval = wilson_interval(share, len(set(groups)))
    return {"num_values": len(array), "share": share, "interval": interval}


def _counts_by_stratum(
    difference: NDArray[np.int64], groups: Sequence[Hashable], strata: Sequence[Hashable]
) -> list[NDArray[np.int64]]:
    """Return, for each stratum, the summed difference and the pairs of each group, shape `(num_groups, 2)`."""
    counts: dict[Hashable, list[int]] = {}
    members: dict[Hashable, set[Hashable]] = {}
    for value, group, stratum in zip(difference.tolist(), groups, strata, strict=True):
        count = counts.setdefault(group, [0, 0])
        count[0] += value
        count[1] += 1
        members.setdefault(group, set()).add(stratum)
    by_stratum: dict[frozenset[Hashable], list[list[int]]] = {}
    for group, count in counts.items():
        by_stratum.setdefault(frozenset(members[group]), []).append(count)
    # In an order of their own, not that of the pairs.
    ordered = sorted(by_stratum, key=lambda names: sorted(map(str, names)))
    return [np.array(by_stratum[names], dtype=np.int64) for names in ordered]


def compare(
    first: ArrayLike, second: ArrayLike, groups: Sequence[Hashable], strata: Sequence[Hashable], **options: Any
) -> dict[str, Any]:
    """Compare two scorers pair by pair.

    Args:
        first (`ArrayLike` of shape `(num_pairs,)`): Whether the first scorer has each pair right.
        second (`ArrayLike` of shape `(num_pairs,)`): Whether the second has.
        groups (`Sequence[Hashable]`): Recording of each pair.
        strata (`Sequence[Hashable]`): Subset of each pair.
        **options: Of `paired_bootstrap`.

    Returns:
        `dict[str, Any]`: `num_pairs`, `num_both`, `num_only_first`, `num_only_second`, `num_neither` (pairs that are
        right), `difference` of the accuracies (first minus second, -1 to 1), its `interval` and McNemar's `p_value`.
    """
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
