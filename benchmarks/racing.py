"""Compare ways of doing the same: times in paired rounds, results that must agree, memory in a process of its own."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tqdm.auto import tqdm

from sdiareward.scoring.tolerances import SAME_REWARD


ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = SAME_REWARD["float32"]
_WARM_UP_DIALOGUES = 2

Dialogues = Sequence[Any]
Contestant = Callable[[Dialogues], list[float]]


def race(
    entrants: Mapping[str, Contestant], dialogues: Dialogues, rounds: int, tolerance: float = TOLERANCE
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Let all score the same dialogues, one after the other, the next round in the reverse order.

    Args:
        entrants (`Mapping[str, Contestant]`): By name; the first one's rewards are what the others' are compared with.
        dialogues (`Sequence`): What is scored.
        rounds (`int`): How often.
        tolerance (`float`, *optional*, defaults to 1e-4): How far rewards may differ.

    Returns:
        `tuple`: seconds of each round by name, and by name the largest difference of a reward from the first one's.

    Raises:
        ValueError: A difference is larger than `tolerance`.
    """
    for score in entrants.values():
        score(dialogues[:_WARM_UP_DIALOGUES])
    times: dict[str, list[float]] = {name: [] for name in entrants}
    rewards: dict[str, list[list[float]]] = {name: [] for name in entrants}
    for number in tqdm(range(rounds), desc="rounds"):
        names = list(entrants)[:: -1 if number % 2 else 1]
        for name in tqdm(names, desc="contestants", leave=False):
            gc.collect()
            start = time.perf_counter()
            rewards[name].append(entrants[name](dialogues))
            times[name].append(time.perf_counter() - start)
    return times, _differences(rewards, tolerance)


def _differences(rewards: Mapping[str, Sequence[Sequence[float]]], tolerance: float) -> dict[str, float]:
    """Return the largest difference of each from the first one's first rewards."""
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
    """Return the median over rounds of how many times longer the first one took."""
    return median(slow / fast for slow, fast in zip(slow_s, fast_s, strict=True))


def max_rss_mib() -> int:
    """Return the most memory that this process has held so far."""
    # Not `getrusage`: what it gives survives `exec`, and so may be the parent's.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024)


def run_module(name: str, *arguments: Any) -> dict[str, Any]:
    """Run a module of `benchmarks` in a process of its own and return the JSON object that it prints last."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def describe_cpu() -> dict[str, Any]:
    """Return the processor's name, how many cores this process may use, and the threads that torch takes."""
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
