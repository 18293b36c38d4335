import contextlib
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module

import pytest
from support.paths import ROOT


class Server(ThreadingHTTPServer):
    """A local server that records its requests and can fail.

    `faults` are answers `(status, body)` or pauses in seconds that come before the proper answers, in this order.
    """

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.requests, self.faults = answer, [], []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def _respond(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((f"{self.command} {self.path}", self.headers, body))
        fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, float):
            time.sleep(fault)
            fault = None
        status, answer = fault or self.server.answer(self.path, self.headers, body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        # Asks clients to try again at once.
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        # A client that waited too long is gone.
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(answer)

    do_GET = do_POST = _respond  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    """Return a function that starts a server of an `answer(path, headers, body)`, which returns status and body."""
    servers = []

    def start(answer):
        servers.append(Server(answer))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def separator_inputs(monkeypatch):
    """Put the stand-in for audio-separator on the path; return what its separator is given."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "support" / "packages")
    separator = import_module("audio_separator.separator").Separator
    separator.inputs = []
    yield separator.inputs
    for name in [name for name in sys.modules if name.partition(".")[0] == "audio_separator"]:
        del sys.modules[name]
