"""A model on real dialogues on three simulated nodes of this machine, of which one is lost, and then the driver.

    python -m benchmarks.recordings_cluster --dataset runs/open/sdiareward --split test

The rewards of the cluster are compared with those of one process, on a few rows that are spread over all of them. See
`benchmarks.scoring_cluster` for what is read meanwhile.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import racing
from benchmarks.scoring_cluster import NUM_NODES, Driver, count_losses, drive_and_kill
from sdiareward.common.arguments import parse_arguments
from sdiareward.pairs.rows import Rows
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.dataset import ScoringJob, score_dataset
from sdiareward.scoring.model_spec import ModelSpec


RESULT = racing.RESULTS / "recordings_cluster.json"


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    dataset: str = field(metadata={"help": "folder of pairs"})
    split: str = field(default="test", metadata={"help": "split to score"})
    model: str = field(default="nano", metadata={"help": "what scores"})
    num_compared: int = field(default=24, metadata={"help": "rows whose rewards are compared with one process's"})
    kill: bool = field(default=True, metadata={"help": "lose a node and the driver"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})
    here: Path | None = field(default=None, metadata={"help": argparse.SUPPRESS})

    @property
    def job(self) -> ScoringJob:
        """What to score."""
        model = ModelSpec(self.model, device="cpu")
        return ScoringJob(model, self.dataset, split=self.split, criterion="joint")


def drive(job: ScoringJob, output: Path) -> None:
    """Score on the cluster that `RAY_ADDRESS` names."""
    from sdiareward.scoring.ray_engine import score_on_ray

    score_on_ray(job, output, num_actors=NUM_NODES)


def count_turns(job: ScoringJob) -> dict[str, Any]:
    """Return how many pairs, turns and hours of sound there are."""
    rows = job.open_rows()
    seconds = [turn["duration_s"] for number in range(rows.num_rows) for turn in _read_turns(rows, number)]
    return {"num_pairs": rows.num_rows, "num_turns": len(seconds), "audio_h": round(sum(seconds) / 3600, 2)}


def _read_turns(rows: Rows, number: int) -> list[dict[str, Any]]:
    """Return the turns of both sides of a row."""
    table = rows.read([number], list(SIDES))
    return [turn for side in SIDES for turn in table[side].to_pylist()[0]]


def measure(args: Arguments, folder: Path) -> dict[str, Any]:
    """Score the pairs and check the rewards."""
    counts, output = count_turns(args.job), folder / "cluster"
    arguments = ["benchmarks.recordings_cluster", "--here", str(output), "--model", args.model]
    arguments += ["--dataset", str(Path(args.dataset).resolve()), "--split", args.split]
    found = drive_and_kill(counts["num_pairs"], lambda address: Driver(arguments, output, address), args.kill)
    return {"model": args.model, **counts, **found, **compare(args, output, folder / "alone", counts["num_pairs"])}


def compare(args: Arguments, output: Path, alone: Path, num_pairs: int) -> dict[str, Any]:
    """Return how many rows are lost or twice, and the largest difference to the rewards of one process."""
    import pyarrow.parquet as pq

    table = pq.read_table(output / "scores.parquet")
    rows = table["row"].to_pylist()
    score_dataset(replace(args.job, limit=args.num_compared), alone)
    some = pq.read_table(alone / "scores.parquet")
    positions = [rows.index(row) for row in some["row"].to_pylist()]
    moved = [np.abs(table[side].to_numpy()[positions] - some[side].to_numpy()).max() for side in SIDES]
    return {
        **count_losses(output, rows, num_pairs),
        "num_compared": len(positions),
        "moved": round(float(max(moved)), 6),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.recordings_cluster", description=__doc__)
    if args.here:
        drive(args.job, args.here)
        return
    with TemporaryDirectory() as folder:
        found = measure(args, Path(folder))
    racing.write_result(args.output, cpu=racing.describe_cpu(), **found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
