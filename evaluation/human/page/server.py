"""Serve a study to raters, and save every answer at once.

Only the page, its two files and the recordings that the study names have routes, so neither the key of the study nor
the answers of other raters can be reached. Without an access key the page is for this machine only. With one it may
listen at other addresses; the key is part of the address that raters get, and a cookie after that.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException

from sdiareward.common.own_names import is_own_host, is_own_origin, list_own_names
from sdiareward.common.package_files import HUMAN_PAGE

from .sessions import Raters, RatingSession


HOST = "127.0.0.1"
SHORTEST_KEY = 16
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; media-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_MAX_BODY_BYTES = 4096


class RatingServer:
    """Serve a study until `shutdown`; `page` is its address, or that of the proxy `public_url`; `url` adds the key."""

    def __init__(
        self,
        raters: Raters,
        port: int = 0,
        *,
        host: str = HOST,
        key: str | None = None,
        public_url: str | None = None,
    ):
        if key is None and host not in (HOST, "localhost"):
            raise ValueError(f"the page at {host} needs a key: without one it is for this machine only.")
        letters = (key or "").replace("-", "").replace("_", "")
        if key is not None and (len(key) < SHORTEST_KEY or not (letters.isascii() and letters.isalnum())):
            raise ValueError(
                f"the key has {len(key)} characters; use at least {SHORTEST_KEY} letters, digits, '-' and '_'."
            )
        self.raters, self.key = raters, key
        self._socket = socket.create_server((host, port), backlog=64)
        self.server_port = self._socket.getsockname()[1]
        public_name = urlsplit(public_url or "").hostname
        self._names = list_own_names(host, [public_name] if public_name else [])
        # Nobody can ask for "all addresses of this machine".
        shown = socket.gethostname() if host == "0.0.0.0" else host  # noqa: S104
        self.page = (public_url or f"http://{shown}:{self.server_port}").rstrip("/") + "/"
        self.url = self.page if key is None else f"{self.page}?key={key}"
        # Cookies are shared by all ports of a host.
        self._cookie = f"sdiareward-{self.server_port}"
        # The page itself shows what is saved and what fails.
        config = uvicorn.Config(
            _make_app(self), lifespan="off", log_level="error", access_log=False, timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)

    def serve_forever(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def shutdown(self) -> None:
        self._server.should_exit = True

    def is_key(self, sent: str | None) -> bool:
        """Compare a key in constant time."""
        return self.key is not None and hmac.compare_digest((sent or "").encode(), self.key.encode())

    def let_in(self, sent: str) -> Response:
        """Keep the key in a cookie, and redirect to an address without it, which may be seen and kept."""
        if not self.is_key(sent):
            raise HTTPException(401, "the key is wrong; open the address that you were given.")
        response = RedirectResponse("/", 303)
        # Lax: a link in a message leads here, and no other site can send anything but such links.
        response.set_cookie(self._cookie, sent, httponly=True, samesite="lax")
        return response

    def find_problem(self, request: Request) -> tuple[int, str] | None:
        """Return the status and the reason of a request that is refused before it is read."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self.key is None:
            own = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
            is_own = host in own and (origin is None or origin.removeprefix("http://") in own)
        else:
            is_own = is_own_host(host, self._names) and is_own_origin(origin, host)
        if not is_own:
            return 403, "this page is for its own machine only, or for those who have its key."
        if request.method == "POST":
            length = request.headers.get("content-length", "")
            if not length.isdecimal() or len(length) > 9 or int(length) > _MAX_BODY_BYTES:
                return 413, f"an answer has 1 to {_MAX_BODY_BYTES} bytes."
            # A page of another site can send forms, but not this type.
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                return 403, "answers come as JSON from the page of this machine."
        is_letting_in = request.method == "GET" and request.url.path == "/" and "key" in request.query_params
        if self.key is None or is_letting_in or self.is_key(request.cookies.get(self._cookie)):
            return None
        return 401, "open the address with the key that you were given."


def _make_app(server: RatingServer) -> FastAPI:
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    raters = server.raters

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        problem = server.find_problem(request)
        response = await call_next(request) if problem is None else _fail(*problem)
        response.headers.update(_HEADERS)
        return response

    for kind, status in ((PermissionError, 403), (ValueError, 400), (RequestValidationError, 400)):
        app.add_exception_handler(kind, lambda _, error, status=status: _fail(status, str(error)))
    app.add_exception_handler(OSError, lambda _, error: _fail(507, f"the answer cannot be saved: {error}."))
    app.add_exception_handler(AnyHTTPException, _fail_as_raised)

    @app.get("/")
    def open_page(key: str | None = None) -> Response:
        return FileResponse(HUMAN_PAGE / "page.html") if key is None or server.key is None else server.let_in(key)

    @app.get("/page.{kind}")
    def read_page_file(kind: str) -> Response:
        if kind not in ("css", "js"):
            raise HTTPException(404, "not found.")
        return FileResponse(HUMAN_PAGE / f"page.{kind}")

    @app.get("/audio/{name}")
    def read_audio(name: str) -> Response:
        if name not in raters.audio:
            raise HTTPException(404, "not found.")
        if not raters.audio[name].is_file():
            raise HTTPException(404, "this recording is missing from the folder of the study.")
        return FileResponse(raters.audio[name], media_type="audio/wav")

    @app.get("/api/welcome")
    def read_welcome() -> dict[str, Any]:
        return raters.make_welcome()

    @app.get("/api/study")
    def read_study(rater: str | None = None) -> dict[str, Any]:
        return _require_consent(raters, rater).read_state()

    @app.post("/api/consent")
    def take_consent(given: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        if given.get("agrees") is not True:
            raise ValueError("only who agrees takes part.")
        session = raters.find(given.get("rater"))
        session.consent()
        return {"rater": session.rater}

    @app.post("/api/answers")
    def take_answer(given: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        return {"num_answered": _require_consent(raters, given.get("rater")).answer(given)}

    return app


def _require_consent(raters: Raters, rater: Any) -> RatingSession:
    """Return the session of a rater who has agreed to take part."""
    session = raters.find(rater)
    if not session.has_consented:
        raise PermissionError("agree to take part first; reload the page.")
    return session


def _fail_as_raised(_: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHTTPException)
    response = _fail(error.status_code, error.detail)
    response.headers.update(error.headers or {})
    return response


def _fail(status: int, reason: str) -> JSONResponse:
    return JSONResponse({"error": reason}, status)
