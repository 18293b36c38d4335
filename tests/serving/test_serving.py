"""A real server as a process, asked over HTTP; the last test ends it."""

import base64
import concurrent.futures
import json
import math
import re
import signal
import socket
import time

import numpy as np
import pytest
import requests
from support.grpo_world import check_logged, train_policy
from support.server_process import Server

from sdiareward.scoring.calibration import Calibration, fit
from sdiareward.scoring.reward_function import reward_fn
from sdiareward.scoring.scorer import Scorer
from sdiareward.serving.client import (
    RefusedError,
    RewardClient,
    ServiceError,
    encode_dialogue,
    remote_reward_fn,
)


pytestmark = pytest.mark.slow


pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")

KEY = "the-key-of-the-tests-0123456789"
AS_JSON = {"Content-Type": "application/json"}
MAX_IN_FLIGHT = 6
BODY_TIMEOUT_S = 2.0
START_S = 300


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, make_tiny_model, tiny_processor):
    """Return the folder of a tiny model that has a calibration."""
    folder = tmp_path_factory.mktemp("calibrated")
    pairs = np.random.default_rng(0).normal([[0.5, 0.0]], 0.5, (40, 2))
    version = tiny_processor.prompt_version
    calibration = fit(pairs, ["wild", "scripted"] * 20, ["joint"] * 40, prompt_version=version)
    make_tiny_model(calibration=calibration).save_pretrained(folder)
    tiny_processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def scorer(checkpoint):
    return Scorer.from_pretrained(checkpoint, device="cpu")


@pytest.fixture(scope="module")
def server(tmp_path_factory, checkpoint):
    folder = tmp_path_factory.mktemp("server")
    (folder / "key").write_text(KEY)
    options = ["--threads", "1", "--device", "cpu", "--max-body-mib", "1", "--max-dialogues", "4"]
    options += ["--max-in-flight", str(MAX_IN_FLIGHT), "--body-timeout-s", str(BODY_TIMEOUT_S)]
    options += ["--api-key-file", str(folder / "key")]
    server = Server(folder, checkpoint, *options)
    yield server
    server.end()


@pytest.fixture(scope="module")
def client(server):
    return RewardClient(server.url, KEY, concurrency=5)


@pytest.fixture(scope="module")
def dialogues(make_dialogue):
    return [make_dialogue(0.2 + 0.02 * k, 0.1 + 0.03 * (k % 4), text=f"line {k}") for k in range(12)]


@pytest.fixture(scope="module")
def rewards(scorer, dialogues):
    """Return what each dialogue gets alone."""
    return [scorer.score([dialogue])[0] for dialogue in dialogues]


def post(server, path="/score", key=KEY, **options):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= options.pop("headers", {})
    return requests.post(server.url + path, headers=headers, timeout=60, **options)


def metric(server, name):
    """Return the sum of a metric's values over its labels."""
    text = requests.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}, timeout=60).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))


def test_rewards_are_those_of_the_scorer_whatever_is_scored_together(server, client, dialogues, rewards):
    assert client.score(dialogues) == pytest.approx(rewards, abs=1e-5)
    assert metric(server, "sdiareward_dialogues_total") == len(dialogues)


def test_several_dialogues_and_the_other_criterion_in_one_request(server, scorer, dialogues):
    request = {"dialogues": [encode_dialogue(each) for each in dialogues[:4]], "criterion": "modality"}
    found = [result["reward"] for result in post(server, json=request).json()["results"]]
    assert found == pytest.approx(scorer.score(dialogues[:4], "modality"), abs=1e-5)


def test_turns_with_files_are_scored_like_messages(client, scorer, fixtures_dir, tmp_path, make_tone):
    import soundfile

    soundfile.write(tmp_path / "turn.flac", make_tone(0.4), 16_000)
    turns = [{"role": role, "text": "so", "audio": str(tmp_path / "turn.flac")} for role in ("user", "assistant")]
    messages = [
        {"role": turn["role"], "content": [{"type": "text", "text": "so"}, {"type": "audio", "audio": turn["audio"]}]}
        for turn in turns
    ]
    assert client.score([turns]) == pytest.approx(scorer.score([messages]), abs=1e-5)


def test_a_multipart_request_gives_the_same_reward(server, dialogues, rewards):
    turns = encode_dialogue(dialogues[0])["turns"]
    parts = {}
    for number, turn in enumerate(turns):
        parts[f"turn-{number}"] = ("turn.wav", base64.b64decode(turn["content"][1]["audio"]["base64"]), "audio/wav")
        turn["content"][1]["audio"] = {"file": f"turn-{number}"}
    request = json.dumps({"dialogues": [{"turns": turns}]})
    answer = post(server, files={**parts, "request": (None, request, "application/json")})
    assert answer.json()["results"][0]["reward"] == pytest.approx(rewards[0], abs=1e-5)


