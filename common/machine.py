"""This machine: what a result records of it, its Ray, its names on the network."""

from __future__ import annotations

import ipaddress
import json
import logging
import math
import os
import platform
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import UserError
from .files import write_file
from .package import PACKAGE


_DISTRIBUTIONS = ("sdiareward", "torch", "transformers", "trl", "datasets", "numpy", "scikit-learn")
# Ray reads it at import. At "0" a node has the address 127.0.0.1 and listens there only.
# It is meant for macOS and Windows, and works on Linux.
_REACHABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# Of a process that has imported PyTorch.
_WORKER_BYTES = 2**29


def describe_run() -> dict[str, Any]:
    versions, revision = dict[str, str | None].fromkeys(_DISTRIBUTIONS), None
    for name in versions:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    command = ["git", "-C", str(PACKAGE), "rev-parse", "--show-toplevel", "HEAD"]
    with suppress(OSError, subprocess.CalledProcessError):
        top, head = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")[:2]
        # An installed package may be inside another repository.
        revision = head if Path(top).samefile(PACKAGE) else None
    return {
        "versions": versions,
        "python": platform.python_version(),
        "machine": {"processor": platform.machine(), "num_cores": os.cpu_count()},
        "git_revision": revision,
    }


def write_provenance(path: str | Path, **sections: Any) -> None:
    """Write `describe_run` and further sections as JSON, atomically; dataclasses field by field."""

    def convert(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        return dict(value) if isinstance(value, Mapping) else str(value)

    record = describe_run() | sections
    write_file(Path(path), json.dumps(record, indent=2, ensure_ascii=False, default=convert) + "\n")


def joins_cluster() -> bool:
    """Return whether `RAY_ADDRESS` names a running cluster, which has its own rules."""
    return os.environ.get("RAY_ADDRESS", "") not in ("", "local")


def protect_ray() -> None:
    """Let a local Ray listen at 127.0.0.1 and require a token; call it before Ray is imported.

    Ray listens at a dozen ports, by default at all addresses of the machine, and who joins can run code.
    """
    if joins_cluster():
        return
    os.environ.setdefault(_REACHABLE, "0")
    os.environ["RAY_AUTH_MODE"] = "token"
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextmanager
def open_ray(num_cpus: int | None = None) -> Iterator[None]:
    """Connect to Ray, or start it on this machine for as long as this lasts, with at most the CPUs that it has."""
    if "ray" not in sys.modules:
        protect_ray()
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
    is_ours = not ray.is_initialized()
    if is_ours:
        # Without an address Ray would join any cluster that runs on this machine; a cluster has its own CPUs.
        num_cpus = num_cpus and min(num_cpus, os.cpu_count() or 1)
        options: dict[str, Any] = {} if joins_cluster() else {"address": "local", "num_cpus": num_cpus}
        ray.init(**options, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    context = ray.data.DataContext.get_current()
    before, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        yield
    finally:
        context.enable_progress_bars = before
        if is_ours:
            ray.shutdown()


def require_room(
    num_actors: int, what: str, *, num_cpus: float = 1.0, num_gpus: float = 0.0, num_bytes: int = 0
) -> None:
    """Raise `UserError` for more actors than Ray has CPUs, GPUs or memory for: most would wait or be killed, silently.

    All numbers are of each; `num_bytes` is the size of a model.
    """
    import ray

    found = ray.cluster_resources()
    memory = _WORKER_BYTES + num_bytes
    needs = (("CPU", "CPUs", num_cpus), ("GPU", "GPUs", num_gpus), ("memory", "bytes of memory", memory))
    for kind, name, each in needs:
        has = found.get(kind, math.inf if kind == "memory" else 0.0)
        if count_fitting(kind, has, each) < num_actors and (num_actors > 1 or kind == "GPU"):
            asked = f"{num_actors} {what} with {each:g} {name} each are asked for"
            raise UserError(f"{asked}; Ray has {has:g} {name}: give fewer.")


def count_fitting(kind: str, available: float, each: float) -> float:
    """Return the number of actors that fit; a fraction of a GPU is never split over two."""
    # Ray counts to a ten-thousandth.
    if kind == "GPU" and 0 < each < 1:
        return available // 1 * ((1 / each + 1e-6) // 1)
    return available / each + 1e-6 if each else math.inf


def list_own_names(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of a server: its address, this machine, and `more`."""
    names = (host, "localhost", socket.gethostname(), socket.getfqdn(), *more)
    return frozenset(name.lower() for name in names)


def is_own_host(host: str, names: Iterable[str]) -> bool:
    """Return whether the header `Host` is an own name or an address.

    Any open page can send requests to an address of the machine; by rebinding its own name to it, it also reads
    answers.
    """
    name = ""
    with suppress(ValueError):
        name = (urlsplit(f"//{host}").hostname or "").lower()
        # No name can be rebound to an address in numbers.
        ipaddress.ip_address(name)
        return True
    return name in names


def is_own_origin(origin: str | None, host: str) -> bool:
    """Return whether the header `Origin`, or None without one, names the host of the request."""
    return origin is None or origin.partition("://")[2].lower() == host.lower()
