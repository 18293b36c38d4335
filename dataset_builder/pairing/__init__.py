"""From episodes to pairs: pairing, splits, filters, labels, benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """How ESDR-Bench is drawn.

    Args:
        cap: Maximum number of modality pairs per bucket.
        colloquialness_cap: Maximum number of colloquialness pairs.
        seed: Seed of the draw.
        candidates: Draw from the test split, or from all pairs as in the paper.
        draw: Take whole groups, which loses the fewest pairs, or alternate, which gives the most groups.
        rest: Use of test groups without a selected pair.
        excise: Remove from training the groups of the selected pairs, or only these pairs as in the paper.
        bucket_by: Columns that define a bucket.
    """

    cap: PositiveInt = 50
    colloquialness_cap: PositiveInt = 250
    seed: int = 0
    candidates: Literal["test", "all"] = "test"
    draw: Literal["whole_groups", "alternate"] = "whole_groups"
    rest: Literal["train", "skip"] = "train"
    excise: Literal["groups", "pairs"] = "groups"
    bucket_by: tuple[str, ...] = ("source", "secondary")
