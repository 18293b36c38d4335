"""Start Ray on this machine for this user only, or join the cluster that `RAY_ADDRESS` names.

Ray listens at a dozen ports, by default at all addresses of the machine, and who joins can run code.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


# Ray reads it at import. At "0" a node has the address 127.0.0.1 and listens there only.
# It is meant for macOS and Windows, and works on Linux.
_REACHABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# Of a process that has imported PyTorch.
_WORKER_BYTES = 2**29


def joins_cluster() -> bool:
    """Return whether `RAY_ADDRESS` names a running cluster, which has its own rules."""
    return os.environ.get("RAY_ADDRESS", "") not in ("", "local")


def protect_ray() -> None:
    """Let a local Ray listen at 127.0.0.1 and require a token; call it before Ray is imported."""
    if joins_cluster():
        return
    os.environ.setdefault(_REACHABLE, "0")
    os.environ["RAY_AUTH_MODE"] = "token"
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def require_room(
    error: type[Exception],
    num_actors: int,
    what: str,
    *,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    num_bytes: int = 0,
) -> None:
    """Raise `error` for more actors than Ray has CPUs, GPUs or memory for: most would wait or be killed, silently.

    All numbers are of each; `num_bytes` is the size of a model.
    """
    import ray

    found = ray.cluster_resources()
    needs = (
        ("CPU", "CPUs", num_cpus),
        ("GPU", "GPUs", num_gpus),
        ("memory", "bytes of memory", _WORKER_BYTES + num_bytes),
    )
    for kind, name, each in needs:
        has = found.get(kind, math.inf if kind == "memory" else 0.0)
        if count_fitting(kind, has, each) < num_actors and (num_actors > 1 or kind == "GPU"):
            raise error(
                f"{num_actors} {what} with {each:g} {name} each are asked for; Ray has {has:g} {name}: give fewer."
            )


def count_fitting(kind: str, available: float, each: float) -> float:
    """Return the number of actors that fit; a fraction of a GPU is never split over two."""
    # Ray counts to a ten-thousandth.
    if kind == "GPU" and 0 < each < 1:
        return available // 1 * ((1 / each + 1e-6) // 1)
    return available / each + 1e-6 if each else math.inf


@contextmanager
def open_ray(
    error: type[Exception], other_engine: str, num_cpus: int | None = None, show_progress: bool = False
) -> Iterator[None]:
    """Connect to Ray, or start it on this machine for as long as this lasts, with at most the CPUs that it has."""
    if "ray" not in sys.modules:
        protect_ray()
    try:
        import ray
        import ray.data
    except ImportError as cause:
        raise error(
            f"engine 'ray' needs `pip install \"sdiareward[ray]\"`; or use the engine {other_engine!r}."
        ) from cause
    if not show_progress:
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
    is_ours = not ray.is_initialized()
    if is_ours:
        # Without an address Ray would join any cluster that runs on this machine; a cluster has its own CPUs.
        num_cpus = num_cpus and min(num_cpus, os.cpu_count() or 1)
        options: dict[str, Any] = {} if joins_cluster() else {"address": "local", "num_cpus": num_cpus}
        ray.init(**options, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    context = ray.data.DataContext.get_current()
    before, context.enable_progress_bars = context.enable_progress_bars, show_progress
    try:
        yield
    finally:
        context.enable_progress_bars = before
        if is_ours:
            ray.shutdown()
