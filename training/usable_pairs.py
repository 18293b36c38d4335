"""Keep the pairs of a split that can be trained on, and report the others with their reasons."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sdiareward.pairs.schema import SIDES


logger = logging.getLogger(__name__)


def explain_side(side: int, reason: str) -> str:
    """Return the reason why a pair cannot be used, with the side that it is about: 0 for chosen, 1 for rejected."""
    return f"{SIDES[side]}, {reason}"


def select_usable(
    split: str, pair_ids: Sequence[str], reasons: Mapping[int, str]
) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the rows of a split that can be used, and what is reported of the others.

    Args:
        split (`str`): Name of the split.
        pair_ids (`list[str]`): Name of each pair.
        reasons (`dict[int, str]`): Why a pair cannot be used, by its row.

    Returns:
        `tuple[list[int], list[dict]]`: Rows; and for each skipped pair its `split`, `row`, `pair_id` and `reason`.

    Raises:
        ValueError: No pair can be used.
    """
    usable = [row for row in range(len(pair_ids)) if row not in reasons]
    if not usable:
        raise ValueError(f"none of the {len(pair_ids)} pairs of {split!r} can be used; check their recordings.")
    if reasons:
        logger.warning("%d of %d pairs of %r cannot be used.", len(reasons), len(pair_ids), split)
    skipped = [
        {"split": split, "row": row, "pair_id": pair_ids[row], "reason": reasons[row]} for row in sorted(reasons)
    ]
    return usable, skipped
