"""Distinguish the names of a server from names that lead to it from elsewhere.

Any open page can send requests to an address of the machine; by rebinding its own name to it, it also reads answers.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import urlsplit


def list_own_names(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of a server: its address, this machine, and `more`."""
    names = (host, "localhost", socket.gethostname(), socket.getfqdn(), *more)
    return frozenset(name.lower() for name in names)


def is_own_host(host: str, names: Iterable[str]) -> bool:
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
