"""How a server begins and ends: what Ray has not, what is left there, signals, a model that cannot be loaded."""

import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import nullcontext, suppress

import pytest
from support import forked


pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")

import ray
from ray import serve

from sdiareward.cli import serve as serve_command
from sdiareward.common.user_errors import UserError
from sdiareward.scoring.model_spec import ModelSpec, ScoringError
from sdiareward.serving import cluster, connections, service
from sdiareward.serving.app import Gate
from sdiareward.serving.metrics import Metrics
from sdiareward.serving.settings import Replicas, ServiceSettings


SETTINGS = ServiceSettings(model=ModelSpec("nowhere"), port=0)


@pytest.fixture
def calls(monkeypatch):
    """Stand for Ray; return what it was told."""
    told = []
    monkeypatch.setattr(ray, "is_initialized", lambda: "init" in told)
    monkeypatch.setattr(ray, "init", lambda **_: told.append("init"))
    monkeypatch.setattr(ray, "shutdown", lambda: told.append("shutdown"))
    monkeypatch.setattr(serve, "start", lambda **_: told.append("start"))
    monkeypatch.setattr(serve, "delete", lambda name: told.append("delete"))
    monkeypatch.setattr(cluster, "_deploy", lambda *_: told.append("deploy"))
    monkeypatch.setattr(cluster, "ModelCluster", lambda *_: None)
    before = signal.getsignal(signal.SIGTERM)
    yield told
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("address", "end"), [("ray://cluster:1", ["delete", "shutdown"]), ("", ["shutdown"])], ids=["joined", "own"]
)
def test_on_a_cluster_that_goes_on_no_copy_of_the_model_stays(calls, monkeypatch, address, end):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with cluster.model_cluster(SETTINGS):
        assert calls == ["init", "start", "deploy"]
    assert calls[3:] == end


def test_a_ray_that_was_there_before_is_left_running(calls):
    calls.append("init")
    with cluster.model_cluster(SETTINGS):
        pass
    assert calls[-1] == "delete"


def test_a_ray_without_tokens_is_refused(calls, monkeypatch):
    monkeypatch.setattr(ray, "__version__", "2.49.1")
    with pytest.raises(UserError, match=r"Ray is 2\.49\.1; its ports need a token: pip install"):
        cluster.model_cluster(SETTINGS).__enter__()
    assert calls == []


@pytest.mark.parametrize(
    ("replicas", "each", "found"),
    [
        (Replicas(minimum=2), (1.0,), "2 replicas with 1 GPUs each do not fit: Ray has 1"),
        (Replicas(minimum=3), (0.5,), "3 replicas with 0.5 GPUs each do not fit"),
        (Replicas(minimum=2), (0.6,), "2 replicas with 0.6 GPUs each do not fit"),
        (Replicas(minimum=2, num_cpus=3), (0.0,), "2 replicas with 3 cores each do not fit: Ray has 4"),
        (Replicas(maximum=64), (0.0,), "64 replicas with 1 cores"),
        (Replicas(minimum=3, num_cpus=0), (0.0, 400), "3 replicas with 400 bytes of memory"),
    ],
)
def test_more_than_ray_has_is_refused_at_once(monkeypatch, replicas, each, found):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 1.0, "CPU": 4.0, "memory": 1000.0})
    monkeypatch.setattr(ray, "available_resources", lambda: {"GPU": 1.0, "CPU": 4.0})
    with pytest.raises(ScoringError, match=found):
        cluster._require_room(replicas, *each)
    cluster._require_room(Replicas(minimum=10, num_cpus=0.4), 0.1, 100)


def test_what_others_use_is_waited_for_but_not_silently(monkeypatch, caplog):
    monkeypatch.setenv("RAY_ADDRESS", "ray://cluster:1")
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 2.0, "CPU": 4.0})
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 4.0})
    with caplog.at_level(logging.WARNING):
        cluster._require_room(Replicas(), 1.0)
    assert "Ray has 0 GPUs free; waiting for other jobs." in caplog.text


def test_a_signal_that_comes_before_the_first_request_ends_the_server(monkeypatch):
    ended = []
    monkeypatch.setattr(cluster, "model_cluster", lambda settings: nullcontext())
    monkeypatch.setattr("sdiareward.serving.app.create_app", lambda *_: None)
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

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    address = []
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(service, "_stop_on_signals", address.append)
    monkeypatch.setattr(cluster, "model_cluster", lambda settings: nullcontext())
    monkeypatch.setattr("sdiareward.serving.app.create_app", lambda *_: Gate(answer, Metrics(), SETTINGS.limits))
    thread = threading.Thread(target=service.serve_model, args=(SETTINGS, address.append))
    thread.start()
    while len(address) < 2:
        time.sleep(0.01)
    yield lambda: socket.create_connection(("127.0.0.1", int(address[1].rpartition(":")[2])), timeout=5)
    address[0].should_exit = True
    thread.join()


HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"A: b\r\n" * 99, b"200"),
        (b"A: b\r\n" * 100, b"431"),
        (b"A: " + b"b" * 15_000 + b"\r\n", b"200"),
        (b"A: " + b"b" * 2**20 + b"\r\n", b"400"),
        (b"A: b\r\n" * 2**18, b"400"),
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
def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_reason(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    command = [sys.executable, "-m", "sdiareward.cli", "serve", "--model", str(tmp_path), "--port", "0"]
    command += ["--device", "cpu", "--cpus-per-replica", "0", "--object-store-mib", "80"]
    environment = os.environ | {"RAY_ADDRESS": ""}
    done = forked.run(command, env=environment, timeout=500)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("sdiareward serve: error: ")]
    assert line.startswith(f"sdiareward serve: error: model {tmp_path}: cannot be loaded (model_type is 'bert'")
    assert "Traceback" not in done.stderr


def test_a_built_in_model_is_served_by_its_name():
    assert serve_command._make_settings(serve_command.ServeArguments(model="nano")).model == ModelSpec("nano")
