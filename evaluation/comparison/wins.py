"""Count in how many dialogues one system beats another, with an interval and a test.

A win is a strictly higher reward, as in the metric. A tie counts half for each system, so equal systems have 50%.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sdiareward.esdr_accuracy.pairwise import wilson_interval

from ..statistics import bootstrap_mean, compare


MAX_P_VALUE = 0.05
RULE = (
    "A difference is clear only if the 95% interval of the win rate excludes 50%, the p value of the sign test is "
    f"below {MAX_P_VALUE:g}, and it does not go with length, level, or the number of turns or transcripts."
)


def count_wins(
    first: ArrayLike, second: ArrayLike, groups: Sequence[Hashable], *, num_bootstrap: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Compare the rewards of two systems; if no two draws differ, the interval is Wilson's over groups."""
    margins = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    draws: dict[str, Any] = {"num_bootstrap": num_bootstrap, "seed": seed}
    strata = [""] * len(margins)
    # McNemar's test of "the first is higher" and "the second is higher" is the sign test, which omits ties.
    found = compare(margins > 0, margins < 0, groups, strata, **draws)
    win_rate = (1 + found["difference"]) / 2
    if found["interval"] is None:
        interval = wilson_interval(win_rate, len(set(groups)))
    else:
        interval = [(1 + bound) / 2 for bound in found["interval"]]
    return {
        "num_dialogues": len(margins),
        "num_groups": len(set(groups)),
        "num_first": found["num_only_first"],
        "num_second": found["num_only_second"],
        "num_ties": found["num_neither"],
        "win_rate": win_rate,
        "interval": interval,
        "p_value": found["p_value"],
        "is_clear": is_certain({"interval": interval, "p_value": found["p_value"]}),
        "mean_margin": float(margins.mean()),
        "mean_margin_interval": bootstrap_mean(margins, groups, strata, **draws),
    }


def is_certain(found: Mapping[str, Any]) -> bool:
    """Return whether the result of `count_wins` is hardly chance; what it is about is another question."""
    low, high = found["interval"]
    return not low <= 0.5 <= high and found["p_value"] < MAX_P_VALUE
