"""Break every command in every way, many times, and see whether the same command mends it.

The harness is that of the tests (`tests/fault_*.py`), where a few of these trials run each time. What a trial is and
what makes it right is in `tests/fault_trials.py`, what a fork instead of a fresh process changes in
`tests/fault_worker.py`. A trial's seed is its number among those of its command and fault.

Run `python -m benchmarks.faults`; it writes `benchmarks/results/faults.json`. Trials are kept as they are made, and
the same command goes on with those that are missing. `--command` and `--fault` make some of them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import JsonLines
from sdiareward.common.provenance import write_run


ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "faults.json"
COMMANDS = ("build", "train", "evaluate", "score", "push")
# Fault -> trials of each command. Only runs that got their signal are trials: of each there are fifty and more.
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


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    work_dir: Path = field(default=ROOT / "runs" / "faults", metadata={"help": "where trials are made and kept"})
    command: list[str] | None = field(
        default=None,
        metadata={"action": "append", "choices": (*COMMANDS, "serve"), "help": "run only this one; may be repeated"},
    )
    fault: list[str] | None = field(
        default=None, metadata={"action": "append", "help": "run only this one; may be repeated"}
    )
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> int:
    """Make the trials that are missing; return 1 if one of all has a problem."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.faults", description=__doc__)
    # The harness lies with the tests, which are no package.
    sys.path.insert(0, str(ROOT / "tests"))
    args.work_dir.mkdir(parents=True, exist_ok=True)
    log = JsonLines(args.work_dir / "trials.jsonl")
    with ExitStack() as stack:
        labs = _Labs(args.work_dir, stack)
        wanted = [key for key in _plan() if _is_wanted(key, args)]
        done = {(trial["command"], trial["fault"], trial["seed"]) for trial in log.read()}
        for command, fault, seed in tqdm([key for key in wanted if key not in done], unit="trial"):
            log.append([{"fault": fault, **labs.make(command, fault, seed)}])
    trials = log.read()
    args.output.parent.mkdir(exist_ok=True)
    write_run(args.output, result=summarise(trials))
    bad = [trial for trial in trials if trial["problems"]]
    print(f"{len(trials)} trials, {len(bad)} with problems; {args.output}")
    for trial in bad:
        print(json.dumps(trial))
    return int(bool(bad))


def _plan() -> Iterator[tuple[str, str, int]]:
    """Yield command, fault and seed of every trial: a few of everything first."""
    from faults.serving import SERVING_TRIALS

    for seed in range(max(TRIALS.values())):
        for fault, number in TRIALS.items():
            # A build of recordings on this machine asks nobody for anything.
            commands = [name for name in COMMANDS if (name, fault) != ("build", "network drop")]
            yield from ((command, fault, seed) for command in commands if seed < number)
    for fault, number in SERVING_TRIALS.items():
        yield from (("serve", fault, seed) for seed in range(number))


def _is_wanted(key: tuple[str, str, int], args: Arguments) -> bool:
    command, fault, _ = key
    return command in (args.command or (*COMMANDS, "serve")) and (not args.fault or fault in args.fault)


class _Labs:
    """The labs that trials are made in, each begun when it is first needed.

    Args:
        work_dir (`Path`): For what they write.
        stack (`ExitStack`): Ends them.
    """

    def __init__(self, work_dir: Path, stack: ExitStack):
        self._work_dir = work_dir
        self._stack = stack
        self._open: dict[str, Any] = {}

    def make(self, command: str, fault: str, seed: int) -> dict[str, Any]:
        """Make a trial."""
        from faults.trials import FAULTS

        if command == "serve":
            return self._get("serving", self._open_serving).make(fault, seed)
        if fault == "clock jump":
            trials = self._get("clock", partial(self._open_lab, "clock"))
        elif fault == "network drop" and command in ("train", "evaluate", "score"):
            trials = self._get("hub", self._open_hub)
        else:
            trials = self._get("plain", partial(self._open_lab, "plain"))
        return FAULTS[fault](trials, command, seed)

    def _get(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._open:
            self._open[name] = make()
        return self._open[name]

    def _open_lab(self, name: str) -> Any:
        """Start a lab and build what the other commands work on."""
        from faults.commands import Build, World, make_commands
        from faults.disks import unmount
        from faults.lab import Lab
        from faults.trials import Trials
        from support.tiny_model import save_checkpoint

        folder = self._work_dir / name
        unmount(folder / "output")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        lab = self._stack.enter_context(Lab(folder, has_clock=name == "clock"))
        world = World(folder / "world", save_checkpoint(folder / "tiny"))
        trials = Trials(lab, {"build": Build(world)})
        trials.reference("build")
        world.add_pairs(lab.output / "sdiareward")
        trials.commands.update(make_commands(world, lab.hub))
        return trials

    def _open_hub(self) -> Any:
        """Have the commands of the plain lab load their model from its Hub."""
        from faults.commands import make_commands
        from faults.trials import Trials

        plain = self._get("plain", partial(self._open_lab, "plain"))
        world = copy(plain.commands["train"].world)
        plain.lab.add_model("ORG/tiny", world.checkpoint)
        world.checkpoint = "ORG/tiny"
        return Trials(plain.lab, make_commands(world, plain.lab.hub))

    def _open_serving(self) -> Any:
        from faults.serving import ServingTrials

        return self._stack.enter_context(ServingTrials())


def summarise(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the trials by command and fault with the outcomes counted, and how many got each signal.

    Args:
        trials (`list[dict]`): As the log keeps them.
    """
    from faults.trials import TOLERANCE

    signals = Counter(trial["fault"].split()[0] for trial in trials if trial["fault"].startswith("SIG"))
    table: dict[str, dict[str, Any]] = {}
    for trial in trials:
        cell = table.setdefault(trial["command"], {}).setdefault(
            trial["fault"], {"num_trials": 0, "num_right": 0, "outcomes": Counter(), "trials": []}
        )
        cell["num_trials"] += 1
        cell["num_right"] += not trial["problems"]
        cell["outcomes"][describe_outcome(trial)] += 1
        cell["trials"].append({name: value for name, value in trial.items() if name not in ("command", "fault")})
    about = {"cores": len(os.sched_getaffinity(0)), "tolerance": TOLERANCE, "num_signalled": signals}
    return {**about, "commands": table}


def describe_outcome(trial: dict[str, Any]) -> str:
    """Return in a few words how a trial went."""
    if trial["problems"]:
        return "wrong"
    begun = trial["first"].partition(":")[0]
    return f"{begun}, then {'refused with the reason' if 'again' in trial else 'the undisturbed result'}"


if __name__ == "__main__":
    sys.exit(main())
