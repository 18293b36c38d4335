"""Split scenarios into train and test, 85 to 15 (appendix A), each attribute and part in both."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sdiareward.pairs.schema import stable_id

from .scenarios import Scenario


def assign_splits(scenarios: Sequence[Scenario], *, test: float, seed: int) -> dict[str, str]:
    """Give every scenario a split.

    The scenarios are ordered by attribute and part, within them by a hash, and test takes every seventh or so: its
    share of every attribute and part is `test`, give or take one scenario.

    Args:
        scenarios (`Sequence[Scenario]`): All of them.
        test (`float`): Share of the test split, between 0 and 1.
        seed (`int`): Another seed gives another assignment.

    Returns:
        `dict[str, str]`: `"train"` or `"test"` by `scenario_id`.
    """
    ordered = sorted(scenarios, key=lambda item: (item.attribute or "", item.part, stable_id(seed, item.scenario_id)))
    assignment = {}
    for number, scenario in enumerate(ordered):
        is_test = math.floor((number + 1.5) * test) > math.floor((number + 0.5) * test)
        assignment[scenario.scenario_id] = "test" if is_test else "train"
    return assignment


def take_evenly(scenarios: Sequence[Scenario], limit: int | None) -> list[Scenario]:
    """Return `limit` scenarios evenly spaced over the list; all of them for None."""
    if limit is None or limit >= len(scenarios):
        return list(scenarios)
    return [scenarios[number * len(scenarios) // limit] for number in range(limit)]
