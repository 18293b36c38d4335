"""Answer only requests that no other site can have caused, where no key protects the server.

Every page that is open in a browser on the machine can send requests to a loopback address; by rebinding its own name
to that address it can also read the answers.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class OwnNames:
    """Middleware of a server without a key: the `Host` is one of its names, the `Origin` none but itself.

    Args:
        app (`ASGIApp`): What answers.
        host (`str`): The address that the server listens at.
    """

    def __init__(self, app: ASGIApp, host: str):
        self._app = app
        self._names = {host.lower(), "localhost", socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it with 403."""
        problem = self._find_problem(Headers(scope=scope)) if scope["type"] == "http" else None
        answer = self._app if problem is None else JSONResponse({"detail": problem}, 403)
        await answer(scope, receive, send)

    def _find_problem(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_own(_name_of(f"//{host}")):
            return f"the host is {host[:80]!r}; use an address of the server, or start it with an API key."
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return f"a page of {origin[:80]!r} may not use a server without an API key."
        return None

    def _is_own(self, name: str) -> bool:
        try:
            # No name can be rebound to an address in numbers.
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True


def _name_of(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
