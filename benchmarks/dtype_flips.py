"""What `dtype="fast"` changes on pairs: how far rewards move, and which pairs change their winner.

    sdiareward eval --model small --dataset runs/open/sdiareward --dtype float32 --output_dir runs/small_float32
    sdiareward eval --model small --dataset runs/open/sdiareward --dtype fast --output_dir runs/small_fast
    python -m benchmarks.dtype_flips --evaluations small=runs/small_float32,runs/small_fast

Two evaluations of each model are compared on the pairs of the exact one, which is named first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from benchmarks import racing
from sdiareward.common.arguments import parse_arguments
from sdiareward.evaluation.results_files import read_evaluation
from sdiareward.pairs.schema import SIDES


RESULT = racing.RESULTS / "dtype_flips.json"
# A smaller margin in float32 is a tie for all that a reward says.
DECIDED = 0.02


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    evaluations: list[str] = field(metadata={"help": "NAME=FOLDER,FOLDER: the exact evaluation and the other one"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def compare(exact: Path, other: Path) -> dict[str, Any]:
    """Compare two evaluations of one model, pair by pair.

    Raises:
        ValueError: The other evaluation lacks pairs of the exact one.
    """
    before, after = ({each["pair_id"]: each for each in read_evaluation(path).scores} for path in (exact, other))
    if missing := before.keys() - after.keys():
        raise ValueError(f"{other} lacks {len(missing)} of the {len(before)} pairs of {exact}; evaluate those, too.")
    moved = [abs(after[name][side] - before[name][side]) for name in before for side in SIDES]
    margins = [
        tuple(scores[name]["chosen"] - scores[name]["rejected"] for scores in (before, after)) for name in before
    ]
    flipped = [abs(margin) for margin, now in margins if (margin > 0) != (now > 0)]
    return {
        "dtypes": [read_evaluation(path).config.get("dtype") for path in (exact, other)],
        "num_pairs": len(before),
        "num_right": [sum(margin[place] > 0 for margin in margins) for place in range(2)],
        "num_decided": sum(abs(margin) > DECIDED for margin, _ in margins),
        "num_flipped": len(flipped),
        "num_decided_flipped": sum(margin > DECIDED for margin in flipped),
        "largest_flipped_margin": max(flipped, default=0.0),
        "moved": {"mean": fmean(moved), "percentile_95": quantiles(moved, n=20)[-1], "most": max(moved)},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Compare the evaluations and write the result."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.dtype_flips", description=__doc__)
    models = {}
    for given in args.evaluations:
        name, _, folders = given.partition("=")
        exact, other = folders.split(",")
        models[name] = compare(Path(exact), Path(other))
    racing.write_result(args.output, settings={"decided": DECIDED}, cpu=racing.describe_cpu(), models=models)
    print(json.dumps(models, indent=2))


if __name__ == "__main__":
    main()
