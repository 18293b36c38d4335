"""Several replicas under Ray Serve, behind Ray's own proxy."""

import os
import signal

import pytest
from support.server_process import Server

from sdiareward.scoring.scorer import Scorer
from sdiareward.serving.client import RewardClient, ServiceError


pytestmark = pytest.mark.slow


pytest.importorskip("ray", reason="no serving: pip install 'sdiareward[serve]'")


def test_replicas_answer_as_the_scorer_and_one_that_is_killed_is_replaced(tmp_path, tiny_checkpoint, make_dialogue):
    (tmp_path / "key").write_text("the-key-of-the-tests-0123456789")
    options = ["--num-replicas", "2", "--cpus-per-replica", "0", "--threads", "1", "--device", "cpu"]
    server = Server(tmp_path, tiny_checkpoint, *options, "--api-key-file", str(tmp_path / "key"))
    try:
        dialogues = [make_dialogue(0.2 + 0.02 * k, 0.1, text=f"line {k}") for k in range(6)]
        expected = pytest.approx(Scorer.from_pretrained(tiny_checkpoint, device="cpu").score(dialogues), abs=1e-5)
        client = RewardClient(server.url, (tmp_path / "key").read_text())
        assert client.score(dialogues) == expected
        with pytest.raises(ServiceError, match="status 401"):
            RewardClient(server.url, "another").score(dialogues)
        first, _ = server.replicas()
        os.kill(first.pid, signal.SIGKILL)
        # Requests that were at the replica fail; the client asks again.
        for _ in range(3):
            assert client.score(dialogues) == expected
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
    finally:
        server.end()
