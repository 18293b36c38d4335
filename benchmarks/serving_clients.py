"""Tools of `serving_load`: dialogues with known rewards, a server process, and its clients.

Notable choices:

- Every answer is compared with the reward of `Scorer`. There are more distinct dialogues than the model's cache of
  clips holds, so no answer comes from the cache.
- A client sends its next request after its answer. On 503 it waits as told and retries. The time of a request runs
  from its first attempt to its reward.
- Clients and server share the same cores.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
from tqdm.auto import tqdm

from benchmarks.racing import ROOT
from benchmarks.scoring_workload import ManyDialogues
from benchmarks.speed_models import NANO
from sdiareward.serving.encoding import encode_dialogue


TOLERANCE = 1e-5
JSON = {"Content-Type": "application/json"}
_START_S = 300
_ROLES = {"ServeReplica": "replica", "ServeController": "controller", "ray::": "ray", "/ray/": "ray"}


class KnownDialogues:
    """Dialogues with known rewards.

    Args:
        num_dialogues (`int`): Number of distinct dialogues.
        seed (`int`): Of the dialogues.
    """

    def __init__(self, num_dialogues: int, seed: int):
        from sdiareward.scoring.scorer import Scorer

        self.dialogues = ManyDialogues(num_dialogues, seed)
        found = dict(Scorer.from_pretrained(NANO, device="cpu").iter_scores(self.dialogues, progress=True))
        self.rewards = [found[index] for index in range(num_dialogues)]

    def __len__(self) -> int:
        return len(self.rewards)

    def body(self, index: int) -> bytes:
        """Return the request that scores one dialogue."""
        return json.dumps({"dialogues": [encode_dialogue(self.dialogues[index])]}).encode()


@dataclass
class Tally:
    """Results of clients."""

    seconds: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    sent: int = 0
    put_off: int = 0
    mismatched: int = 0
    largest_difference: float = 0.0
    lost: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """Return the counts, and the median and 99th percentile of the times in seconds."""
        found: dict[str, Any] = {"sent": self.sent, "answered": len(self.seconds), "put_off": self.put_off}
        found |= {"lost": dict(self.lost), "mismatched": self.mismatched}
        found["largest_difference"] = self.largest_difference
        if self.seconds:
            median, high = np.quantile(self.seconds, [0.5, 0.99])
            found |= {"p50_s": float(median), "p99_s": float(high), "requests_per_s": self.rate()}
        return found

    def rate(self) -> float:
        """Return answers per second."""
        spent_s = max(self.times) - min(self.times) if len(self.times) > 1 else 0.0
        return (len(self.times) - 1) / spent_s if spent_s else 0.0

    def longest_gap_s(self) -> float:
        """Return the longest time without any answer."""
        times = sorted(self.times)
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


class Clients:
    """Send requests to one server.

    Args:
        url (`str`): Its address.
        known ([`KnownDialogues`]): The dialogues to send.
    """

    def __init__(self, url: str, known: KnownDialogues):
        self.url = url
        self.known = known
        self._next = itertools.count()

    async def drive(
        self,
        concurrency: int,
        *,
        num_requests: int | None = None,
        seconds: float | None = None,
        tally: Tally | None = None,
    ) -> Tally:
        """Run clients that send one request after the other, and return their results.

        Args:
            concurrency (`int`): Number of clients.
            num_requests (`int`, *optional*): Requests of all clients together.
            seconds (`float`, *optional*): Send no request after this time.
            tally ([`Tally`], *optional*): Where to count, to watch the results meanwhile.
        """
        tally = Tally() if tally is None else tally
        end = time.monotonic() + (seconds or float("inf"))
        left = itertools.count() if num_requests is None else iter(range(num_requests))
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            with tqdm(total=num_requests, unit="request", leave=False) as bar:

                async def client() -> None:
                    while time.monotonic() < end and next(left, None) is not None:
                        await self._ask(session, next(self._next) % len(self.known), tally)
                        bar.update()

                await asyncio.gather(*(client() for _ in range(concurrency)))
        return tally

    async def _ask(self, session: aiohttp.ClientSession, index: int, tally: Tally) -> None:
        """Request one reward until it is answered."""
        body, start = self.known.body(index), time.monotonic()
        tally.sent += 1
        while True:
            try:
                async with session.post(f"{self.url}/score", data=body, headers=JSON) as answer:
                    content, status = await answer.json(), answer.status
                    retry_after_s = float(answer.headers.get("Retry-After", 1))
            except (aiohttp.ClientError, OSError, ValueError) as error:
                tally.lost[type(error).__name__] += 1
                return
            if status != 503:
                break
            tally.put_off += 1
            await asyncio.sleep(retry_after_s)
        if status != 200:
            tally.lost[str(status)] += 1
            return
        now, difference = time.monotonic(), abs(content["results"][0]["reward"] - self.known.rewards[index])
        tally.seconds.append(now - start)
        tally.times.append(now)
        tally.largest_difference = max(tally.largest_difference, difference)
        tally.mismatched += difference > TOLERANCE


class ServerProcess:
    """A server of the nano checkpoint on this machine, with one thread in its model.

    Args:
        process (`subprocess.Popen`): The process.
        url (`str`): Its address.
    """

    def __init__(self, process: subprocess.Popen[bytes], url: str):
        self.process = process
        self.url = url

    def memory_mib(self) -> dict[str, float]:
        """Return the resident memory of all its processes by their role."""
        found: Counter[str] = Counter()
        for process in [psutil.Process(self.process.pid), *self._children()]:
            try:
                name = " ".join(process.cmdline())
                role = next((role for part, role in _ROLES.items() if part in name), "ray")
                role = "http" if process.pid == self.process.pid else role
                found[role] += process.memory_info().rss / 2**20
            except psutil.NoSuchProcess:
                continue
        return dict(found)

    def kill_replica(self) -> None:
        """Kill one replica of the model."""
        replica = next(child for child in self._children() if "ServeReplica" in " ".join(child.cmdline()))
        replica.send_signal(signal.SIGKILL)

    def _children(self) -> Sequence[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def metric(self, text: str, name: str) -> float:
        """Return the sum of a metric over its labels, from the text of `/metrics`."""
        return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))


@contextmanager
def running_server(environment: Mapping[str, str] | None = None, **options: Any) -> Iterator[ServerProcess]:
    """Start a server and end it, by force if necessary.

    Args:
        environment (`dict[str, str]`, *optional*): Additional variables.
        options: Options of `sdiareward serve`, with underscores.
    """
    command = [sys.executable, "-m", "sdiareward.cli", "serve", "--model", str(NANO), "--port", "0", "--device", "cpu"]
    options = {"threads": 1, "cpus_per_replica": 0, "max_in_flight": 256, **options}
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        variables = {**os.environ, "RAY_ADDRESS": "", **(environment or {})}
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=variables)
        try:
            yield ServerProcess(process, _await_address(process, Path(log.name)))
        finally:
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.terminate()
            try:
                process.wait(100)
            except subprocess.TimeoutExpired:
                process.kill()
            for child in psutil.wait_procs(children, timeout=10)[1]:
                child.kill()


def _await_address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_S
    while not (found := re.search(r" at (http\S+), docs", log.read_text(encoding="utf-8"))):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start: {log.read_text(encoding='utf-8')[-2000:]}")
        time.sleep(0.1)
    return found[1]


@asynccontextmanager
async def slow_clients(url: str, number: int, pause_s: float = 0.5) -> AsyncIterator[Counter[str]]:
    """Run clients that send one byte at a time; gives the counts of their final statuses.

    Args:
        url (`str`): Address of the server.
        number (`int`): Number of clients.
        pause_s (`float`, *optional*, defaults to 0.5): Pause between two bytes.
    """
    answers: Counter[str] = Counter()
    host, port = url.removeprefix("http://").split(":")

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /score HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        )
        writer.write(head.encode())
        answer = asyncio.create_task(reader.readline())
        while not answer.done():
            writer.write(b" ")
            await asyncio.sleep(pause_s)
        answers[(await answer).decode().split(" ")[1]] += 1
        writer.close()

    tasks = [asyncio.create_task(client()) for _ in range(number)]
    try:
        yield answers
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    finally:
        for task in tasks:
            task.cancel()