def test_two_dialogues_are_compared(client, dialogues, rewards):
    found = client.compare(dialogues[0], dialogues[5])
    assert found.rewards == pytest.approx((rewards[0], rewards[5]), abs=1e-5)
    assert found.margin == pytest.approx(rewards[0] - rewards[5], abs=1e-5)
    assert found.probability == pytest.approx(1 / (1 + math.exp(-found.margin)))


def test_calibrated_values_are_those_of_the_calibration(client, scorer, dialogues, rewards):
    calibration = Calibration.of(scorer.model.config)
    shares = calibration.by_quantile(rewards[:3], ["joint"] * 3)
    assert client.score(dialogues[:3], calibrated=True) == pytest.approx(shares.tolist(), abs=1e-5)
    log_odds = calibration.by_subset(rewards[:3], ["wild"] * 3).tolist()
    assert client.score(dialogues[:3], calibrated=True, subset="wild") == pytest.approx(log_odds, abs=1e-4)
    found = client.compare(dialogues[0], dialogues[1], calibrated=True, subset="wild")
    assert found.probability == pytest.approx(1 / (1 + math.exp(log_odds[1] - log_odds[0])), abs=1e-4)


def test_what_the_model_does_not_have_is_refused(client, dialogues):
    with pytest.raises(RefusedError, match="subset is 'tame'; the calibration knows scripted, wild"):
        client.score(dialogues[:1], calibrated=True, subset="tame")
    with pytest.raises(RefusedError, match="criterion is 'tame'; this model knows"):
        client.score(dialogues[:1], "tame")


def with_text(dialogue, text):
    """Return a dialogue whose last turn has other words."""
    *before, last = dialogue
    return [*before, {**last, "content": [{"type": "text", "text": text}, last["content"][1]]}]


def test_a_bad_request_in_a_batch_is_explained_and_hurts_no_other(client, server, dialogues, rewards):
    # The tokenizer alone knows that this cannot be judged: it gets as far as the model's process.
    mixed = [with_text(each, "<|im_end|>") if k % 3 == 0 else each for k, each in enumerate(dialogues)]
    results = client.score_or_reason(mixed)
    for k, result in enumerate(results):
        if k % 3 == 0:
            assert result.startswith("turn 2: its text holds the control token")
        else:
            assert result == pytest.approx(rewards[k], abs=1e-5)
    answer = post(server, json={"dialogues": [encode_dialogue(each) for each in mixed[:2]]})
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert (problem["dialogue"], problem["turn"], problem["loc"]) == (1, 2, ["body", "dialogues", 0])


def test_the_client_numbers_bad_dialogues_across_its_requests(client, dialogues):
    with pytest.raises(RefusedError, match="^dialogue 3, turn 2: its text holds") as caught:
        client.score([*dialogues[:2], with_text(dialogues[2], "<|im_end|>")])
    assert caught.value.problems[0]["turn"] == 2


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        ({"data": b"{", "headers": AS_JSON}, 422, "Invalid JSON"),
        ({"data": b"\xff\xfe" * 50, "headers": AS_JSON}, 422, "Invalid JSON"),
        ({"data": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "content type is 'text/plain'"),
        ({"data": b"--x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "Missing boundary"),
        ({"data": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, 400, "Invalid multipart"),
        ({"files": {"a": b"x"}}, 422, "has no part 'request'"),
        ({"json": {"dialogues": [{"turns": []}] * 5}}, 422, "has 5 dialogues; send at most 4"),
        ({"json": {"dialogues": [{"turns": [{"role": "user", "audio": "a.wav"}]}]}}, 422, "its recording is neither"),
        ({"data": b"0" * (2**20 + 1), "headers": AS_JSON}, 413, "Too Large"),
        ({"data": (b"0" * 2**16 for _ in range(17)), "headers": AS_JSON}, 413, "Too Large"),
    ],
)
def test_a_malformed_body_is_refused_with_its_reason(server, options, status, reason):
    try:
        answer = post(server, **options)
    except requests.ConnectionError:
        # The server answered and closed while the rest of the body was still under way.
        assert status == 413
        return
    assert answer.status_code == status
    assert reason in answer.text


def test_without_the_key_nothing_is_scored_and_the_key_is_never_logged(server):
    for key in (None, "wrong", KEY[:-1]):
        answer = post(server, key=key, json={})
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert requests.get(f"{server.url}/metrics", timeout=60).status_code == 401
    with pytest.raises(ServiceError, match="status 401: the API key is wrong") as caught:
        RewardClient(server.url, "not-the-key").score([[]])
    assert "not-the-key" not in str(caught.value)
    assert KEY not in server.log.read_text()
    assert KEY not in repr(RewardClient(server.url, KEY))


def test_neither_files_nor_addresses_of_the_server_are_read(server, dialogues, tmp_path):
    inside = tmp_path / "0.wav"
    turns = encode_dialogue(dialogues[0])["turns"]
    inside.write_bytes(base64.b64decode(turns[0]["content"][1]["audio"]["base64"]))
    for audio in ({"url": server.url}, {"url": inside.as_uri()}, {"file": str(inside)}, {"path": str(inside)}):
        turns[0]["content"][1]["audio"] = audio
        answer = post(server, json={"dialogues": [{"turns": turns}]})
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["turn"] == 1


def test_the_server_says_what_it_is(server):
    health = requests.get(f"{server.url}/health", timeout=60)
    found = health.json()
    assert (health.status_code, found["status"], found["limits"]["max_dialogues"]) == (200, "ok", 4)
    assert found["criteria"] == ["colloquialness", "joint", "modality"]
    assert found["calibration_subsets"] == ["scripted", "wild"]


def test_the_openapi_page_describes_bodies_and_needs_no_other_server(server):
    content = requests.get(f"{server.url}/openapi.json", timeout=60).json()
    known = content["components"]["schemas"]
    wanted = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(content)))
    assert wanted <= set(known)
    assert {"ScoreRequest", "CompareRequest", "Dialogue", "Problems"} <= wanted
    page = requests.get(f"{server.url}/docs", timeout=60).text
    linked = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert linked and all(link.startswith("/") for link in linked)
    assert all(requests.get(server.url + link, timeout=60).status_code == 200 for link in linked)


