"""Keep the pairs of a split that can be trained on, and report the others with their reasons."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sdiareward.common.skipped import Skipped
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.engine import UNREADABLE


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SkippedPair(Skipped):
    """A pair that a training run cannot use; `item` is its `pair_id`."""

    split: str
    row: int

    def to_dict(self) -> dict[str, Any]:
        return {"split": self.split, "row": self.row, "pair_id": self.item, **self.explain()}


def explain_side(side: int, reason: str) -> str:
    return f"{SIDES[side]}, {reason}"


def select_usable(
    split: str, pair_ids: Sequence[str], reasons: Mapping[int, str]
) -> tuple[list[int], list[SkippedPair]]:
    usable = [row for row in range(len(pair_ids)) if row not in reasons]
    if not usable:
        raise ValueError(
            f"none of the {len(pair_ids)} pairs of {split!r} can be used; check their recordings. The first, "
            f"{pair_ids[0]}: {reasons[0]}"
        )
    if reasons:
        first = min(reasons)
        found = (len(reasons), len(pair_ids), split, pair_ids[first], reasons[first])
        logger.warning("%d of %d pairs of %r cannot be used; the first, %s: %s", *found)
    return usable, [SkippedPair(pair_ids[row], UNREADABLE, reasons[row], split, row) for row in sorted(reasons)]
