"""Time benchmarks in paired rounds and compare their rewards.

`results/NAME.json` is a list of records, one per part, model and device, each with its versions and revision;
`results/NAME.md` has the tables.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm

from sdiareward.common.files import write_file
from sdiareward.common.machine import describe_run
from sdiareward.common.tables import render_markdown_table
from sdiareward.scoring.outcomes import SAME_REWARD, scale_tolerance


ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
_WARM_UP_DIALOGUES = 2

Record = dict[str, Any]
Contestant = Callable[[Sequence[Any]], list[float]]


def race(entrants: Mapping[str, Contestant], dialogues: Sequence[Any], rounds: int, dtype: str = "float32") -> Record:
    """Time contestants in turn and return the seconds per round; rewards must agree within the dtype."""
    for score in entrants.values():
        score(dialogues[:_WARM_UP_DIALOGUES])
    runs = time_rounds({name: partial(score, dialogues) for name, score in entrants.items()}, rounds)
    expected = torch.tensor(next(iter(runs.values()))[0].result)
    differences = {
        name: max((torch.tensor(run.result) - expected).abs().max().item() for run in found)
        for name, found in runs.items()
    }
    for name, difference in differences.items():
        if not difference <= scale_tolerance(SAME_REWARD[dtype], expected.tolist()):
            raise ValueError(f"{name}: a reward differs by {difference:.2g}; speeds cannot be compared.")
    return {
        "seconds": {name: [run.seconds for run in found] for name, found in runs.items()},
        "largest_difference": differences,
        "peak_mib": {name: max(run.peak_mib for run in found) for name, found in runs.items()},
    }


class Run(NamedTuple):
    """Seconds, peak memory of the process, or of tensors on a GPU, and result."""

    seconds: float
    peak_mib: int
    result: Any


def time_rounds(tasks: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Run]]:
    """Run tasks in turn, every second round in the reverse order; return the runs of each by name."""
    runs: dict[str, list[Run]] = {name: [] for name in tasks}
    for number in tqdm(range(rounds), desc="rounds"):
        for name in list(tasks)[:: -1 if number % 2 else 1]:
            runs[name].append(measure(tasks[name]))
    return runs


def measure(task: Callable[[], Any]) -> Run:
    gc.collect()
    if is_cuda := torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        # Return freed memory to the system and reset the peak.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    wait_for_device()
    start = time.perf_counter()
    result = task()
    wait_for_device()
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = torch.cuda.max_memory_allocated() if is_cuda else 1024 * int(status.split("VmHWM:")[1].split()[0])
    return Run(seconds, round(peak / 2**20), result)


def wait_for_device() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def speedup(slow_s: Sequence[float], fast_s: Sequence[float]) -> float:
    """Return the median over rounds of the first time divided by the second."""
    return median(slow / fast for slow, fast in zip(slow_s, fast_s, strict=True))


def describe_device(device: str) -> dict[str, Any]:
    if device.startswith("cuda"):
        found = torch.cuda.get_device_properties(device)
        return {"name": found.name, "memory_gib": round(found.total_memory / 2**30, 1), "cuda": torch.version.cuda}
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    cores = len(os.sched_getaffinity(0))
    return {"name": name, "usable_cores": cores, "torch_threads": torch.get_num_threads()}


def save_record(
    path: Path, render: Callable[[list[Record]], str], part: str, model: str, *, device: str = "cpu", **found: Any
) -> None:
    """Replace the record of the same part, model and device, and render the tables of all records."""
    new = {"part": part, "model": model, **describe_run(), "device": describe_device(device), **found}
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    by_key = {(record["part"], record["model"], record["device"]["name"]): record for record in [*old, new]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(list(by_key.values()), indent=1, default=str) + "\n")
    path.with_suffix(".md").write_text(render(list(by_key.values())), encoding="utf-8")


def group_records(records: Iterable[Record], *parts: str) -> list[list[Record]]:
    """Return the records of some parts, or of all, grouped by device."""
    chosen = [each for each in records if not parts or each["part"] in parts]
    chosen.sort(key=lambda each: each["device"]["name"])
    return [list(found) for _, found in groupby(chosen, key=lambda each: each["device"]["name"])]


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], records: Sequence[Record]) -> str:
    """Return a Markdown table with the device and the settings of the records."""
    captions: dict[str, list[str]] = {}
    for record in records:
        captions.setdefault(_describe_record(record), []).append(record["model"])
    named = (f"{', '.join(dict.fromkeys(models))}: {text}" for text, models in captions.items())
    return "\n".join([*render_markdown_table(columns, rows), "", *named])


def format_cells(values: Mapping[str, Any]) -> list[str]:
    return ["" if value is None else text.format(value) for text, value in values.items()]


def _describe_record(record: Record) -> str:
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in record["settings"].items())
    device, revision = record["device"], record["git_revision"] or "unknown"
    cores = f", {device['usable_cores']} cores" if "usable_cores" in device else ""
    return f"{device['name']}{cores}, PyTorch {record['versions']['torch']}, revision {revision[:8]}: {settings}."
