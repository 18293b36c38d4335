"""This machine: provenance of results, local Ray, host names."""

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
# Ray reads it at import. With "0" a node listens on 127.0.0.1 only.
# It is meant for macOS and Windows but also works on Linux.
_REACHABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# Memory of a process that has imported PyTorch.
_WORKER_BYTES = 2**29


def describe_run() -> dict[str, Any]:
    versions, revision = dict[str, str | None].fromkeys(_DISTRIBUTIONS), None
    for name in versions:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    command = ["git", "-C", str(PACKAGE), "rev-parse", "--show-toplevel", "HEAD"]
    with suppress(OSError, subprocess.CalledProcessError):
        top, head = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")[:2]
        # An installed package may be inside an unrelated repository.
        revision = head if Path(top).samefile(PACKAGE) else None
    return {
        "versions": versions,
        "python": platform.python_version(),
        "machine": {"processor": platform.machine(), "num_cores": os.cpu_count()},
        "git_revision": revision,
    }


def write_provenance(path: str | Path, **sections: Any) -> None:
    """Write `describe_run` and further sections as JSON, atomically; dataclasses become objects."""

    def convert(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        return dict(value) if isinstance(value, Mapping) else str(value)

    record = describe_run() | sections
    write_file(Path(path), json.dumps(record, indent=2, ensure_ascii=False, default=convert) + "\n")


def joins_cluster() -> bool:
    """Return whether `RAY_ADDRESS` names a running cluster, which sets its own access rules."""
    return os.environ.get("RAY_ADDRESS", "") not in ("", "local")


def protect_ray() -> None:
    """Make a local Ray listen on 127.0.0.1 and require a token; call this before Ray is imported.

    By default Ray listens on a dozen ports of all network interfaces, and anyone who connects can run code.
    """
    if joins_cluster():
        return
    os.environ.setdefault(_REACHABLE, "0")
    os.environ["RAY_AUTH_MODE"] = "token"
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextmanager
def open_ray(num_cpus: int | None = None) -> Iterator[None]:
    """Connect to Ray, or start a local one until the block ends, with at most the CPUs of this machine."""
    if "ray" not in sys.modules:
        protect_ray()
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
    is_ours = not ray.is_initialized()
    if is_ours:
        # Without an address, Ray would join any cluster on this machine. A cluster sets its own number of CPUs.
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
    """Raise `UserError` if Ray lacks CPUs, GPUs or memory for the actors: they would wait or be killed silently.

    All numbers are per actor; `num_bytes` is the size of the model.
    """
    import ray

    found = ray.cluster_resources()
    memory = _WORKER_BYTES + num_bytes
    needs = (("CPU", "CPUs", num_cpus), ("GPU", "GPUs", num_gpus), ("memory", "bytes of memory", memory))
    for kind, name, each in needs:
        has = found.get(kind, math.inf if kind == "memory" else 0.0)
        if count_fitting(kind, has, each) < num_actors and (num_actors > 1 or kind == "GPU"):
            asked = f"{num_actors} {what} need {each:g} {name} each"
            raise UserError(f"{asked}; Ray has {has:g} {name}: use fewer.")


def count_fitting(kind: str, available: float, each: float) -> float:
    """Return the number of actors that fit; a fraction of a GPU is never split over two GPUs."""
    # Ray counts in ten-thousandths.
    if kind == "GPU" and 0 < each < 1:
        return available // 1 * ((1 / each + 1e-6) // 1)
    return available / each + 1e-6 if each else math.inf


def list_own_names(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the host names of a server: its address, this machine, and `more`."""
    names = (host, "localhost", socket.gethostname(), socket.getfqdn(), *more)
    return frozenset(name.lower() for name in names)


def is_own_host(host: str, names: Iterable[str]) -> bool:
    """Return whether the `Host` header is one of our names or an IP address.

    Any open web page can send requests to this machine; with DNS rebinding it can also read the answers.
    """
    name = ""
    with suppress(ValueError):
        name = (urlsplit(f"//{host}").hostname or "").lower()
        # An IP address cannot be rebound.
        ipaddress.ip_address(name)
        return True
    return name in names


def is_own_origin(origin: str | None, host: str) -> bool:
    """Return whether the `Origin` header, None if absent, names the host of the request."""
    return origin is None or origin.partition("://")[2].lower() == host.lower()
