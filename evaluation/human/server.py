"""Serve a study to raters, and save every answer at once.

Only the page, its files and the recordings have routes, so raters cannot reach the study's key or other raters'
answers. Without an access key, only this machine can open the page. With a key, the server may listen on other
addresses; the key is in the link that raters get, then in a cookie.
"""

from __future__ import annotations

import hmac
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel

from sdiareward.common.machine import is_own_host, is_own_origin, list_own_names
from sdiareward.common.package import HUMAN_PAGE

from .study import AUDIO_FOLDER, HEARD, TIE, Study


HOST = "127.0.0.1"
LOCAL_HOSTS = (HOST, "localhost")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; media-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Cache-Control": "no-store", "Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
_HEADERS |= {"Referrer-Policy": "no-referrer"}
_MAX_BODY_BYTES = 4096


class Consent(BaseModel):
    agrees: Literal[True]
    rater: str = ""


class Answer(BaseModel):
    """A choice for an item; `heard` lists the parts that were played."""

    item: str
    choice: Literal["a", "b", "tie"]
    heard: set[str] = set()
    rater: str = ""


class RatingServer:
    """Serve a study until `shutdown`, to one rater or to anyone who enters a name.

    `page` is the address of the page or of the proxy `public_url`; `url` includes the key; `app` is the application.
    """

    def __init__(
        self,
        folder: str | Path,
        rater: str | None = None,
        port: int = 0,
        *,
        host: str = HOST,
        key: str | None = None,
        public_url: str | None = None,
    ):
        if key is None and host not in LOCAL_HOSTS:
            raise ValueError(f"the page at {host} needs a key; without one it is only for this machine.")
        if key is not None and not re.fullmatch(r"[A-Za-z0-9_-]{16,}", key):
            raise ValueError(f"the key has {len(key)} characters; use at least 16 letters, digits, '-' and '_'.")
        if rater is not None:
            _require_name(rater)
        self.study, self.rater, self.key = Study(folder), rater, key
        self._socket = socket.create_server((host, port), backlog=64)
        self.port = self._socket.getsockname()[1]
        self._names = list_own_names(host, filter(None, [urlsplit(public_url or "").hostname]))
        # 0.0.0.0 is not an address that clients can open.
        shown = socket.gethostname() if host == "0.0.0.0" else host  # noqa: S104
        self.page = (public_url or f"http://{shown}:{self.port}").rstrip("/") + "/"
        self.url = self.page if key is None else f"{self.page}?key={key}"
        # All ports of a host share cookies.
        self._cookie = f"sdiareward-{self.port}"
        self.app = self._make_app()
        # The page shows what is saved and what fails.
        options: dict[str, Any] = {"log_level": "error", "access_log": False, "timeout_graceful_shutdown": 2}
        self._server = uvicorn.Server(uvicorn.Config(self.app, lifespan="off", **options))

    def serve_forever(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def shutdown(self) -> None:
        self._server.should_exit = True

    def _make_app(self) -> FastAPI:
        app, study = FastAPI(openapi_url=None), self.study

        @app.middleware("http")
        async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
            response = self._answer_first(request) or await call_next(request)
            response.headers.update(_HEADERS)
            return response

        # Handlers are coroutines, so that answers are written one at a time.
        @app.exception_handler(OSError)
        async def report(_: Request, error: Exception) -> Response:
            return JSONResponse({"detail": f"the answer cannot be saved: {error}."}, 507)

        @app.exception_handler(ValueError)
        async def refuse(_: Request, error: Exception) -> Response:
            return JSONResponse({"detail": str(error)}, 400)

        @app.get("/api/study")
        async def read_study(rater: str | None = None) -> dict[str, Any]:
            """Return the data of the page; items only after consent."""
            name = self.rater or rater
            state = {"rater": self.rater, **{each: study.content[each] for each in ("form", "texts", "allow_tie")}}
            if name is None or not self._has_consented(name):
                return state
            answers = {item: answer["choice"] for item, answer in study.answers.get(name, {}).items()}
            return {**state, "rater": name, "items": study.order_items(name), "answers": answers}

        @app.post("/api/consent")
        async def take_consent(given: Consent) -> dict[str, Any]:
            name = self.rater or given.rater
            _require_name(name)
            if not self._has_consented(name):
                study.save(name, texts=study.content["texts"])
            return await read_study(name)

        @app.post("/api/answers")
        async def take_answer(given: Answer) -> dict[str, int]:
            name = self.rater or given.rater
            if not self._has_consented(name):
                raise HTTPException(403, "please agree to take part first: reload the page.")
            is_allowed = given.choice != TIE or study.content["allow_tie"]
            if given.item not in study.items or not is_allowed or not given.heard <= set(HEARD[study.content["form"]]):
                raise HTTPException(400, "the answer does not match an item of this study; reload the page.")
            study.save(name, item=given.item, choice=given.choice, heard=sorted(given.heard))
            return {"num_answered": len(study.answers[name])}

        # Links are not followed: a study folder may be untrusted.
        app.mount("/audio", StaticFiles(directory=study.folder / AUDIO_FOLDER))
        app.mount("/", StaticFiles(directory=HUMAN_PAGE, html=True))
        return app

    def _answer_first(self, request: Request) -> Response | None:
        """Return the response to a request that is refused unread, or that has the key in its address."""
        host, length = request.headers.get("host", ""), request.headers.get("content-length", "")
        if not (is_own_host(host, self._names) and is_own_origin(request.headers.get("origin"), host)):
            return JSONResponse({"detail": "this page is only for its own machine, or for people with its key."}, 403)
        if request.method == "POST" and not (length.isdecimal() and int(length) <= _MAX_BODY_BYTES):
            return JSONResponse({"detail": f"an answer has 1 to {_MAX_BODY_BYTES} bytes."}, 413)
        if self.key is None:
            return None
        is_letting_in = request.url.path == "/" and "key" in request.query_params
        sent = request.query_params["key"] if is_letting_in else request.cookies.get(self._cookie, "")
        if not hmac.compare_digest(sent.encode(), self.key.encode()):
            return JSONResponse({"detail": "please open the full link that you were given."}, 401)
        if not is_letting_in:
            return None
        # Redirect to an address without the key, because addresses are seen and stored.
        response = RedirectResponse("/", 303)
        # Lax: links from messages work, and other sites cannot send anything else.
        response.set_cookie(self._cookie, sent, httponly=True, samesite="lax")
        return response

    def _has_consented(self, rater: str) -> bool:
        """Return whether a rater agreed to the current texts of the study."""
        return rater in self.study.consents and self.study.consents[rater] == self.study.content["texts"]


def _require_name(rater: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", rater):
        raise ValueError(f"the rater's name is {rater!r}; use up to 64 letters, digits, '-' and '_'.")
