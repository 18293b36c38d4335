"""The page of the server's operations, without a model: `/`, groups, and examples that are requests and answers."""

import json
from types import SimpleNamespace

import pytest


pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")

from fastapi.testclient import TestClient

from sdiareward.scoring.model_spec import ModelSpec
from sdiareward.serving.app import create_app
from sdiareward.serving.bodies import JSON, MULTIPART
from sdiareward.serving.forms import CompareRequest, CompareResponse, ScoreRequest, ScoreResponse
from sdiareward.serving.inputs import read_dialogue_form
from sdiareward.serving.settings import Limits, ServiceSettings


# Nothing that these tests ask for reaches a model.
CLUSTER = SimpleNamespace(facts=SimpleNamespace(calibration=None))


@pytest.fixture(scope="module")
def client():
    return TestClient(create_app(CLUSTER, ServiceSettings(model=ModelSpec("nowhere"))), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def operations(client):
    paths = client.get("/openapi.json").json()["paths"]
    return {path: next(iter(found.values())) for path, found in paths.items()}


def test_the_address_of_the_server_leads_to_its_page(client):
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "docs")
    assert "swagger" in client.get("/").text


@pytest.mark.parametrize(
    ("path", "request_form", "answer_form"),
    [("/score", ScoreRequest, ScoreResponse), ("/compare", CompareRequest, CompareResponse)],
)
def test_examples_are_requests_that_can_be_sent_and_answers_of_the_form(operations, path, request_form, answer_form):
    content = operations[path]["requestBody"]["content"]
    form = request_form.model_validate(content[JSON]["example"])
    for dialogue in getattr(form, "dialogues", None) or [form.a, form.b]:
        messages = read_dialogue_form(dialogue, {}, Limits(), require_audio=True)
        assert [message["role"] for message in messages] == ["user", "assistant"]
    answer_form.model_validate(operations[path]["responses"]["200"]["content"][JSON]["example"])
    if "example" in content[MULTIPART]:
        parts = content[MULTIPART]["example"]
        named = ScoreRequest.model_validate(json.loads(parts["request"]))
        assert {turn.audio.file for turn in named.dialogues[0].turns} == set(parts) - {"request"}
