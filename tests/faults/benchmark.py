"""Run every command under every fault many times, and check that the same command repairs the result.

    PYTHONPATH=tests python -m faults.benchmark

The tests in this folder run a few of these trials each time. `trials.py` defines a trial and when it is right;
`worker.py` explains the effect of a fork in place of a fresh process. The seed of a trial is its number among those of
its command and fault. The result is `benchmarks/results/faults.json`. Finished trials are kept: the same command
resumes with the missing ones. `--command` and `--fault` select some of them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from faults.commands import make_commands
from faults.disks import unmount
from faults.serving import SERVING_TRIALS, ServingTrials
from faults.trials import FAULTS, TOLERANCE, Trials, open_trials
from support.paths import ROOT
from support.tiny_model import save_checkpoint
from tqdm import tqdm

from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import JsonLines
from sdiareward.common.provenance import write_provenance


RESULT = ROOT / "benchmarks" / "results" / "faults.json"
COMMANDS = ("build", "train", "evaluate", "score", "push")
# Trials of each command by fault. Only runs that received their signal count: at least fifty of each signal.
TRIALS = {
    "SIGKILL": 10,
    "SIGTERM": 10,
    "full disk": 3,
    "limited files": 2,
    "read-only output": 2,
    "two at once": 1,
    "vanished source": 2,
    "network drop": 3,
    "clock jump": 2,
}


@dataclass
class Arguments:
    """The arguments of the command line."""

    work_dir: Path = field(default=ROOT / "runs" / "faults", metadata={"help": "where trials run and are recorded"})
    command: list[str] = field(
        default_factory=list,
        metadata={"action": "append", "choices": (*COMMANDS, "serve"), "help": "only this; may be repeated"},
    )
    fault: list[str] = field(default_factory=list, metadata={"action": "append", "help": "only this; may be repeated"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> int:
    """Run the missing trials; return 1 if any trial has a problem."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m faults.benchmark", description=__doc__)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    log = JsonLines(args.work_dir / "trials.jsonl")
    done = {(trial["command"], trial["fault"], trial["seed"]) for trial in log.read()}
    wanted = [key for key in list_trials(args.command, args.fault) if key not in done]
    with Labs(args.work_dir) as labs:
        for command, fault, seed in tqdm(wanted, unit="trial"):
            log.append([{"fault": fault, **labs.run_trial(command, fault, seed)}])
    trials = log.read()
    args.output.parent.mkdir(exist_ok=True)
    write_provenance(args.output, result=summarise(trials))
    bad = [trial for trial in trials if trial["problems"]]
    print(f"{len(trials)} trials, {len(bad)} with problems; {args.output}")
    for trial in bad:
        print(json.dumps(trial))
    return int(bool(bad))


def list_trials(commands: list[str], faults: list[str]) -> Iterator[tuple[str, str, int]]:
    """Yield command, fault and seed of the selected trials, the first of every kind before the second of any."""
    keys = [
        (command, fault, seed) for fault, number in TRIALS.items() for command in COMMANDS for seed in range(number)
    ]
    keys += [("serve", fault, seed) for fault, number in SERVING_TRIALS.items() for seed in range(number)]
    for command, fault, seed in sorted(keys, key=lambda key: (key[0] == "serve", key[2])):
        # A build from local recordings uses no network.
        exists = (command, fault) != ("build", "network drop")
        if exists and command in (commands or (*COMMANDS, "serve")) and (not faults or fault in faults):
            yield command, fault, seed


class Labs(ExitStack):
    """The labs that trials run in, each opened when it is first needed; use it as a context manager.

    Args:
        work_dir (`Path`): Parent folder of the labs.
    """

    def __init__(self, work_dir: Path):
        super().__init__()
        self.work_dir = work_dir

    def run_trial(self, command: str, fault: str, seed: int) -> dict[str, Any]:
        """Run one trial."""
        if command == "serve":
            return self.serving.make(fault, seed)
        if fault == "clock jump":
            trials = self.clock
        elif fault == "network drop" and command in ("train", "evaluate", "score"):
            trials = self.hub
        else:
            trials = self.plain
        return FAULTS[fault](trials, command, seed)

    @cached_property
    def plain(self) -> Trials:
        """Return the lab of most faults."""
        return self._open("plain")

    @cached_property
    def clock(self) -> Trials:
        """Return a lab whose clock can be set."""
        return self._open("clock", has_clock=True)

    @cached_property
    def hub(self) -> Trials:
        """Return the plain lab, whose commands load their model from its Hub."""
        world = copy(self.plain.commands["train"].world)
        self.plain.lab.add_model("ORG/tiny", world.checkpoint)
        world.checkpoint = "ORG/tiny"
        return Trials(self.plain.lab, make_commands(world, self.plain.lab.hub))

    @cached_property
    def serving(self) -> ServingTrials:
        """Return the servers."""
        return self.enter_context(ServingTrials())

    def _open(self, name: str, *, has_clock: bool = False) -> Trials:
        folder = self.work_dir / name
        unmount(folder / "output")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return self.enter_context(open_trials(folder, save_checkpoint(folder / "tiny"), has_clock=has_clock))


def summarise(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the trials by command and fault with their outcomes counted, and the number of each signal sent.

    Args:
        trials (`list[dict]`): As the log keeps them.
    """
    signals = Counter(trial["fault"].split()[0] for trial in trials if trial["fault"].startswith("SIG"))
    table: dict[str, dict[str, Any]] = {}
    for trial in trials:
        cell = table.setdefault(trial["command"], {}).setdefault(
            trial["fault"], {"num_trials": 0, "num_right": 0, "outcomes": Counter(), "trials": []}
        )
        cell["num_trials"] += 1
        cell["num_right"] += not trial["problems"]
        cell["outcomes"][name_outcome(trial)] += 1
        cell["trials"].append({name: value for name, value in trial.items() if name not in ("command", "fault")})
    about = {"cores": len(os.sched_getaffinity(0)), "tolerance": TOLERANCE, "num_signalled": signals}
    return {**about, "commands": table}


def name_outcome(trial: dict[str, Any]) -> str:
    """Return in a few words how a trial went."""
    if trial["problems"]:
        return "wrong"
    begun = trial["first"].partition(":")[0]
    return f"{begun}, then {'refused with the reason' if 'again' in trial else 'the undisturbed result'}"


if __name__ == "__main__":
    sys.exit(main())
