"""Run every parser of outside data on more than a hundred thousand generated inputs, and count the results.

    PYTHONPATH=tests python -m fuzz.benchmark

The targets, the errors they may raise and their limits of time and memory lie in this folder. `test_fuzz.py` runs a
few thousand of the same cases. The result is `benchmarks/results/fuzzing.json`.

Notable choices:

- Each target runs in its own process. A process that dies is a failure of its target. Finished rounds, each with its
  own seed, are kept, and the same command resumes with the missing ones.
- Hypothesis draws the cases. The readers of Amazon Queen's archive, of CTranslate2 files and of JSON answers also run
  under atheris, which looks for inputs that reach new code; without it (`pip install atheris`) this part is skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fuzz.running import Tally, Target, World, run_target
from fuzz.targets import TARGETS
from support.paths import ROOT, TESTS
from tqdm import tqdm

from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import JsonLines
from sdiareward.common.provenance import write_provenance


RESULT = ROOT / "benchmarks" / "results" / "fuzzing.json"
CASES_PER_ROUND = 500
# Per target: a hundred thousand cases and more without those of atheris.
ROUNDS = 4
COVERAGE_RUNS = 50_000
# Kind of each parser that also runs under atheris, by its name in `coverage.py`.
COVERED = {"queen": "sources", "ctranslate2": "settings", "json": "answers"}


@dataclass
class Arguments:
    """The arguments of the command line."""

    folder: Path = field(default=ROOT / "runs" / "fuzzing", metadata={"help": "where rounds are kept"})
    workers: int = field(default=1, metadata={"help": "processes"})
    kinds: list[str] = field(default_factory=list, metadata={"help": "only targets of these kinds"})
    summary: bool = field(default=False, metadata={"help": "write the result of the finished rounds"})
    target: str | None = field(default=None, metadata={"help": argparse.SUPPRESS})


def main() -> int:
    """Run the missing rounds and write the result; return 1 if anything failed."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m fuzz.benchmark", description=__doc__.splitlines()[0])
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.target:
        run_rounds(args.target, open_log(args.folder, args.target))
        return 0
    targets = [target for target in TARGETS.values() if not args.kinds or target.kind in args.kinds]
    if not args.summary:
        with ThreadPoolExecutor(args.workers) as pool:
            list(tqdm(pool.map(partial(run_process, args.folder), targets), "targets", len(targets)))
        run_coverage(args.folder, args.kinds)
    records = [record for path in sorted(args.folder.glob("*.jsonl")) for record in JsonLines(path).read()]
    result = summarise(records)
    write_provenance(RESULT, result=result)
    return int(bool(result["failures"]))


def open_log(folder: Path, name: str) -> JsonLines:
    """Return the file of a target's finished rounds."""
    return JsonLines(folder / f"{name}.jsonl")


def find_missing_seeds(log: JsonLines) -> list[int]:
    """Return the seeds whose rounds are not finished."""
    done = {record["seed"] for record in log.read()}
    return [seed for seed in range(ROUNDS) if seed not in done]


def run_process(folder: Path, target: Target) -> None:
    """Run the missing rounds of a target in its own process; a process that dies is a failure of its round."""
    log = open_log(folder, target.name)
    while find_missing_seeds(log):
        command = [sys.executable, "-m", "fuzz.benchmark", "--folder", str(folder), "--target", target.name]
        ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        if ran.returncode and (seeds := find_missing_seeds(log)):
            record = {"engine": "hypothesis", "kind": target.kind, "target": target.name, "seed": seeds[0]}
            failure = f"the process died or hung: {ran.stderr[-2000:]}"
            log.append([{**record, "num_cases": 0, "failure": failure}])


def run_rounds(name: str, log: JsonLines) -> None:
    """Run the missing rounds of a target in this process."""
    # In memory where possible: every case writes its files anew.
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="fuzzing-", dir=parent) as folder:
        world = World(Path(folder))
        for seed in find_missing_seeds(log):
            log.append([run_round(name, seed, world)])


def run_round(name: str, seed: int, world: World) -> dict[str, Any]:
    """Run one round and return its record."""
    tally, failure, start = Tally(), None, time.process_time()
    try:
        run_target(TARGETS[name], world, seed, CASES_PER_ROUND, tally)
    except KeyboardInterrupt:
        raise
    # Any other exception, `SystemExit` included, is a finding.
    except BaseException as error:
        failure = "".join([*traceback.format_exception_only(error), *getattr(error, "__notes__", [])])[:2000]
    return {
        "engine": "hypothesis",
        "kind": TARGETS[name].kind,
        "target": name,
        "seed": seed,
        "num_cases": tally.num_cases,
        "num_accepted": tally.num_accepted,
        "refused": dict(tally.refused),
        "slowest_s": tally.slowest_s,
        "largest_bytes": tally.largest_bytes,
        "processor_s": time.process_time() - start,
        "failure": failure,
    }


def run_coverage(folder: Path, kinds: Sequence[str] = ()) -> None:
    """Run the parsers of `COVERED` under atheris, one process each, if it is installed."""
    if find_spec("atheris") is None:
        return
    for name, kind in COVERED.items():
        log = open_log(folder, f"{name}, by coverage")
        if log.read() or (kinds and kind not in kinds):
            continue
        script = [sys.executable, str(TESTS / "fuzz" / "coverage.py"), name, f"-runs={COVERAGE_RUNS}", "-seed=1"]
        script += ["-max_len=4096", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"]
        with tempfile.TemporaryDirectory() as scratch:
            ran = subprocess.run(script, cwd=scratch, capture_output=True, text=True, errors="replace", check=False)
        found = re.search(r"stat::number_of_executed_units:\s*(\d+)", ran.stderr)
        covered = re.findall(r"cov: (\d+)", ran.stderr)
        record = {"engine": "atheris", "kind": kind, "target": name, "seed": 1}
        record |= {"num_cases": int(found[1]) if found else 0, "covered": int(covered[-1]) if covered else None}
        log.append([{**record, "failure": None if ran.returncode == 0 and found else ran.stderr[-2000:]}])


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return counts by target and in total."""
    targets: dict[str, dict[str, Any]] = {}
    for record in records:
        name = record["target"] if record["engine"] == "hypothesis" else f"{record['target']}, by coverage"
        target = targets.setdefault(
            name, {"kind": record["kind"], "engine": record["engine"], "seeds": [], "num_cases": 0}
        )
        target["seeds"].append(record["seed"])
        target["num_cases"] += record["num_cases"]
        if record["engine"] == "hypothesis" and "refused" in record:
            target["num_accepted"] = target.get("num_accepted", 0) + record["num_accepted"]
            target["refused"] = dict(Counter(target.get("refused", {})) + Counter(record["refused"]))
            target["slowest_s"] = max(target.get("slowest_s", 0.0), round(record["slowest_s"], 3))
            target["largest_mb"] = max(target.get("largest_mb", 0.0), round(record["largest_bytes"] / 2**20, 1))
    by_kind: Counter[str] = Counter()
    for target in targets.values():
        by_kind[target["kind"]] += target["num_cases"]
    return {
        "num_cases": sum(by_kind.values()),
        "by_kind": dict(by_kind),
        "slowest_s": max((target.get("slowest_s", 0.0) for target in targets.values()), default=0.0),
        "largest_mb": max((target.get("largest_mb", 0.0) for target in targets.values()), default=0.0),
        "processor_s": round(sum(record.get("processor_s", 0.0) for record in records)),
        "failures": [record for record in records if record["failure"]],
        "targets": targets,
    }


if __name__ == "__main__":
    sys.exit(main())
