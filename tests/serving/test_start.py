"""How a server begins: limits on slow requests, signals, a model that cannot be loaded."""

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

import pytest
from support import forked


pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")

from fastapi import FastAPI

from sdiareward.cli import main
from sdiareward.scoring.model_spec import ModelSpec
from sdiareward.serving import service
from sdiareward.serving.app import Metrics, _add_gate
from sdiareward.serving.settings import ApiKey, ServiceSettings


SETTINGS = ServiceSettings(model=ModelSpec("nowhere"), port=0, api_key=ApiKey("0123456789abcdef"))


def test_a_signal_that_comes_before_the_first_request_ends_the_server(monkeypatch):
    ended = []
    monkeypatch.setattr(service, "build_app", lambda _: FastAPI())
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: ended.append(server.should_exit))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        service.serve_model(SETTINGS, lambda url: os.kill(os.getpid(), signal.SIGTERM))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended == [True]


@pytest.fixture
def connect(monkeypatch):
    """Serve an app that answers `ok` to any request as our server is configured; return a function that connects."""
    app, address, servers = FastAPI(), [], []
    app.add_api_route("/{path:path}", lambda path: "ok")
    _add_gate(app, SETTINGS, Metrics())
    monkeypatch.setattr(service, "HEADER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(signal, "signal", lambda _, handler: servers.append(handler))
    monkeypatch.setattr(service, "build_app", lambda _: app)
    thread = threading.Thread(target=service.serve_model, args=(SETTINGS, address.append))
    thread.start()
    while not address:
        time.sleep(0.01)
    yield lambda: socket.create_connection(("127.0.0.1", int(address[0].rpartition(":")[2])), timeout=5)
    servers[0]()
    thread.join()


HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"A: b\r\n" * 99, b"200"),
        (b"A: b\r\n" * 100, b"431"),
        (b"A: " + b"b" * 15_000 + b"\r\n", b"200"),
        (b"A: " + b"b" * 2**20 + b"\r\n", b"400"),
    ],
)
def test_headers_are_limited_in_size_and_number(connect, headers, status):
    with connect() as connection:
        with suppress(ConnectionError):
            connection.sendall(HEAD + headers + b"\r\n")
        assert connection.recv(2**16).split()[1] == status


@pytest.mark.parametrize(
    "begin",
    [b"", b"GE", HEAD, HEAD + b"\r\n" + HEAD, b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"],
    ids=["nothing", "a word", "half its headers", "half of the second", "no body"],
)
def test_a_request_that_is_never_finished_is_closed_however_slowly_it_comes(connect, begin):
    with connect() as connection:
        connection.sendall(begin)
        start = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - start < 5:
                connection.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - start < 3


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--num-replicas", "2", "--cpus-per-replica", "0"]], ids=["alone", "on Ray"])
def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_reason(tmp_path, options):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    command = [sys.executable, "-m", "sdiareward.cli", "serve", "--model", str(tmp_path), "--port", "0", *options]
    done = forked.run([*command, "--device", "cpu"], env=os.environ | {"RAY_ADDRESS": ""}, timeout=500)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("sdiareward serve: error: ")]
    assert line.startswith(f"sdiareward serve: error: model {tmp_path}: cannot be loaded (model_type is 'bert'")


def test_a_built_in_model_is_served_by_its_name(monkeypatch):
    served = []
    monkeypatch.setattr(service, "serve_model", lambda settings, _: served.append(settings.model))
    assert main(["serve", "--model", "nano"]) == 0
    assert served == [ModelSpec("nano")]
