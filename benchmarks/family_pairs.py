"""Draw the pairs by which models are compared family by family: all of what is few, a sample of the rest.

    python -m benchmarks.family_pairs --dataset runs/open/sdiareward --output runs/family_pairs.parquet
    sdiareward eval --model small --dtype fast --dataset runs/family_pairs.parquet \
        --baseline_data runs/open/sdiareward --output_dir runs/small_families
    python -m benchmarks.families --dataset runs/family_pairs.parquet --evaluations small=runs/small_families

All pairs of `joint` that were made of recordings, all of the announcer and all of hibari against recordings are taken;
of every other criterion, kind and voice at most `num_pairs`, and none of rhythm. A larger draw contains a smaller one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets

from benchmarks.families import name_kind, name_voices
from sdiareward.common.arguments import parse_arguments
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import CRITERIA, JOINT, make_stable_id


_LABELS = ("pair_id", "criterion", "source", "primary", "secondary", "synthesizer")


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    dataset: Path = field(metadata={"help": "folder of pairs"})
    output: Path = field(metadata={"help": "Parquet file to write"})
    split: str = field(default="test", metadata={"help": "split of the pairs"})
    criteria: list[str] = field(
        default_factory=lambda: [*CRITERIA, JOINT], metadata={"help": "criteria of the pairs (default: all)"}
    )
    num_pairs: int = field(default=30, metadata={"help": "pairs of a criterion, kind and voice at most"})


def is_whole(label: Mapping[str, Any]) -> bool:
    """Tell whether all pairs that are like this one are taken."""
    named = (label["criterion"], label["synthesizer"])
    few = [(JOINT, "recording"), (JOINT, "world"), ("modality", "hibari")]
    return label["source"] == "asterisk" or named in few


def draw(labels: Sequence[Mapping[str, Any]], num_pairs: int) -> list[int]:
    """Return the rows that are taken, in their order."""
    taken = []
    counts: Counter[tuple[str, str, str]] = Counter()
    drawn = sorted(range(len(labels)), key=lambda row: make_stable_id("family", labels[row]["pair_id"]))
    for row in drawn:
        label = labels[row]
        if label["primary"] == "rhythm":
            continue
        key = (label["criterion"], name_kind(label), name_voices(label))
        counts[key] += 1
        if is_whole(label) or counts[key] <= num_pairs:
            taken.append(row)
    return sorted(taken)


def main(argv: Sequence[str] | None = None) -> None:
    """Draw the pairs and write them."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.family_pairs", description=__doc__)
    # The default configuration has the criteria of the paper alone in its test split.
    criteria = [load_pairs(args.dataset, args.split, name=name) for name in args.criteria]
    pairs = datasets.concatenate_datasets(criteria)
    rows = draw(pairs.select_columns(list(_LABELS)).to_list(), args.num_pairs)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    pairs.select(rows).to_parquet(args.output)
    print(f"{args.output}: {len(rows)} of {len(pairs)} pairs")


if __name__ == "__main__":
    main()
