"""Parts in actors of one Ray, and replicas under Ray Serve, behind Ray's own proxy."""

import os
import signal
from dataclasses import replace

import psutil
import pytest
from support import squares

from sdiareward.common.errors import UserError
from sdiareward.common.machine import open_ray
from sdiareward.common.parts import OnRay
from sdiareward.scoring.model_spec import ModelSpec, ScoringError
from sdiareward.scoring.scorer import Scorer
from sdiareward.serving import service
from sdiareward.serving.client import RewardClient, ServiceError
from sdiareward.serving.settings import ServiceSettings


pytestmark = pytest.mark.slow
KEY = "the-key-of-the-tests-0123456789"


@pytest.fixture(scope="module")
def on_ray():
    ray = pytest.importorskip("ray", reason="pip install 'sdiareward[serve]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "")
        with open_ray(2):
            yield ray


def test_actors_make_the_rows_of_parts_and_hand_on_errors(on_ray):
    on_ray.cloudpickle.register_pickle_by_value(squares)
    parts = [[1, 2, 3], [4, 5], [6]]
    found = dict(OnRay(2, 0.5)(squares.load_squares, parts))
    assert found == {number: [{"item": k, "square": k * k} for k in part] for number, part in enumerate(parts)}
    with pytest.raises(UserError, match="no such model"):
        list(OnRay(1, 0.5)(squares.load_nothing, parts))


def test_replicas_answer_as_the_scorer_and_one_that_is_killed_is_replaced(
    on_ray, tmp_path, tiny_checkpoint, make_dialogue, monkeypatch
):
    from ray import serve

    dialogues = [make_dialogue(0.2 + 0.02 * k, 0.1, text=f"line {k}") for k in range(6)]
    expected = pytest.approx(Scorer.from_pretrained(tiny_checkpoint, device="cpu").score(dialogues), abs=1e-5)
    model = ModelSpec(str(tiny_checkpoint), device="cpu")
    sizes = {"num_replicas": 2, "cpus_per_replica": 0.0, "num_threads": 1}
    settings = ServiceSettings(model=model, port=0, api_key=KEY, **sizes)
    ends = []
    monkeypatch.setattr(service, "_on_end", ends.append)

    def use(url):
        client = RewardClient(url, KEY)
        assert client.score(dialogues) == expected
        with pytest.raises(ServiceError, match="status 401"):
            RewardClient(url, "another").score(dialogues)
        children = psutil.Process().children(recursive=True)
        first, _ = (child for child in children if "ServeReplica" in " ".join(child.cmdline()))
        os.kill(first.pid, signal.SIGKILL)
        # Requests that were at the replica fail; the client asks again.
        for _ in range(3):
            assert client.score(dialogues) == expected
        serve.delete(*serve.status().applications)
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
        bad = replace(settings, model=replace(model, name=str(tmp_path)))
        with pytest.raises(ScoringError, match=r"cannot be loaded \(model_type is 'bert'"):
            service._deploy(bad, "bad", {"num_cpus": 0.0, "num_gpus": 0.0})
        ends[0]()

    service.serve_model(settings, use)
