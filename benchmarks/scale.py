"""A million dialogues on three simulated nodes with a scorer that costs nothing: what the Ray engine itself costs.

    python -m benchmarks.scale
    python -m benchmarks.scale --num_rows 20000          # a quick look, with nobody killed

One node is killed and another joins; then the driver is killed, and a second one resumes. Every row must have exactly
one reward, the right one. Memory is read every half second; its slope is a line through the readings after the first
tenth of a driver's rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import racing
from benchmarks.racing import Record
from sdiareward.chat_sdiareward import make_dialogue as read_dialogue
from sdiareward.common.commands import parse_options
from sdiareward.scoring.dataset import ScoringJob
from sdiareward.scoring.model_spec import ModelSpec


NUM_NODES = 3
_ROWS_IN_A_FILE = 100_000
# Below this number a driver is done before it could be killed.
_MIN_KILLED_ROWS = 60_000
# Shares of the rows at which a node is killed and, later, the driver.
_NODE_AT, _DRIVER_AT = 0.2, 0.6
_READ_EVERY_S, _WARM_SHARE = 0.5, 0.1


@dataclass(kw_only=True)
class Arguments:
    """`drive` is for the drivers that the benchmark starts."""

    num_rows: int = 1_000_000
    output: Path = racing.RESULTS / "scale.json"
    drive: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class FreeJob(ScoringJob):
    def load_scorer(self, device: str | None = None) -> Any:

        def iter_scores(dialogues: Sequence[Any], criteria: Any, **_: Any) -> Iterator[tuple[int, float]]:
            return ((index, compute_reward(dialogues[index])) for index in range(len(dialogues)))

        return SimpleNamespace(audio_s=0.0, processor=SimpleNamespace(max_turn_s=15.0), iter_scores=iter_scores)


def compute_reward(dialogue: Any) -> float:
    """Return a checksum of the words, from 0 to 1."""
    words = " ".join(turn.text for turn in read_dialogue(dialogue).turns)
    return zlib.crc32(words.encode()) / 2**32


def make_dialogue(number: int) -> list[dict[str, str]]:
    """Return a dialogue that no other number has."""
    question, answer = f"Is the train number {number} late again?", f"By {number % 59} minutes, I am afraid."
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_options(Arguments, argv, prog="python -m benchmarks.scale", description=__doc__)
    if args.drive:
        from sdiareward.scoring.dataset import score_on_ray

        data, output = args.drive
        score_on_ray(
            FreeJob(ModelSpec("nano"), str(data), split="train", criterion="joint"), output, num_actors=NUM_NODES
        )
        return
    with TemporaryDirectory() as folder:
        racing.save_record(args.output, render, "engine", "none", **measure(args.num_rows, Path(folder)))


def measure(num_rows: int, folder: Path) -> Record:
    """Score on three nodes, kill one and the driver if there are rows enough, and check every row."""
    data, output = folder / "data", folder / "output"
    data.mkdir()
    for start in range(0, num_rows, _ROWS_IN_A_FILE):
        numbers = range(start, min(start + _ROWS_IN_A_FILE, num_rows))
        rows = {"id": [str(number) for number in numbers], "messages": [make_dialogue(number) for number in numbers]}
        pq.write_table(pa.table(rows), data / f"train-{start:09d}.parquet", row_group_size=2_000)
    sessions, killed = [], {}
    with open_cluster() as cluster:
        driver = Driver(data, output, cluster.address)
        if num_rows >= _MIN_KILLED_ROWS:
            killed["node killed at row"] = driver.wait_for(round(_NODE_AT * num_rows))
            cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
            cluster.add_node(num_cpus=1)
            killed["driver killed at row"] = driver.wait_for(round(_DRIVER_AT * num_rows))
            sessions.append(driver.describe())
            driver.process.kill()
            driver.process.wait()
            driver = Driver(data, output, cluster.address)
        driver.wait_for(None)
        sessions.append(driver.describe())
    return {"settings": {"rows": num_rows, "nodes": NUM_NODES, **killed}, "sessions": sessions, **check_rows(output)}


def check_rows(output: Path) -> Record:
    """Count the rows, duplicates and wrong rewards."""
    table = pq.read_table(output / "scores.parquet")
    rows = table["row"].to_pylist()
    expected = np.array([compute_reward(make_dialogue(row)) for row in rows])
    parts = list((output / "parts").glob("*.parquet"))
    records = [row for path in parts for row in pq.read_table(path, columns=["item"])["item"].to_pylist()]
    return {
        "num_scored": len(set(rows)),
        "num_twice": len(records) - len(set(records)) + len(rows) - len(set(rows)),
        "num_wrong": int((np.abs(table["reward"].to_numpy() - expected) > 1e-9).sum()),
        "record_bytes": round(sum(path.stat().st_size for path in parts) / max(len(records), 1), 1),
    }


@contextmanager
def open_cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(NUM_NODES - 1):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


class Driver:
    """A driver process, with readings of the memory of driver and workers."""

    def __init__(self, data: Path, output: Path, address: str):
        command = [sys.executable, "-m", "benchmarks.scale", "--drive", str(data), str(output)]
        environment = os.environ | {"RAY_ADDRESS": address}
        self._parts, self._log = output / "parts", output.with_suffix(".log")
        self._num_before = self._count_records()
        with self._log.open("a") as log:
            self.process = subprocess.Popen(command, cwd=racing.ROOT, env=environment, stdout=log, stderr=log)
        self._observed, self._start = psutil.Process(self.process.pid), time.perf_counter()
        self._readings: list[tuple[float, ...]] = []

    def wait_for(self, num_records: int | None) -> int:
        """Take readings until that many records exist or the driver has ended; return the number."""
        while True:
            status, found = self.process.poll(), self._count_records()
            workers = (_read_mib(each, "MapWorker") for each in psutil.Process().children(recursive=True))
            memory = (_read_mib(self._observed), max(workers, default=0.0))
            self._readings.append((time.perf_counter() - self._start, found - self._num_before, *memory))
            if status:
                raise RuntimeError(f"the driver ended with {status}: {self._log.read_text()[-2000:]}")
            if status == 0 or (num_records is not None and found >= num_records):
                return found
            time.sleep(_READ_EVERY_S)

    def _count_records(self) -> int:
        return sum(map(_count_rows, self._parts.glob("*.parquet")))

    def describe(self) -> Record:
        """Return time, peaks in MiB, and slopes in MiB per 100,000 rows; at least ten readings give a slope."""
        seconds, rows, driver, worker = np.array(self._readings).T
        first_s = seconds[np.argmax(rows > 0)]
        found = {
            "rows": int(rows[-1]),
            "seconds": round(seconds[-1], 2),
            "first_row_s": round(first_s, 2),
            "ms_per_row": round(1000 * (seconds[-1] - first_s) / rows[-1], 4),
        }
        steady = (rows >= _WARM_SHARE * rows[-1]) & (driver > 0) & (worker > 0)
        for name, memory in (("driver", driver), ("worker", worker)):
            found[f"{name}_mib"] = round(memory.max(), 1)
            if steady.sum() >= 10:
                found[f"{name}_mib_per_100k_rows"] = round(np.polyfit(rows[steady], memory[steady], 1)[0] * 1e5, 2)
        return found


def _read_mib(process: psutil.Process, name: str = "") -> float:
    """Return the memory of a process; 0 if it has ended or `name` is not in its command line."""
    try:
        return float(process.memory_info().rss / 2**20) if name in " ".join(process.cmdline()) else 0.0
    except psutil.Error:
        return 0.0


@cache
def _count_rows(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)


def render(records: list[Record]) -> str:
    texts = []
    for (record,) in racing.group_records(records):
        rows = []
        for number, each in enumerate(record["sessions"], 1):
            slopes = [each.get(f"{name}_mib_per_100k_rows") for name in ("driver", "worker")]
            cells = (f"{each['rows']:,}", f"{each['seconds']:.0f} s", f"{each['first_row_s']:.0f} s")
            growth = ("" if slope is None else f"{slope:+.1f} MiB" for slope in slopes)
            memory = (f"{each['driver_mib']:.0f} MiB", f"{each['worker_mib']:.0f} MiB")
            rows.append((f"driver {number}", *cells, f"{each['ms_per_row']:.2f} ms", *memory, *growth))
        columns = ("", "rows", "time", "first row after", "a row", "driver", "largest worker")
        more = ("driver, 100,000 rows more", "worker, 100,000 rows more")
        texts.append(racing.make_table((*columns, *more), rows, [record]))
        texts.append(
            f"Rows with a reward: {record['num_scored']:,}; with two: {record['num_twice']}; with a wrong one: "
            f"{record['num_wrong']}. A record takes {record['record_bytes']:.0f} bytes."
        )
    return "\n\n".join(texts) + "\n"


if __name__ == "__main__":
    main()