def test_a_remote_reward_is_the_reward_of_the_local_function(client, scorer, speak):
    prompts = [[{"role": "user", "content": f"question {k}"}] for k in (0, 0, 1, 1)]
    texts = ("yes", "no", "", "<|im_end|>")
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    local, remote = reward_fn(scorer, speak=speak), remote_reward_fn(client, speak=speak)
    expected = local(prompts, completions)
    assert expected[2:] == [None, None]
    assert remote(prompts, completions) == [pytest.approx(reward, abs=1e-5) for reward in expected]
    assert remote.failures == local.failures
    assert remote.__name__ == "sdiareward_joint"


def test_grpo_learns_from_a_remote_reward(client, scorer, speak, tiny_processor, make_tone, tmp_path):
    reward = remote_reward_fn(client, criterion="modality", speak=speak, audio_column="voice")
    table, history, voices = train_policy(tmp_path, tiny_processor.tokenizer, make_tone, reward)
    check_logged(table, history, voices, reward, speak, scorer)
    assert reward.num_scored == 8


def test_a_criterion_that_the_server_does_not_know_is_no_remote_reward(client):
    with pytest.raises(ValueError, match="criterion is 'tame'; the server's model knows"):
        remote_reward_fn(client, criterion="tame")


def slow_body(server):
    """Begin a request whose body does not come."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /score HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\n"
    connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
    return connection


def test_slow_clients_are_given_up_and_those_beyond_the_limit_told_to_wait(server, client, dialogues, rewards):
    connections = [slow_body(server) for _ in range(MAX_IN_FLIGHT)]
    deadline = time.monotonic() + BODY_TIMEOUT_S
    # The question itself is one of those under way.
    while metric(server, "sdiareward_requests_in_flight") <= MAX_IN_FLIGHT and time.monotonic() < deadline:
        time.sleep(0.01)
    answer = post(server, json={})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert requests.get(f"{server.url}/health", timeout=60).status_code == 200
    # The client waits and tries again until there is room.
    assert client.score(dialogues[:1]) == pytest.approx(rewards[:1], abs=1e-5)
    for connection in connections:
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")
        connection.close()


def test_a_server_told_to_end_answers_what_it_took_and_refuses_the_rest(server, dialogues, rewards):
    requests_of_4 = [{"dialogues": [encode_dialogue(each) for each in dialogues[k : k + 4]]} for k in (0, 4, 8)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        late = slow_body(server)
        answers = [pool.submit(post, server, json=request) for request in requests_of_4]
        while metric(server, "sdiareward_requests_in_flight") <= 4 and not all(each.done() for each in answers):
            time.sleep(0.005)
        server.process.send_signal(signal.SIGTERM)
        found = [result["reward"] for each in answers for result in each.result(timeout=60).json()["results"]]
        assert found == pytest.approx(rewards, abs=1e-5)
        with pytest.raises(requests.ConnectionError):
            while True:
                requests.get(f"{server.url}/health", timeout=60)
        # What was begun before is still answered.
        assert late.recv(1000).startswith(b"HTTP/1.1 408 ")
    assert server.process.wait(timeout=100) == 0
    assert "Traceback" not in server.log.read_text()
