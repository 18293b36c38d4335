"""What making pairs on Ray itself costs: pairs that cost nothing, on three simulated nodes of this machine.

    python -m benchmarks.build_cluster
    python -m benchmarks.build_cluster --num_pairs 2000            # a quick look, with nobody killed

The workers write a part of one small row for each pair, as a build does; a build's speech and codings are left out.
One node is killed and another joins in its place; then the driver is killed, and a second one makes what is missing
and writes the shards. Memory is read as in `benchmarks.scoring_cluster`. Every pair must be in the shards once.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import racing
from benchmarks.scoring_cluster import MIN_KILLED_ROWS, Driver, Readings, drive_and_kill
from sdiareward.common.arguments import parse_arguments
from sdiareward.dataset_builder.parts import PartFolder, run_jobs_on_ray


RESULT = racing.RESULTS / "build_cluster.json"


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    num_pairs: int = field(default=1_000_000, metadata={"help": "pairs to make"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})
    here: list[str] = field(default_factory=list, metadata={"help": argparse.SUPPRESS})


class PartReadings(Readings):
    """Memory of the driver and of the workers while parts are written."""

    _counted, _next_s = 0, 0.0

    def count_records(self) -> int:
        """Return how many parts there were when they were last counted, which takes 5% of the time at most."""
        folder, start_s = self._output / ".parts", time.monotonic()
        if start_s >= self._next_s and folder.is_dir():
            self._counted = sum(each.name.endswith(".parquet") for each in os.scandir(folder))
            self._next_s = start_s + 20 * (time.monotonic() - start_s)
        return self._counted

    def count_again(self) -> int:
        """Return how many parts there are, however long counting takes."""
        self._next_s = 0.0
        return self.count_records()


def open_parts(output: Path) -> PartFolder:
    """Return the parts of the pairs, of one column."""
    import datasets

    return PartFolder(output / ".parts", datasets.Features({"id": datasets.Value("string")}))


def make_part(name: str, parts: PartFolder) -> None:
    """Write a pair that costs nothing."""
    parts.write(name, [{"id": name}])


def drive(num_pairs: int, output: Path) -> None:
    """Make the pairs that are missing and write the shards, as a build does."""
    parts = open_parts(output)
    names = [f"{number:09d}" for number in range(num_pairs)]
    todo = [name for name in names if not parts.has(name)]
    for _ in run_jobs_on_ray(partial(make_part, parts=parts), todo, 1, "pairs"):
        pass
    parts.write_shards(output, dict.fromkeys(names, "train"))


def measure(num_pairs: int, folder: Path) -> dict[str, Any]:
    """Make pairs on three nodes, kill one and the driver if there are pairs enough, and check the shards."""
    import pyarrow.parquet as pq

    output = folder / "output"
    arguments = ["benchmarks.build_cluster", "--here", str(num_pairs), str(output)]
    found = drive_and_kill(
        num_pairs,
        lambda address: Driver(arguments, output, address, PartReadings),
        kill=num_pairs >= MIN_KILLED_ROWS,
    )
    ids = [each for path in (output / "data").rglob("*.parquet") for each in pq.read_table(path)["id"].to_pylist()]
    lost = num_pairs - len(set(ids))
    return {**found, "num_pairs": num_pairs, "num_lost": lost, "num_twice": len(ids) - len(set(ids))}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.build_cluster", description=__doc__)
    if args.here:
        drive(int(args.here[0]), Path(args.here[1]))
        return
    with TemporaryDirectory() as folder:
        found = measure(args.num_pairs, Path(folder))
    racing.write_result(args.output, cpu=racing.describe_cpu(), **found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
