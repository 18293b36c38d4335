"""Load on a local server: speed by batch size, ten minutes at saturation, and faults under load.

    python -m benchmarks.serving_load                                              # about half an hour
    python -m benchmarks.serving_load --dialogues 64 --requests 24 --saturation_s 20 --fault_s 6    # a quick look

The nano checkpoint scores dialogues of two turns of real speech with one thread in the model; `--concurrency` clients
send requests (`serving_clients`). Only loopback is used, and every part is bounded in time or number. The clients are
our own and not locust's, because every answer is compared with its known reward, and the faults need control of the
server.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import aiohttp
import numpy as np
from tqdm.auto import tqdm

from benchmarks import racing
from benchmarks.serving_clients import Clients, KnownDialogues, ServerProcess, Tally, running_server, slow_clients
from sdiareward.common.arguments import parse_arguments


RESULT = racing.RESULTS / "serving_load.json"
BATCH_SIZES = (1, 2, 4, 8, 16)
_WARM_UP_REQUESTS = 8
_MAX_SAMPLES = 120
_BODY_TIMEOUT_S = 4
_ACCEPTED_S = 5
# By kind: a body, its content type, and the expected status.
_MALFORMED: dict[str, tuple[bytes, str, int]] = {
    "no JSON": (b"{", "application/json", 422),
    "not UTF-8": (b"\xff\xfe\x00" * 100, "application/json", 422),
    "nested too deep": (b"[" * 100_000, "application/json", 422),
    "a value for every two bytes": (b'{"dialogues": [{"turns": [1' + b",1" * 2**23 + b"]}]}", "application/json", 422),
    "wrong form": (b'{"dialogues": 3}', "application/json", 422),
    "unknown field": (b'{"dialogues": [{"turns": []}], "x": 1}', "application/json", 422),
    "no base64": (
        b'{"dialogues": [{"turns": [{"role": "user", "audio": {"base64": "?"}}]}]}',
        "application/json",
        422,
    ),
    "no audio": (
        b'{"dialogues": [{"turns": [{"role": "user", "audio": {"base64": "AAAA"}}]}]}',
        "application/json",
        422,
    ),
    "multipart without the request": (
        b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--b--\r\n',
        "multipart/form-data; boundary=b",
        422,
    ),
    "another type": (b"hello", "text/plain", 415),
    "too large": (b" " * (33 * 2**20), "application/json", 413),
}


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.serving_load", description=__doc__)
    known = KnownDialogues(args.dialogues, args.seed)
    settings = {name: getattr(args, name) for name in ("dialogues", "requests", "concurrency", "seed", "turns")}
    parts: dict[str, Any] = {"settings": settings, "cpu": racing.describe_cpu(), "batch_sizes": []}
    for size in tqdm(args.batch_sizes, "batch sizes"):
        with running_server(max_batch_size=size) as server:
            parts["batch_sizes"].append(asyncio.run(measure_speed(server, known, size, args)))
        racing.write_result(args.output, **parts)
    with running_server() as server:
        parts["saturation"] = asyncio.run(saturate(server, known, args))
    racing.write_result(args.output, **parts)
    with running_server(body_timeout_s=_BODY_TIMEOUT_S) as server:
        parts["faults"] = asyncio.run(measure_faults(server, known, args))
        parts["faults"]["drain"]["exit_status"] = server.process.wait(100)
    racing.write_result(args.output, **parts)


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    batch_sizes: list[int] = field(
        default_factory=lambda: list(BATCH_SIZES), metadata={"help": "batch sizes of the server"}
    )
    dialogues: int = field(default=4096, metadata={"help": "distinct dialogues; fewer come from the model's cache"})
    requests: int = field(default=600, metadata={"help": "requests for each batch size"})
    concurrency: int = field(default=32, metadata={"help": "clients at once"})
    saturation_s: float = field(default=600.0, metadata={"help": "seconds under saturation"})
    fault_s: float = field(default=30.0, metadata={"help": "seconds of each fault"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})
    turns: ClassVar[int] = 2


async def measure_speed(server: ServerProcess, known: KnownDialogues, size: int, args: Arguments) -> dict[str, Any]:
    """Return times of one client alone, and speed and times of many at once."""
    clients = Clients(server.url, known)
    await clients.drive(1, num_requests=_WARM_UP_REQUESTS)
    alone = await clients.drive(1, num_requests=max(args.requests // 6, 1))
    before = await _batches(server)
    many = await clients.drive(args.concurrency, num_requests=args.requests)
    after = await _batches(server)
    together = [later - earlier for later, earlier in zip(after, before, strict=True)]
    return {
        "max_batch_size": size,
        "alone": alone.summary(),
        "many": many.summary(),
        "mean_batch_requests": together[0] / together[1],
    }


async def _batches(server: ServerProcess) -> tuple[float, float]:
    """Return the sum and the count of batch sizes, one entry per request."""
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics") as answer:
        text = await answer.text()
    return (
        server.metric(text, "sdiareward_batch_requests_sum"),
        server.metric(text, "sdiareward_batch_requests_count"),
    )


async def saturate(server: ServerProcess, known: KnownDialogues, args: Arguments) -> dict[str, Any]:
    """Return what many clients got in a long time, and the memory of the server meanwhile."""
    clients = Clients(server.url, known)
    await clients.drive(args.concurrency, num_requests=4 * args.concurrency)
    samples: list[dict[str, float]] = []
    start = time.monotonic()

    async def watch() -> None:
        while True:
            samples.append({"s": time.monotonic() - start, **server.memory_mib()})
            await asyncio.sleep(max(args.saturation_s / _MAX_SAMPLES, 0.5))

    watching = asyncio.create_task(watch())
    tally = await clients.drive(args.concurrency, seconds=args.saturation_s)
    watching.cancel()
    return {"seconds": args.saturation_s, **tally.summary(), **summarise_memory(samples)}


def summarise_memory(samples: list[dict[str, float]]) -> dict[str, Any]:
    """Return the memory by role: its median in each third of the time, and its slope in the last, with full caches.

    Args:
        samples (`list[dict]`): Seconds `s` and MiB by role.
    """
    thirds = [list(third) for third in np.array_split(np.arange(len(samples)), 3)]
    minutes = [samples[index]["s"] / 60 for index in thirds[-1]]
    memory = {}
    for role in sorted({name for sample in samples for name in sample} - {"s"}):
        values = [[samples[index].get(role, 0.0) for index in third] for third in thirds]
        memory[role] = {
            "thirds_mib": [median(third) if third else 0.0 for third in values],
            "mib_per_minute": float(np.polyfit(minutes, values[-1], 1)[0]) if len(minutes) > 1 else 0.0,
        }
    return {"memory": memory, "samples": [{name: round(value, 1) for name, value in each.items()} for each in samples]}


async def measure_faults(server: ServerProcess, known: KnownDialogues, args: Arguments) -> dict[str, Any]:
    """Return what clients got while something went wrong; the last thing ends the server."""
    clients = Clients(server.url, known)
    await clients.drive(args.concurrency, num_requests=2 * args.concurrency)
    found: dict[str, Any] = {"undisturbed": (await clients.drive(args.concurrency, seconds=args.fault_s)).summary()}
    async with slow_clients(server.url, 2 * args.concurrency) as answers:
        tally = await clients.drive(args.concurrency, seconds=args.fault_s)
    found["slow_clients"] = {"number": 2 * args.concurrency, "answers": dict(answers), **tally.summary()}
    load = asyncio.create_task(clients.drive(args.concurrency, seconds=args.fault_s))
    statuses = await _send_malformed(server.url, args.fault_s)
    found["malformed"] = {"statuses": statuses, **(await load).summary()}
    load = asyncio.create_task(clients.drive(args.concurrency, seconds=args.fault_s))
    await asyncio.sleep(args.fault_s / 3)
    server.kill_replica()
    tally = await load
    found["killed_replica"] = {"longest_gap_s": tally.longest_gap_s(), **tally.summary()}
    found["drain"] = await _drain(server, clients, args)
    return found


async def _send_malformed(url: str, seconds: float) -> dict[str, dict[str, Any]]:
    """Return by kind of malformed body the expected status and the counts of the received ones."""
    found: dict[str, dict[str, Any]] = {
        name: {"wanted": wanted, "got": {}} for name, (*_, wanted) in _MALFORMED.items()
    }
    end = time.monotonic() + seconds
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < end:
            for name, (body, kind, _) in _MALFORMED.items():
                try:
                    async with session.post(f"{url}/score", data=body, headers={"Content-Type": kind}) as answer:
                        status = str(answer.status)
                except (aiohttp.ClientError, OSError):
                    # Refused by its size before the whole body was sent.
                    status = "closed"
                got = found[name]["got"]
                got[status] = got.get(status, 0) + 1
    return found


async def _drain(server: ServerProcess, clients: Clients, args: Arguments) -> dict[str, Any]:
    """End the server under load; what it had taken must be answered."""
    tally = Tally()
    waiting = asyncio.create_task(clients.drive(args.concurrency, num_requests=args.concurrency, tally=tally))
    found = await _await_accepted(server, tally, args.concurrency)
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    await waiting
    return {**found, **count_drain(tally), "seconds": time.monotonic() - start}


def count_drain(tally: Tally) -> dict[str, int]:
    """Count the requests to a server that was ended.

    Args:
        tally ([`Tally`]): Results of the clients; a request that could not connect was refused, not lost.
    """
    refused = tally.lost[aiohttp.ClientConnectorError.__name__]
    lost = sum(tally.lost.values()) - refused
    return {"answered": len(tally.seconds), "refused": refused, "lost": lost, "mismatched": tally.mismatched}


async def _await_accepted(server: ServerProcess, tally: Tally, number: int) -> dict[str, int]:
    """Wait until the server has accepted `number` requests; return how many are in flight and answered."""
    deadline = time.monotonic() + _ACCEPTED_S
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{server.url}/metrics") as answer:
                # Without this request.
                under_way = int(server.metric(await answer.text(), "sdiareward_requests_in_flight")) - 1
            if under_way + len(tally.seconds) >= number or time.monotonic() > deadline:
                return {"clients": number, "under_way": under_way, "answered_before": len(tally.seconds)}
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    main()
