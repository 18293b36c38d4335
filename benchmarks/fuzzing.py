"""Run every parser of outside data on a hundred thousand generated inputs and more; count what became of them.

Run `python -m benchmarks.fuzzing`; it writes `benchmarks/results/fuzzing.json`. The targets, what they may raise and
how long and large they may get are in `tests/fuzz/`; `tests/fuzz/test_fuzz.py` runs a few thousand of the same cases.

Notable choices:

- A round is some cases of one target from one seed, in a process of its own kind: one that dies is a failure of its
  round, and the next round gets another. Rounds are kept as they end, so that a run goes on where it stopped.
- Hypothesis draws the cases. The readers of Amazon Queen's archive, of CTranslate2 files and of JSON answers also run
  under atheris, which looks for inputs that reach new code; without it (`pip install atheris`) this part is left out.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import JsonLines
from sdiareward.common.provenance import write_run


ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
RESULT = ROOT / "benchmarks" / "results" / "fuzzing.json"
CASES_OF_A_ROUND = 500
# Of each target: enough for a hundred thousand cases without those of atheris.
ROUNDS = 4
COVERAGE_RUNS = 50_000


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    folder: Path = field(default=ROOT / "runs" / "fuzzing", metadata={"help": "where rounds are kept"})
    workers: int = field(default=1, metadata={"help": "processes"})
    kinds: list[str] | None = field(default=None, metadata={"nargs": "*", "help": "only targets of these kinds"})
    summary: bool = field(default=False, metadata={"help": "write the result of the rounds that are done"})


def main() -> int:
    """Run the rounds that are not done yet and write the result; return 1 if anything failed."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.fuzzing", description=__doc__)
    args.folder.mkdir(parents=True, exist_ok=True)
    log = JsonLines(args.folder / "rounds.jsonl")
    if not args.summary:
        run_rounds(log, args.workers, args.kinds)
        run_coverage(log, args.kinds)
    result = summarise(log.read())
    write_run(RESULT, result=result)
    return int(bool(result["failures"]))


def plan_rounds() -> list[tuple[str, str, int]]:
    """Return kind, target and seed of every round, the first seed of all targets before the second of any."""
    sys.path.insert(0, str(TESTS))
    from fuzz.targets import TARGETS

    rounds = [(target.kind, target.name, seed) for target in TARGETS.values() for seed in range(ROUNDS)]
    return sorted(rounds, key=lambda entry: entry[2])


def run_rounds(log: JsonLines, num_workers: int, kinds: list[str] | None = None) -> None:
    """Run the rounds that the log does not have, and append each."""
    done = {(record["target"], record["seed"]) for record in log.read() if record["engine"] == "hypothesis"}
    rounds = [entry for entry in plan_rounds() if entry[1:] not in done and (not kinds or entry[0] in kinds)]
    with tqdm(total=len(rounds), desc="rounds", unit="round") as progress:
        while rounds:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(num_workers, mp_context=context) as pool:
                running = [(entry, pool.submit(run_round, *entry[1:])) for entry in rounds]
                try:
                    for entry, future in running:
                        log.append([{"kind": entry[0], **future.result()}])
                        rounds.remove(entry)
                        progress.update()
                except BrokenProcessPool:
                    # With several workers the next in line is not always the one; each gets a process of its own then.
                    record = run_alone(*rounds.pop(0))
                    log.append([record])
                    progress.update()


def run_alone(kind: str, name: str, seed: int) -> dict[str, Any]:
    """Return the record of a round in a process of its own, even of one that dies."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return {"kind": kind, **pool.submit(run_round, name, seed).result()}
        except BrokenProcessPool as error:
            record = {"engine": "hypothesis", "kind": kind, "target": name, "seed": seed, "num_cases": 0}
            return {**record, "failure": f"the process died or hung ({error})"}


@cache
def _world() -> Any:
    from fuzz.running import World

    # On a file system in memory where there is one: every case writes its files anew.
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = tempfile.mkdtemp(prefix="fuzzing-", dir=parent)
    # Of processes of a pool, `atexit` hears nothing.
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=1)
    return World(Path(folder))


def run_round(name: str, seed: int) -> dict[str, Any]:
    """Run a round in this process and describe it."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    from fuzz.running import Tally, run_target
    from fuzz.targets import TARGETS

    tally, failure, start = Tally(), None, time.process_time()
    try:
        run_target(TARGETS[name], _world(), seed, CASES_OF_A_ROUND, tally)
    # Whatever it is, it is a finding; an interruption by the user is not.
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        found = [*traceback.format_exception_only(error), *getattr(error, "__notes__", [])]
        failure = "".join(found)[:2000]
    return {
        "engine": "hypothesis",
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


def run_coverage(log: JsonLines, kinds: list[str] | None = None) -> None:
    """Run the readers of bytes and answers under atheris, one process each, if it is installed."""
    if find_spec("atheris") is None:
        return
    done = {record["target"] for record in log.read() if record["engine"] == "atheris"}
    for kind, name in (("sources", "queen"), ("settings", "ctranslate2"), ("answers", "json")):
        if name in done or (kinds and kind not in kinds):
            continue
        script = [sys.executable, str(TESTS / "fuzz_coverage.py"), name, f"-runs={COVERAGE_RUNS}", "-seed=1"]
        script += ["-max_len=4096", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"]
        with tempfile.TemporaryDirectory() as folder:
            ran = subprocess.run(script, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        found = re.search(r"stat::number_of_executed_units:\s*(\d+)", ran.stderr)
        covered = re.findall(r"cov: (\d+)", ran.stderr)
        record = {"engine": "atheris", "kind": kind, "target": name, "seed": 1}
        record |= {"num_cases": int(found[1]) if found else 0, "covered": int(covered[-1]) if covered else None}
        log.append([{**record, "failure": None if ran.returncode == 0 and found else ran.stderr[-2000:]}])


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return counts by target and in all."""
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
