"""Serve a study to raters, and save every answer at once.

No path of a request is looked up on the disk, so neither the study's key nor the answers of other raters can be
reached. Without an access key the page is for this machine only. With one it may listen at other addresses; the key is
part of the address that raters get, and a cookie after that. `http.server` is enough for raters, who need no extra of
the package; it lacks ranges, which browsers need.
"""

from __future__ import annotations

import hmac
import json
import re
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sdiareward.common.own_names import is_own_host, is_own_origin, list_own_names
from sdiareward.common.package_files import HUMAN_PAGE

from .sessions import Raters, RatingSession


HOST = "127.0.0.1"
SHORTEST_KEY = 16
_PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; media-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_MAX_BODY_BYTES = 4096
_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")
_KEY = re.compile(r"[A-Za-z0-9_-]+")


class RatingServer(ThreadingHTTPServer):
    """Serve a study until `shutdown`; `page` is its address, or that of the proxy `public_url`; `url` adds the key."""

    daemon_threads = True
    # Several raters, and players that ask for several recordings at once.
    request_queue_size = 64

    def __init__(
        self,
        raters: Raters | RatingSession,
        port: int = 0,
        *,
        host: str = HOST,
        key: str | None = None,
        public_url: str | None = None,
    ):
        if key is None and host not in (HOST, "localhost"):
            raise ValueError(f"the page at {host} needs a key: without one it is for this machine only.")
        if key is not None and (len(key) < SHORTEST_KEY or not _KEY.fullmatch(key)):
            raise ValueError(
                f"the key has {len(key)} characters; use at least {SHORTEST_KEY} letters, digits, '-' and '_'."
            )
        self.raters = _OneRater(raters) if isinstance(raters, RatingSession) else raters
        self.key = key
        super().__init__((host, port), _Handler)
        public_name = urlsplit(public_url or "").hostname
        self.names = list_own_names(host, [public_name] if public_name else [])
        # Nobody can ask for "all addresses of this machine".
        shown = socket.gethostname() if host == "0.0.0.0" else host  # noqa: S104
        self.page = (public_url or f"http://{shown}:{self.server_port}").rstrip("/") + "/"
        self.url = self.page if key is None else f"{self.page}?key={key}"
        # Cookies are shared by all ports of a host.
        self.cookie = f"sdiareward-{self.server_port}"

    def is_local(self, host: str, origin: str | None) -> bool:
        """Return whether a request without a key is from this machine, and not from another site's page."""
        own = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        return host in own and (origin is None or origin.removeprefix("http://") in own)

    def is_key(self, sent: str | None) -> bool:
        """Compare a key in constant time."""
        return self.key is not None and hmac.compare_digest((sent or "").encode(), self.key.encode())


class _OneRater(Raters):
    """The only session, which exists already."""

    def __init__(self, session: RatingSession):
        self._session = session
        self.folder, self.only = session.folder, session.rater
        self.study, self.audio = session.study, session.audio

    def find(self, rater: Any) -> RatingSession:
        return self._session


