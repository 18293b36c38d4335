"""The application without a process: its page, and whom it answers."""

import socket
from types import SimpleNamespace

import pytest


pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")

from fastapi.testclient import TestClient

from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.scoring.model_spec import ModelSpec
from sdiareward.serving.app import create_app
from sdiareward.serving.bodies import JSON, read_dialogue_form
from sdiareward.serving.forms import CompareRequest, ScoreRequest
from sdiareward.serving.settings import Limits, ServiceSettings


# Nothing that these tests ask for reaches a model.
SCORER = SimpleNamespace(
    model=SimpleNamespace(config=SDiaRewardConfig()), processor=SimpleNamespace(prompts={"joint": ""}, max_turn_s=15.0)
)


@pytest.fixture(scope="module")
def client():
    settings = ServiceSettings(model=ModelSpec("nowhere"), host="own.name")
    return TestClient(create_app(settings, SCORER), base_url="http://127.0.0.1:8000")


def test_the_address_of_the_server_leads_to_its_page(client):
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "docs")
    assert "swagger" in client.get("/").text


@pytest.mark.parametrize(("path", "form"), [("/score", ScoreRequest), ("/compare", CompareRequest)])
def test_examples_are_requests_that_can_be_sent(client, path, form):
    operation = client.get("/openapi.json").json()["paths"][path]["post"]
    found = form.model_validate(operation["requestBody"]["content"][JSON]["example"])
    for dialogue in getattr(found, "dialogues", None) or [found.a, found.b]:
        messages = read_dialogue_form(dialogue, {}, Limits(), require_audio=True).to_messages()
        assert [message["role"] for message in messages] == ["user", "assistant"]


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "LOCALHOST", "[::1]:8000", "own.name", socket.gethostname()])
def test_a_server_answers_to_its_addresses_and_names(client, host):
    for headers in ({"host": host}, {"host": host, "origin": f"http://{host}"}):
        assert client.get("/health", headers=headers).json()["model"] == "nowhere"


@pytest.mark.parametrize(
    "headers",
    [
        *(
            {"host": host}
            for host in ("evil.example", "127.0.0.1.evil.example", "localhost.", "localhost@evil.example")
        ),
        *({"origin": origin} for origin in ("http://evil.example", "null", "https://127.0.0.1:8001", "")),
    ],
)
def test_a_rebound_name_or_a_page_of_another_site_is_refused(client, headers):
    assert client.get("/health", headers=headers).status_code == 403
    assert client.post("/score", headers=headers).status_code == 403
