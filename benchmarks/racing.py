"""What benchmarks share: times in paired rounds, rewards that must agree, memory of a process, result files."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tqdm.auto import tqdm

from sdiareward.common.provenance import write_provenance
from sdiareward.scoring.tolerances import SAME_REWARD


ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TOLERANCE = SAME_REWARD["float32"]
_WARM_UP_DIALOGUES = 2

Dialogues = Sequence[Any]
Contestant = Callable[[Dialogues], list[float]]


def race(
    entrants: Mapping[str, Contestant], dialogues: Dialogues, rounds: int, tolerance: float = TOLERANCE
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Time contestants on the same dialogues in turn, every second round in the reverse order.

    Args:
        entrants (`Mapping[str, Contestant]`): By name; the rewards of all are compared with those of the first.
        dialogues (`Sequence`): The dialogues.
        rounds (`int`): Number of rounds.
        tolerance (`float`, *optional*, defaults to 1e-4): Largest allowed difference of rewards.

    Returns:
        `tuple`: By name the seconds of each round, and the largest difference of a reward from the first contestant's.

    Raises:
        ValueError: A difference is larger than `tolerance`.
    """
    for score in entrants.values():
        score(dialogues[:_WARM_UP_DIALOGUES])
    times, rewards = time_rounds({name: partial(score, dialogues) for name, score in entrants.items()}, rounds)
    return times, _compare_rewards(rewards, tolerance)


def time_rounds(
    tasks: Mapping[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[Any]]]:
    """Run tasks in turn, every second round in the reverse order.

    Args:
        tasks (`Mapping[str, Callable]`): By name.
        rounds (`int`): Number of rounds.

    Returns:
        `tuple`: By name the seconds and the results of each round.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    results: dict[str, list[Any]] = {name: [] for name in tasks}
    for number in tqdm(range(rounds), desc="rounds"):
        for name in tqdm(list(tasks)[:: -1 if number % 2 else 1], desc="contestants", leave=False):
            gc.collect()
            start = time.perf_counter()
            results[name].append(tasks[name]())
            times[name].append(time.perf_counter() - start)
    return times, results


def _compare_rewards(rewards: Mapping[str, Sequence[Sequence[float]]], tolerance: float) -> dict[str, float]:
    """Return each contestant's largest difference from the rewards of the first one's first round."""
    first, expected = next((name, found[0]) for name, found in rewards.items())
    differences = {}
    for name, rounds in rewards.items():
        pairs = [pair for found in rounds for pair in zip(found, expected, strict=True)]
        differences[name] = max(abs(one - other) for one, other in pairs)
        if not differences[name] <= tolerance:
            raise ValueError(
                f"{name}: a reward differs by {differences[name]:.2g} from that of {first}; at most {tolerance:g} is "
                "allowed, otherwise speeds cannot be compared."
            )
    return differences


def speedup(slow_s: Sequence[float], fast_s: Sequence[float]) -> float:
    """Return the median over rounds of the first time divided by the second."""
    return median(slow / fast for slow, fast in zip(slow_s, fast_s, strict=True))


def max_rss_mib() -> int:
    """Return the peak memory of this process so far."""
    # Not `getrusage`: its value survives `exec` and may be the parent's.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024)


def write_result(path: Path, **sections: Any) -> None:
    """Write a result file as `write_provenance` does, in a folder that is created if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_provenance(path, **sections)


def run_module(name: str, *arguments: Any) -> dict[str, Any]:
    """Run a module of `benchmarks` in its own process and return the JSON object that it prints last."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def describe_cpu() -> dict[str, Any]:
    """Return the processor's name, the number of usable cores, and the threads of torch."""
    import torch

    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return {
        "name": names[0] if names else None,
        "usable_cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
