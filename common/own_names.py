"""Tell the names of a server from names that lead to it from elsewhere.

Every page that is open in a browser can send requests to an address of the machine; by rebinding its own name to that
address it can also read the answers.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit


def list_own_names(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of a server: of the address that it listens at, of this machine, and `more`."""
    names = (host, "localhost", socket.gethostname(), socket.getfqdn(), *more)
    return frozenset(name.lower() for name in names)


def is_own_host(host: str, names: Iterable[str]) -> bool:
    """Return whether the header `Host` is one of the server's names, or an address in numbers."""
    return _is_own(_name_of(f"//{host}"), names)


def is_own_origin(origin: str | None, host: str) -> bool:
    """Return whether the header `Origin`, which is None if there is none, names the host of the request."""
    return origin is None or origin.partition("://")[2].lower() == host.lower()


def _is_own(name: str, names: Iterable[str]) -> bool:
    try:
        # No name can be rebound to an address in numbers.
        ipaddress.ip_address(name)
    except ValueError:
        return name in names
    return True


def _name_of(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
