"""What the Ray engine itself costs: a million dialogues on three simulated nodes, with a scorer that costs nothing.

    python -m benchmarks.scoring_cluster
    python -m benchmarks.scoring_cluster --num_rows 20000          # a quick look, with nobody killed

A cluster of three nodes is simulated on this machine (`ray.cluster_utils`). A driver scores rows of Parquet with a
scorer whose reward is a function of the text alone. One node is killed and another joins in its place; then the
driver is killed, and a second one goes on. Memory of driver and workers is read from `/proc` every half second; its
slope is that of a line through the readings after the first tenth of a driver's rows. Every row must have one reward.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import racing
from benchmarks.synthetic_workload import MEAN_DIALOGUE_S
from sdiareward.common.arguments import parse_arguments
from sdiareward.scoring.dataset import ScoringJob
from sdiareward.scoring.model_spec import ModelSpec


RESULT = racing.RESULTS / "scoring_cluster.json"
NUM_NODES = 3
_ROWS_IN_A_FILE = 100_000
# Below this number a driver is done before it could be killed.
MIN_KILLED_ROWS = 60_000
# Shares of the rows at which a node is killed and, later, the driver.
_NODE_AT, _DRIVER_AT = 0.2, 0.6
_READ_EVERY_S = 0.5
_WARM_SHARE = 0.1
_MIB = 2**20
# Models whose cost of a dialogue is counted.
COSTED = ("nano", "small", "3b", "7b")
_TURNS, _MARKER_TOKENS = 6, 7
_FRAMES_PER_S, _AUDIO_TOKENS_PER_S, _TEXT_TOKENS_PER_S = 100, 25, 3.5


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    num_rows: int = field(default=1_000_000, metadata={"help": "dialogues to score"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})
    here: list[Path] = field(default_factory=list, metadata={"help": argparse.SUPPRESS})


class FreeScorer:
    """A scorer that hears nothing: the reward is a checksum of the dialogue's words."""

    audio_s = 0.0
    processor = SimpleNamespace(max_turn_s=15.0)

    def iter_scores(self, dialogues: Sequence[Any], criteria: Sequence[str], **_: Any) -> Iterator[tuple[int, float]]:
        """Yield the index and the reward of each dialogue."""
        for index in range(len(dialogues)):
            yield index, reward_of(dialogues[index])


@dataclass(frozen=True)
class FreeJob(ScoringJob):
    """A job whose scorer is a [`FreeScorer`]."""

    def load_scorer(self, device: str | None = None) -> Any:
        """Return the scorer."""
        return FreeScorer()


def reward_of(dialogue: Sequence[Mapping[str, Any]]) -> float:
    """Return the checksum of the words, from 0 to 1."""
    words = " ".join(turn["content"] for turn in dialogue)
    return zlib.crc32(words.encode()) / 2**32


def make_dialogue(number: int) -> list[dict[str, str]]:
    """Return a dialogue of two short turns that no other number has."""
    return [
        {"role": "user", "content": f"Is the train number {number} late again?"},
        {"role": "assistant", "content": f"By {number % 59} minutes, I am afraid."},
    ]


