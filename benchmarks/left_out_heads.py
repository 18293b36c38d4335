"""Score heads on the synthesizers and sources that they were trained without, on the backbone of `small`.

    python -m benchmarks.left_out_heads --dataset runs/open/sdiareward

`sdiareward audit --left_out` on a sample of the pairs: some of each criterion, source and synthesizer. The backbone is
that of `small` before it learns from pairs, so that it has not heard which voices lose.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets

from benchmarks import racing
from sdiareward.audit.leave_one_out import LeftOutSettings, measure_left_out
from sdiareward.audit.leave_one_out_folds import SPLITS
from sdiareward.common.arguments import parse_arguments
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import JOINT


RESULT = racing.RESULTS / "left_out_heads.json"
_CELL = ("criterion", "source", "synthesizer")


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    dataset: Path = field(metadata={"help": "folder of pairs"})
    model: str = field(default="runs/small_alignment", metadata={"help": "model before it learns from pairs"})
    folder: Path | None = field(default=None, metadata={"help": "folder of the features, to resume from"})
    train: int = field(default=20, metadata={"help": "training pairs of a criterion, a source and a synthesizer"})
    validation: int = field(default=8, metadata={"help": "validation pairs of them"})
    test: int = field(default=20, metadata={"help": "test pairs of them"})
    min_pairs: int = field(default=20, metadata={"help": "the fewest pairs to train on, and to measure on"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def draw_rows(labels: Sequence[Mapping[str, Any]], count: int) -> list[int]:
    """Return the first rows of each criterion, source and synthesizer, at most `count` of them; none of `joint`."""
    seen: Counter[Any] = Counter()
    kept = []
    for row, label in enumerate(labels):
        cell = tuple(label[name] for name in _CELL)
        if label["criterion"] != JOINT and seen[cell] < count:
            seen[cell] += 1
            kept.append(row)
    return kept


def draw_pairs(args: Arguments) -> dict[str, datasets.Dataset]:
    """Return a sample of each split, in an order that does not depend on that of the recordings."""
    found = {}
    for split in SPLITS:
        pairs = load_pairs(args.dataset, split).shuffle(seed=0)
        found[split] = pairs.select(draw_rows(describe_pairs(pairs), getattr(args, split)))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.left_out_heads", description=__doc__)
    settings = LeftOutSettings(bf16=True, min_pairs=args.min_pairs)
    with tempfile.TemporaryDirectory() as temporary:
        found = measure_left_out(args.model, draw_pairs(args), args.folder or temporary, settings=settings)
    # Not where the model was on this machine.
    racing.write_result(args.output, **{**found, "model": Path(args.model).name})
    print(json.dumps(found["summary"], indent=2))


if __name__ == "__main__":
    main()
