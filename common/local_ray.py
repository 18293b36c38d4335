"""Start Ray on this machine so that nobody else can use it, or join the cluster that `RAY_ADDRESS` names.

Ray's processes listen at a dozen ports, by default at all addresses of the machine, and who joins them can run code.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


# Ray reads it when it is imported. Without it a node has the address 127.0.0.1, where its processes listen alone.
# Ray means it for macOS and Windows; it does the same on Linux.
_REACHABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def joins_cluster() -> bool:
    """Return whether `RAY_ADDRESS` names a cluster that runs already; such a cluster has its own rules."""
    return os.environ.get("RAY_ADDRESS", "") not in ("", "local")


def protect_ray() -> None:
    """Let a Ray that this process starts listen at 127.0.0.1, and answer only those who know a token.

    Call it before Ray is imported, which reads the environment. The token is drawn anew unless the user gives one.
    """
    if joins_cluster():
        return
    os.environ.setdefault(_REACHABLE, "0")
    os.environ["RAY_AUTH_MODE"] = "token"
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextmanager
def open_ray(
    error: type[Exception], other_engine: str, num_cpus: int | None = None, show_progress: bool = False
) -> Iterator[None]:
    """Connect to Ray, or start it on this machine for as long as this lasts."""
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