def write_rows(folder: Path, num_rows: int) -> None:
    """Write the dialogues as files of Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for start in range(0, num_rows, _ROWS_IN_A_FILE):
        numbers = range(start, min(start + _ROWS_IN_A_FILE, num_rows))
        table = pa.table(
            {"id": [str(each) for each in numbers], "messages": [make_dialogue(each) for each in numbers]}
        )
        pq.write_table(table, folder / f"train-{start:09d}.parquet", row_group_size=2_000)


def drive(data: Path, output: Path) -> None:
    """Score the rows on the cluster that `RAY_ADDRESS` names, as `sdiareward score --engine ray` does."""
    from sdiareward.scoring.ray_engine import score_on_ray

    job = FreeJob(ModelSpec("nano"), str(data), split="train", criterion="joint")
    print(json.dumps({"seconds": score_on_ray(job, output, num_actors=NUM_NODES).seconds}))


class Readings:
    """Memory of the driver and of the workers while rows are scored.

    Args:
        driver (`int`): Process id of the driver.
        output (`Path`): Where it writes.
        cluster (`int`): Process id under which the nodes run.
    """

    def __init__(self, driver: int, output: Path, cluster: int):
        import psutil

        self._driver, self._cluster = psutil.Process(driver), psutil.Process(cluster)
        self._output = output
        self.rows: list[int] = []
        self.memory: dict[str, list[float]] = {"driver": [], "worker": []}
        self._counts: dict[Path, tuple[int, int]] = {}

    def count_records(self) -> int:
        """Return how many records there are; what was counted before is not read again."""
        for path in (self._output / "partial").glob("*.jsonl"):
            position, num_lines = self._counts.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(position)
                new = file.read()
            self._counts[path] = (position + len(new), num_lines + new.count(b"\n"))
        return sum(num_lines for _, num_lines in self._counts.values())

    def count_again(self) -> int:
        """Return how many records there are, however long counting takes."""
        return self.count_records()

    def read(self) -> int:
        """Take a reading; return the number of records."""
        num_records = self.count_records()
        driver = _read_mib(self._driver)
        worker = max((_read_mib(each, "MapWorker") for each in self._cluster.children(recursive=True)), default=0.0)
        if worker and driver:
            self.rows.append(num_records)
            self.memory["driver"].append(driver)
            self.memory["worker"].append(worker)
        return num_records

    def describe(self) -> dict[str, Any]:
        """Return peaks in MiB, and the slopes in MiB for 100,000 rows; no slope of fewer than ten readings."""
        rows = np.array(self.rows)
        first = rows.searchsorted(rows.min() + _WARM_SHARE * np.ptp(rows)) if rows.size else 0
        found: dict[str, Any] = {"readings": int(rows.size)}
        for name, memory in self.memory.items():
            found[f"{name}_mib"] = round(max(memory, default=0.0), 1)
            steady = np.array(memory[first:])
            if steady.size >= 10 and np.ptp(rows[first:]):
                found[f"{name}_mib_per_100k_rows"] = round(float(np.polyfit(rows[first:], steady, 1)[0]) * 1e5, 2)
        return found


def _read_mib(process: Any, name: str = "") -> float:
    """Return the memory of a process in MiB; 0 for one that has ended, or has not the name in its command line."""
    import psutil

    try:
        return float(process.memory_info().rss / _MIB) if name in " ".join(process.cmdline()) else 0.0
    except psutil.Error:
        return 0.0


class Driver:
    """A driver in a process of its own.

    Args:
        arguments (`Sequence[str]`): Module that drives, and its arguments.
        output (`Path`): Where it writes; its log lies beside.
        address (`str`): Of the cluster.
        readings (`type`): Counts what is written.
    """

    def __init__(self, arguments: Sequence[str], output: Path, address: str, readings: type[Readings] = Readings):
        command = [sys.executable, "-m", *arguments]
        self._log = output.with_suffix(".log")
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=racing.ROOT, env=os.environ | {"RAY_ADDRESS": address}, stdout=log, stderr=log
            )
        self.start = time.perf_counter()
        self.readings = readings(self.process.pid, output, os.getpid())
        self.num_before = self.readings.count_records()
        self.first_s: float | None = None

    def wait_for(self, num_records: int | None) -> int:
        """Take readings until there are so many records, or until the driver is done; return the number."""
        while True:
            found, status = self.readings.read(), self.process.poll()
            if self.first_s is None and found > self.num_before:
                self.first_s = time.perf_counter() - self.start
            if status:
                raise RuntimeError(f"the driver ended with {status}: {self._log.read_text()[-2000:]}")
            if status == 0:
                return self.readings.count_again()
            if num_records is not None and found >= num_records:
                return found
            time.sleep(_READ_EVERY_S)

    def describe(self, num_records: int) -> dict[str, Any]:
        """Return what it did until now, when there are so many records."""
        seconds, num_rows = time.perf_counter() - self.start, num_records - self.num_before
        of_rows = seconds - (self.first_s or 0.0)
        return {
            "rows": num_rows,
            "seconds": round(seconds, 2),
            "first_row_s": round(self.first_s or seconds, 2),
            "ms_per_row": round(1000 * of_rows / max(num_rows, 1), 4),
            **self.readings.describe(),
        }


@contextmanager
def open_cluster() -> Iterator[Any]:
    """Start a cluster of [`NUM_NODES`] nodes with one CPU each on this machine."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(NUM_NODES - 1):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def drive_and_kill(num_rows: int, start: Callable[[str], Driver], kill: bool) -> dict[str, Any]:
    """Let a driver do the rows; or kill a node, then the driver, and let a second one end it.

    Args:
        num_rows (`int`): How many rows there are.
        start (`Callable`): Starts a driver on the cluster of an address.
        kill (`bool`): Whether anybody is killed.
    """
    with open_cluster() as cluster:
        driver, sessions, killed = start(cluster.address), [], {}
        if kill:
            killed["node_at_row"] = driver.wait_for(round(_NODE_AT * num_rows))
            cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
            cluster.add_node(num_cpus=1)
            killed["driver_at_row"] = driver.wait_for(round(_DRIVER_AT * num_rows))
            sessions.append(driver.describe(killed["driver_at_row"]))
            driver.process.send_signal(signal.SIGKILL)
            driver.process.wait()
            driver = start(cluster.address)
        sessions.append(driver.describe(driver.wait_for(None)))
    return {"num_nodes": NUM_NODES, "killed": killed, "sessions": sessions}