class _Handler(BaseHTTPRequestHandler):
    server: RatingServer
    protocol_version = "HTTP/1.1"
    # A silent connection must not hold its thread forever.
    timeout = 60

    def do_GET(self) -> None:  # noqa: N802 (the name that http.server requires)
        address = urlsplit(self.path)
        path, raters = address.path, self.server.raters
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        if not self._is_own():
            self._fail(HTTPStatus.FORBIDDEN, "this page is for its own machine only, or for those who have its key.")
        elif self.server.key is not None and path == "/" and "key" in query:
            self._let_in(query["key"])
        elif not self._has_key():
            self._fail(HTTPStatus.UNAUTHORIZED, "open the address with the key that you were given.")
        elif path in _PAGE_FILES:
            name, content_type = _PAGE_FILES[path]
            self._send(HTTPStatus.OK, (HUMAN_PAGE / name).read_bytes(), content_type)
        elif path == "/api/welcome":
            self._send_json(HTTPStatus.OK, raters.make_welcome())
        elif path == "/api/study":
            self._answer(lambda: self._require_consent(query.get("rater")).read_state())
        elif path.startswith("/audio/") and path.removeprefix("/audio/") in raters.audio:
            self._send_audio(raters.audio[path.removeprefix("/audio/")])
        else:
            self._fail(HTTPStatus.NOT_FOUND, "not found.")

    def do_POST(self) -> None:  # noqa: N802 (the name that http.server requires)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > _MAX_BODY_BYTES:
            # The unread body would be read as the next request.
            self.close_connection = True
            self._fail(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an answer has 1 to {_MAX_BODY_BYTES} bytes.")
            return
        body = self.rfile.read(int(length))
        # A page of another site can send forms, but not this type.
        if not self._is_own() or self.headers.get_content_type() != "application/json":
            self._fail(HTTPStatus.FORBIDDEN, "answers come as JSON from the page of this machine.")
        elif not self._has_key():
            self._fail(HTTPStatus.UNAUTHORIZED, "open the address with the key that you were given.")
        elif self.path == "/api/answers":
            self._answer(lambda: self._take_answer(_read_object(body)))
        elif self.path == "/api/consent":
            self._answer(lambda: self._take_consent(_read_object(body)))
        else:
            self._fail(HTTPStatus.NOT_FOUND, "not found.")

    def _take_answer(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"num_answered": self._require_consent(given.get("rater")).answer(given)}

    def _take_consent(self, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("agrees") is not True:
            raise ValueError("only who agrees takes part.")
        session = self.server.raters.find(given.get("rater"))
        session.consent()
        return {"rater": session.rater}

    def _require_consent(self, rater: Any) -> RatingSession:
        """Return the session of a rater who has agreed to take part."""
        session = self.server.raters.find(rater)
        if not session.has_consented:
            raise PermissionError("agree to take part first; reload the page.")
        return session

    def _answer(self, work: Callable[[], dict[str, Any]]) -> None:
        """Send the result of `work` as JSON, or the error."""
        try:
            found = work()
        except PermissionError as error:
            self._fail(HTTPStatus.FORBIDDEN, str(error))
        except (ValueError, RecursionError) as error:
            self._fail(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            self._fail(HTTPStatus.INSUFFICIENT_STORAGE, f"the answer cannot be saved: {error}.")
        else:
            self._send_json(HTTPStatus.OK, found)

    def _is_own(self) -> bool:
        """Return whether the host of the request is the server's, and its origin no other site."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if self.server.key is None:
            return self.server.is_local(host, origin)
        return is_own_host(host, self.server.names) and is_own_origin(origin, host)

    def _has_key(self) -> bool:
        """Return whether the request has the key, or none is needed."""
        if self.server.key is None:
            return True
        try:
            kept = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return False
        return kept is not None and self.server.is_key(kept.value)

    def _let_in(self, key: str) -> None:
        """Keep the key in a cookie, and redirect to an address without it, which may be seen and kept."""
        if not self.server.is_key(key):
            self._fail(HTTPStatus.UNAUTHORIZED, "the key is wrong; open the address that you were given.")
            return
        # Lax: a link in a message leads here, and no other site can send anything but such links.
        cookie = f"{self.server.cookie}={self.server.key}; Path=/; HttpOnly; SameSite=Lax"
        self._send(HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": "/", "Set-Cookie": cookie})

    def _send_audio(self, path: Path) -> None:
        """Send a recording or the requested range of it; some browsers play nothing without ranges."""
        try:
            content = path.read_bytes()
        except OSError:
            self._fail(HTTPStatus.NOT_FOUND, "this recording is missing from the folder of the study.")
            return
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if wanted is None or wanted.groups() == ("", ""):
            self._send(HTTPStatus.OK, content, "audio/wav", {"Accept-Ranges": "bytes"})
            return
        first, last = wanted.groups()
        start = int(first) if first else max(len(content) - int(last), 0)
        end = min(int(last) + 1 if first and last else len(content), len(content))
        if start >= end:
            headers = {"Content-Range": f"bytes */{len(content)}"}
            self._send(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", "audio/wav", headers)
            return
        headers = {"Accept-Ranges": "bytes", "Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
        self._send(HTTPStatus.PARTIAL_CONTENT, content[start:end], "audio/wav", headers)

    def _fail(self, status: HTTPStatus, reason: str) -> None:
        self._send_json(status, {"error": reason})

    def _send_json(self, status: HTTPStatus, content: Any) -> None:
        body = json.dumps(content, ensure_ascii=False).encode()
        self._send(status, body, "application/json; charset=utf-8")

    def _send(
        self, status: HTTPStatus, body: bytes, content_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the page itself shows what is saved and what fails."""


def _read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; another value is an object without fields."""
    found = json.loads(body)
    return found if isinstance(found, dict) else {}
