"""Keep the pairs of a split that can be trained on, and report the others with their reasons."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdiareward.common.skipped import Skipped
from sdiareward.pairs.dialogues import Dialogues
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.batching import Message
from sdiareward.scoring.outcomes import UNREADABLE


logger = logging.getLogger(__name__)
EQUAL_SIDES = "equal_sides"
_EQUAL = "both sides are equal as the model hears them: the same turns, up to max_turn_s of each"


@dataclass(frozen=True)
class SkippedPair(Skipped):
    """A pair that a training run cannot use; `item` is its `pair_id`."""

    split: str
    row: int

    def to_dict(self) -> dict[str, Any]:
        return {"split": self.split, "row": self.row, "pair_id": self.item, **self.explain()}


class CountedDialogues(Dialogues):
    """Dialogues of pairs, with the number of turns of each that the model hears only the beginning of."""

    def __init__(self, pairs: Any, max_turn_s: float):
        super().__init__(pairs, range(len(pairs)))
        self._max_turn_s = max_turn_s
        self.num_cut = np.zeros(len(self), dtype=np.int64)

    def __getitem__(self, index: Any) -> Any:
        dialogue = super().__getitem__(index)
        clips = [clip for turn in dialogue.turns for clip in turn.clips]
        self.num_cut[index] = sum(clip.duration_s > self._max_turn_s for clip in clips)
        return dialogue


def explain_equal_sides(sides: Sequence[Sequence[Message]]) -> str | None:
    """Return why a pair teaches nothing if its sides hold the same tokens and the same clips, decoded and cut."""
    chosen, rejected = ([message.key for message in side] for side in sides)
    return _EQUAL if chosen == rejected else None


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
    kinds = {row: EQUAL_SIDES if reason == _EQUAL else UNREADABLE for row, reason in sorted(reasons.items())}
    return usable, [SkippedPair(pair_ids[row], kind, reasons[row], split, row) for row, kind in kinds.items()]
