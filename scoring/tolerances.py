"""Tolerances for rewards that are computed in different ways, used by tests, benchmarks and `sdiareward env`.

Rounding depends on the order of sums. Differences grow with depth, width and the size of rewards, and with the steps
of the backbone's dtype: 1e-7 of a number in float32, 1e-3 in float16, 8e-3 in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterable


# The same weights, computed in another way: alone or in a batch, padded or packed, with another attention, with a
# shared prefix, from cached features. Of two dtypes the coarser one counts.
SAME_REWARD: dict[str, float] = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 0.1}
# Weights written to disk and read back, in float32: the products are the same, their place in memory is not.
SAVED_FLOAT32 = 1e-6


def scale_tolerance(tolerance: float, rewards: Iterable[float]) -> float:
    """Scale a tolerance for rewards of at most 1 to larger rewards, which have larger steps."""
    return tolerance * max([1.0, *map(abs, rewards)])
