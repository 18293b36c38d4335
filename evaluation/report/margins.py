"""Pairs by how far apart the model puts their sides: Table 3's strata, and the pairs with the lowest margins."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


HIGH, LOW, ALL, WRONG = "high confidence", "low confidence", "all pairs", "hard negatives"
STRATA = {
    HIGH: "quarter of the pairs with the largest |margin|",
    LOW: "quarter of the pairs with the smallest |margin|",
    ALL: "",
    WRONG: "pairs that the model orders wrongly, ties included",
}

Positions = NDArray[np.intp]


def find_strata(margins: ArrayLike) -> dict[str, Positions]:
    """Find the strata of Table 3: top and bottom quarter by `|margin|`, all pairs, and those ordered wrongly."""
    array = np.asarray(margins, dtype=np.float64)
    # A quarter is rounded up; of equal margins the earlier pair counts as the larger.
    order, quarter = np.argsort(-np.abs(array), kind="stable"), math.ceil(len(array) / 4)
    found = (order[:quarter], order[len(array) - quarter :], np.arange(len(array)), np.flatnonzero(array <= 0))
    return dict(zip(STRATA, found, strict=True))


def find_lowest(margins: ArrayLike, count: int) -> Positions:
    """Return the positions of the `count` lowest margins, lowest first; NaN is omitted."""
    array = np.asarray(margins, dtype=np.float64)
    order = np.argsort(array, kind="stable")
    return order[np.isfinite(array[order])][:count]
