"""Which episodes become which pairs: pairing, splits, filters, labels, benchmark."""

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
        cap: Modality pairs of a bucket; if it has fewer, all of them are taken.
        colloquialness_cap: Colloquialness pairs in all.
        seed: Seed of the draw.
        candidates: Draw from the test split, which alone has its groups, or from all, as the paper does.
        draw: Take groups whole, which loses the fewest pairs, or alternate, which gives the most groups.
        rest: What becomes of the groups of the test split without a chosen pair.
        excise: What leaves training: the groups of the chosen pairs, or these pairs alone, as in the paper.
        bucket_by: Columns that make a bucket.
    """

    cap: PositiveInt = 50
    colloquialness_cap: PositiveInt = 250
    seed: int = 0
    candidates: Literal["test", "all"] = "test"
    draw: Literal["whole_groups", "alternate"] = "whole_groups"
    rest: Literal["train", "skip"] = "train"
    excise: Literal["groups", "pairs"] = "groups"
    bucket_by: tuple[str, ...] = ("source", "secondary")
