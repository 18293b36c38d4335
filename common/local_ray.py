"""Start Ray on this machine so that nobody else can use it.

Ray's processes listen at a dozen ports, by default at all addresses of the machine, and who joins them can run code.
"""

from __future__ import annotations

import os
import secrets


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
