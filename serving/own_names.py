"""Answer only requests that no other site can have caused, where no key protects the server."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sdiareward.common.own_names import is_own_host, is_own_origin, list_own_names


class OwnNames:
    """Middleware of a server without a key: `Host` is one of its names, `Origin` is absent or the host itself."""

    def __init__(self, app: ASGIApp, host: str):
        self._app = app
        self._names = list_own_names(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._find_problem(Headers(scope=scope)) if scope["type"] == "http" else None
        answer = self._app if problem is None else JSONResponse({"detail": problem}, 403)
        await answer(scope, receive, send)

    def _find_problem(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_own_host(host, self._names):
            return f"the host is {host[:80]!r}; use an address of the server, or start it with an API key."
        if not is_own_origin(origin, host):
            return f"a page of {str(origin)[:80]!r} may not use a server without an API key."
        return None
