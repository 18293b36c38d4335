"""CPU time until the first answer: of the command line, and of the libraries that it waits for.

    python -m benchmarks.start_time
    python -m benchmarks.start_time --rounds 1    # a quick look

Every command runs in processes of its own, in turn; user and system time of all their threads, medians over rounds.
The libraries are imported by themselves: what they take is the least that a command needs that uses them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tqdm.auto import tqdm

from benchmarks import racing
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.package_files import EXAMPLES


RESULT = racing.RESULTS / "start_time.json"
_SDIAREWARD = (sys.executable, "-m", "sdiareward.cli")
COMMANDS: dict[str, Sequence[str]] = {
    "import sdiareward": (sys.executable, "-c", "import sdiareward"),
    "sdiareward train --help": (*_SDIAREWARD, "train", "--help"),
    "import torch": (sys.executable, "-c", "import torch"),
    "import transformers.modeling_utils": (sys.executable, "-c", "import transformers.modeling_utils"),
    "sdiareward score": (*_SDIAREWARD, "score", *(str(EXAMPLES / f"{name}.json") for name in ("human", "synthetic"))),
}


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    rounds: int = field(default=5, metadata={"help": "rounds of measurement"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.start_time", description=__doc__)
    found = measure(args.rounds)
    racing.write_result(args.output, cpu=racing.describe_cpu(), rounds=args.rounds, seconds=found)
    print(json.dumps(found, indent=2))


def measure(rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each command; one more round before warms the disk's cache."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in tqdm(range(rounds + 1), "rounds"):
        for name, command in COMMANDS.items():
            times[name].append(cpu_seconds(command))
    return {name: round(median(found[1:]), 3) for name, found in times.items()}


def cpu_seconds(command: Sequence[str]) -> float:
    """Return the user and system time of a command.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    before = _children_seconds()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _children_seconds() - before


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
