"""Serve a study to one rater, on this machine only, and save every answer at once.

The server has the page (three files of this package), `/api/study` (the content of `study.json` in the order of this
rater, with the answers so far), `/audio/NAME` (recordings that `study.json` names) and `POST /api/answers`. No path of
a request is looked up on the disk, so neither the key nor the answers of other raters can be reached.

`http.server` is enough for one rater, and raters need no extra of the package; it lacks ranges, which browsers need.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sdiareward.common.files import JsonLines
from sdiareward.common.package_files import HUMAN_PAGE
from sdiareward.dataset_builder.references import inside

from ..agreement import CHOICES, TIE
from ..files import read_study
from ..study import ANSWERS_FOLDER, AUDIO_FOLDER, SCORES_FORM


HOST = "127.0.0.1"
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
_RATER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")


class RatingSession:
    """A study as one rater sees it, with the answers so far.

    Args:
        folder (`str` or `Path`): The folder of the study; `key.json` is not read and may be missing.
        rater (`str`): Name of the rater: letters, digits, `-` and `_`.

    Raises:
        FileNotFoundError: The folder holds no study.
        ValueError: The name cannot be a file name, an earlier answer cannot be read, or the study, which may be
            foreign, names a recording outside of its folder.
    """

    def __init__(self, folder: str | Path, rater: str):
        if not _RATER.fullmatch(rater):
            raise ValueError(f"the name of the rater is {rater!r}; use up to 64 letters, digits, '-' and '_'.")
        self.folder, self.rater = Path(folder), rater
        self.study = read_study(self.folder)
        # Each rater has another order, the same after a restart.
        random.Random(f"{self.study['study']}/{rater}").shuffle(self.study["items"])
        self.items = {item["item"] for item in self.study["items"]}
        self.audio = {
            turn["audio"]: inside(self.folder / AUDIO_FOLDER, turn["audio"])
            for item in self.study["items"]
            for part in ("context", "a", "b")
            for turn in item[part]
            if turn["audio"]
        }
        # The recordings to play: both dialogues, or the scored one.
        self.parts = ("context",) if self.study.get("form") == SCORES_FORM else ("a", "b")
        self.choices = tuple(choice for choice in CHOICES if choice != TIE or self.study["allow_tie"])
        self._path = self.folder / ANSWERS_FOLDER / f"{rater}.jsonl"
        # Also removes an incomplete last line of a killed server.
        self.answers = {record["item"]: record["choice"] for record in JsonLines(self._path).read()}
        self._lock = threading.Lock()

    def read_state(self) -> dict[str, Any]:
        """Return the study as the page needs it, with the answers so far."""
        return {**self.study, "rater": self.rater, "answers": self.answers}

    def answer(self, given: Any) -> int:
        """Save an answer to the disk.

        Args:
            given (`dict`): `item`, `choice`, and `heard`: which of `"a"` and `"b"` the rater played, or
                `"context"` where scores of one dialogue are compared.

        Returns:
            `int`: The number of answered items.

        Raises:
            ValueError: It is no answer to this study.
        """
        if not isinstance(given, Mapping) or str(given.get("item")) not in self.items:
            raise ValueError("the answer names no item of this study; reload the page.")
        if given.get("choice") not in self.choices:
            raise ValueError(f"the choice is {given.get('choice')!r}; it must be one of {', '.join(self.choices)}.")
        heard = given.get("heard", [])
        if not isinstance(heard, list) or not set(map(str, heard)) <= set(self.parts):
            raise ValueError(f"heard is {heard!r}; it must be a list of {' and '.join(map(repr, self.parts))}.")
        at = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"item": str(given["item"]), "choice": given["choice"], "heard": sorted(set(heard)), "at": at}
        with self._lock:
            self._append(json.dumps(record) + "\n")
            self.answers[record["item"]] = record["choice"]
            return len(self.answers)

    def _append(self, line: str) -> None:
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


class RatingServer(ThreadingHTTPServer):
    """Serve a session on this machine; stop it with `shutdown`.

    Args:
        session ([`RatingSession`]): The study and the rater.
        port (`int`, *optional*, defaults to 0): Port; 0 takes a free one.

    Attributes:
        url (`str`): Address of the page.

    Raises:
        OSError: The port is taken.
    """

    daemon_threads = True

    def __init__(self, session: RatingSession, port: int = 0):
        self.session = session
        super().__init__((HOST, port), _Handler)
        self.url = f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    """Answer one request."""

    server: RatingServer
    protocol_version = "HTTP/1.1"
    # A silent connection must not hold its thread forever.
    timeout = 60

    def do_GET(self) -> None:  # noqa: N802 (the name that http.server requires)
        path = self.path.partition("?")[0]
        session = self.server.session
        if not self._is_local():
            self._fail(HTTPStatus.FORBIDDEN, "this page is for its own machine only.")
        elif path in _PAGE_FILES:
            name, content_type = _PAGE_FILES[path]
            self._send(HTTPStatus.OK, (HUMAN_PAGE / name).read_bytes(), content_type)
        elif path == "/api/study":
            self._send_json(HTTPStatus.OK, session.read_state())
        elif path.startswith("/audio/") and path.removeprefix("/audio/") in session.audio:
            self._send_audio(session.audio[path.removeprefix("/audio/")])
        else:
            self._fail(HTTPStatus.NOT_FOUND, "not found.")

    def do_POST(self) -> None:  # noqa: N802 (the name that http.server requires)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > _MAX_BODY_BYTES:
            # The unread body cannot be told from the next request.
            self.close_connection = True
            self._fail(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an answer has 1 to {_MAX_BODY_BYTES} bytes.")
            return
        body = self.rfile.read(int(length))
        # A page of another site can send forms, but not this type.
        if not self._is_local() or self.headers.get_content_type() != "application/json":
            self._fail(HTTPStatus.FORBIDDEN, "answers come as JSON from the page of this machine.")
        elif self.path != "/api/answers":
            self._fail(HTTPStatus.NOT_FOUND, "not found.")
        else:
            self._take_answer(body)

    def _take_answer(self, body: bytes) -> None:
        try:
            num_answered = self.server.session.answer(json.loads(body))
        except (ValueError, RecursionError) as error:
            self._fail(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            self._fail(HTTPStatus.INSUFFICIENT_STORAGE, f"the answer cannot be saved: {error}.")
        else:
            self._send_json(HTTPStatus.OK, {"num_answered": num_answered})

    def _is_local(self) -> bool:
        """Tell whether the host of the request is this machine, and its origin no other site."""
        own = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in own and (origin is None or origin.removeprefix("http://") in own)

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
