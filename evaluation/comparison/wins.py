"""Count in how many dialogues one system beats another, with an interval and a test.

A win is a strictly higher reward, as in the metric. A tie counts half for each system, so equal systems have 50%.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..statistics import Clusters, sign_flip_test


MAX_P_VALUE = 0.05
RULE = (
    "A difference is clear only if the 95% interval of the win rate excludes 50%, the p value of the sign test is "
    f"below {MAX_P_VALUE:g}, and it does not go with length, level, or the number of turns or transcripts."
)


def count_wins(
    first: ArrayLike, second: ArrayLike, groups: Sequence[Hashable], *, num_bootstrap: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Compare the rewards of two systems, with intervals and a sign test over groups."""
    margins = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    signs = np.sign(margins).astype(np.int64)
    clusters = Clusters(groups, num_bootstrap=num_bootstrap, seed=seed)
    wins, means = clusters.measure((1 + signs) / 2, is_share=True), clusters.measure(margins)
    tested = {"interval": wins["interval"], "p_value": sign_flip_test(clusters.add_up(signs))}
    return {
        "num_dialogues": len(margins),
        "num_groups": wins["num_groups"],
        "num_first": int((signs > 0).sum()),
        "num_second": int((signs < 0).sum()),
        "num_ties": int((signs == 0).sum()),
        "win_rate": wins["mean"],
        **tested,
        "is_clear": is_certain(tested),
        "mean_margin": means["mean"],
        "mean_margin_interval": means["interval"],
    }


def is_certain(found: Mapping[str, Any]) -> bool:
    """Return whether the result of `count_wins` is hardly chance; what it is about is another question."""
    low, high = found["interval"] or (0.0, 1.0)
    return not low <= 0.5 <= high and found["p_value"] < MAX_P_VALUE
