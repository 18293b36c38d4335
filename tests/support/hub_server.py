"""A Hub on this machine that speaks what the unmodified clients ask for over HTTP, and fails as a test says.

Two ports, as there are two hosts: the Hub, and the storage that large files go to and come from by signed addresses,
where no token must arrive.
"""

import re
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from support.hub_api import HUB_ROUTES, STORAGE_ROUTES, Answer, Request, refuse
from support.hub_store import HubError, HubStore


@dataclass
class Fault:
    """What goes wrong with the next requests of a kind: an answer, or a connection that breaks, or one that hangs."""

    request: str
    times: int
    answer: Answer | None = None
    break_after_bytes: int | None = None
    hang_s: float = 0.0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Otherwise each answer waits 40 ms for the acknowledgement of its headers.
    disable_nagle_algorithm = True
    wbufsize = -1

    def _handle(self):
        hub, url = self.server.hub, urlsplit(self.path)
        authorization = self.headers.get("Authorization")
        fault = hub.next_fault(self.command, url.path)
        if fault and fault.break_after_bytes is not None:
            self.rfile.read(min(fault.break_after_bytes, int(self.headers.get("Content-Length", 0))))
            hub.broken.set()
            time.sleep(fault.hang_s)
            self.close_connection = True
            return
        body = self._read_body()
        request = Request(self.command, url.path, parse_qs(url.query), authorization, dict(self.headers), body)
        hub.requests.append(request)
        answer = fault.answer if fault else hub.answer(request, self.server.is_storage)
        self.send_response(answer.status)
        for name, value in {"Content-Length": len(answer.body), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.wfile.flush()

    do_GET = do_HEAD = do_POST = do_PUT = _handle  # noqa: N815

    def _read_body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def log_message(self, *_):
        pass


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub, is_storage):
        self.hub, self.is_storage = hub, is_storage
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Say nothing of clients that are gone: some tests kill them."""


class HubServer:
    """A running Hub; `store` is what it keeps.

    `fail` and `break_off` take the beginning of `"METHOD /path"` as a regular expression.
    """

    def __init__(self):
        self.store = HubStore()
        self.requests = []
        self.broken = threading.Event()
        # Larger files are sent in parts of this size; the Hub's own are 16 MB and more.
        self.part_bytes = 2**24
        self.page_entries = 1000
        self._faults = []
        self._servers = [_Http(self, is_storage) for is_storage in (False, True)]
        self.url, self.storage_url = (server.url for server in self._servers)

    def __enter__(self):
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def fail(self, request, status, times=1, message="as the test says", code=None, **headers):
        # Retry-After: the clients wait a second then, not 1, 2, 4, 8 and 8.
        answer = refuse(HubError(status, message, code), {"Retry-After": "0", **headers})
        self._faults.append(Fault(request, times, answer))

    def break_off(self, request, after_bytes, times=1, hang_s=0.0):
        self.broken.clear()
        self._faults.append(Fault(request, times, break_after_bytes=after_bytes, hang_s=hang_s))

    def heal(self):
        self._faults.clear()

    def next_fault(self, method, path):
        with self.store.lock:
            for fault in self._faults:
                if fault.times and re.match(fault.request, f"{method} {path}"):
                    fault.times -= 1
                    return fault
        return None

    def sent(self, method, pattern):
        """Return the requests of a kind that came in."""
        return [request for request in self.requests if request.method == method and re.search(pattern, request.path)]

    def answer(self, request, is_storage):
        try:
            for methods, pattern, function in STORAGE_ROUTES if is_storage else HUB_ROUTES:
                match = re.fullmatch(pattern, request.path)
                if match and request.method in methods:
                    request.groups = match.groupdict()
                    with self.store.lock:
                        return function(self, request)
            raise HubError(404, f"no such page: {request.method} {request.path}")
        except HubError as error:
            return refuse(error)

    def open(self, request, need="info"):
        account = self.store.account(request.authorization)
        return self.store.open(account, request.kind, request.groups["id"], need)
