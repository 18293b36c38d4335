"""A server on a Ray cluster that was there before, and goes on without it."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support import forked
from support.server_process import Server

from sdiareward.serving.client import RewardClient


pytestmark = pytest.mark.slow


pytest.importorskip("ray", reason="no serving: pip install 'sdiareward[serve]'")

OPTIONS = ["--cpus-per-replica", "0", "--threads", "1", "--device", "cpu"]
START_S = 120


@pytest.fixture(scope="module")
def ray_cluster():
    """Start a cluster of this machine that wants a token; return the environment of those who have it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "token-of-the-tests-" + "0" * 45}
    environment = os.environ | token | {"RAY_ADDRESS": f"127.0.0.1:{port}"}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", "--block"]
    options = ["--num-cpus=2", "--include-dashboard=false", f"--object-store-memory={100 * 2**20}"]
    process = subprocess.Popen([*command, *options], env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + START_S
    while ask(environment, "print(1)").returncode:
        assert process.poll() is None and time.monotonic() < deadline
    yield environment
    # What `ray start` started is let go of, not waited for: draining takes Ray half a minute.
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()
    process.wait(timeout=60)
    # By this Ray finds what runs on the machine, for whoever names no address.
    Path("/tmp/ray/ray_current_cluster").unlink(missing_ok=True)


def ask(environment, code):
    """Run code in a process of its own that has joined the cluster."""
    joined = f"import ray; from ray import serve; ray.init(log_to_driver=False); {code}"
    return forked.run([sys.executable, "-c", joined], env=environment, timeout=120)


def test_a_server_joins_a_cluster_and_leaves_it_as_it_was(
    ray_cluster, tmp_path, tiny_checkpoint, make_dialogue, monkeypatch
):
    for name, value in ray_cluster.items():
        monkeypatch.setenv(name, value)
    server = Server(tmp_path, tiny_checkpoint, *OPTIONS, address=ray_cluster["RAY_ADDRESS"])
    try:
        [reward] = RewardClient(server.url).score([make_dialogue()])
        assert isinstance(reward, float)
        told = ask(ray_cluster, "print(sorted(serve.status().applications))")
        assert "sdiareward-" in told.stdout, told.stderr
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
    finally:
        server.end()
    told = ask(ray_cluster, "print(serve.status().applications)")
    assert told.stdout.strip() == "{}", told.stderr


def test_a_cluster_that_does_not_know_the_token_is_said_to(ray_cluster, tmp_path, tiny_checkpoint):
    other = ray_cluster | {"RAY_AUTH_TOKEN": "another-token-of-the-tests-" + "1" * 37}
    # Ray asks once a second, 20 times.
    other["RAY_NUM_REDIS_GET_RETRIES"] = "2"
    command = [sys.executable, "-m", "sdiareward.cli", "serve", "--model", str(tiny_checkpoint), "--port", "0"]
    told = forked.run([*command, *OPTIONS], env=other, timeout=START_S)
    assert told.returncode == 2
    reason = told.stderr.splitlines()[-1]
    assert reason.startswith(f"sdiareward serve: error: the Ray cluster at {other['RAY_ADDRESS']} cannot be joined (")
    assert reason.endswith("that RAY_AUTH_TOKEN is its token if it needs one.")
    assert "Traceback" not in told.stderr and other["RAY_AUTH_TOKEN"] not in told.stderr