def measure(num_rows: int, folder: Path) -> dict[str, Any]:
    """Score on three nodes, kill one and the driver if there are rows enough, and check every row."""
    data, output = folder / "data", folder / "output"
    data.mkdir()
    write_rows(data, num_rows)
    arguments = ["benchmarks.scoring_cluster", "--here", str(data), str(output)]
    found = drive_and_kill(
        num_rows, lambda address: Driver(arguments, output, address), kill=num_rows >= MIN_KILLED_ROWS
    )
    return found | check_rows(output, num_rows)


def check_rows(output: Path, num_rows: int) -> dict[str, Any]:
    """Return how many rows have no reward, several records, or another reward than that of their dialogue."""
    import pyarrow.parquet as pq

    table = pq.read_table(output / "scores.parquet")
    rows = table["row"].to_numpy()
    expected = np.array([reward_of(make_dialogue(row)) for row in rows.tolist()])
    num_wrong = int((np.abs(table["reward"].to_numpy() - expected) > 1e-9).sum())
    return {"num_rows": num_rows, "num_wrong": num_wrong, **count_losses(output, rows.tolist(), num_rows)}


def count_losses(output: Path, rows: Sequence[int], num_rows: int) -> dict[str, Any]:
    """Return how many rows are missing among the scored ones, and how many stand twice there or in the records.

    Args:
        output (`Path`): Folder of the run.
        rows (`Sequence[int]`): Numbers of the rows that have a reward.
        num_rows (`int`): How many there must be.
    """
    logs = list((output / "partial").glob("*.jsonl"))
    records = [json.loads(line)["row"] for path in logs for line in path.open()]
    return {
        "num_lost": num_rows - len(set(rows)),
        "num_twice": len(records) - len(set(records)) + len(rows) - len(set(rows)),
        "record_bytes": round(sum(path.stat().st_size for path in logs) / max(len(records), 1), 1),
    }


def count_teraflops(name: str) -> float:
    """Return the operations, in 10^12, of a dialogue as long as those of ESDR-Bench, for one of [`COSTED`].

    Six turns, each with its words; the prompt is computed once for many dialogues and does not count.
    """
    from benchmarks.flops import audio_flops, text_flops
    from benchmarks.speed_models import TRAINED, model_config
    from sdiareward.checkpoint_io.builtin import find_checkpoint
    from sdiareward.configuration_sdiareward import SDiaRewardConfig
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

    if name in TRAINED:
        config = SDiaRewardConfig.from_pretrained(find_checkpoint(name))
    else:
        config = model_config(name, SDiaRewardProcessor.from_pretrained(find_checkpoint("nano")).tokenizer)
    turn_s = MEAN_DIALOGUE_S / _TURNS
    heard_s = min(turn_s, config.max_turn_s)
    audio_tokens = round(_AUDIO_TOKENS_PER_S * heard_s / config.stack_factor)
    num_tokens = _TURNS * (audio_tokens + round(_TEXT_TOKENS_PER_S * turn_s) + _MARKER_TOKENS)
    flops = text_flops(config.text_config, num_tokens)
    flops += _TURNS * audio_flops(config.audio_config, round(_FRAMES_PER_S * heard_s))
    return round(flops / 1e12, 4)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.scoring_cluster", description=__doc__)
    if args.here:
        drive(*args.here)
        return
    with TemporaryDirectory() as folder:
        found = measure(args.num_rows, Path(folder))
    dialogue = {"seconds": round(MEAN_DIALOGUE_S, 1), "teraflops": {name: count_teraflops(name) for name in COSTED}}
    racing.write_result(args.output, cpu=racing.describe_cpu(), dialogue=dialogue, **found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
