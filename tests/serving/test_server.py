"""A server in a thread, asked over HTTP: rewards, refusals, limits, its end."""

import base64
import concurrent.futures
import io
import json
import math
import re
import socket
import threading
import time
import unicodedata
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest
import requests
import soundfile


pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")

from fastapi.testclient import TestClient

from sdiareward.chat_sdiareward import ROLES
from sdiareward.cli import main
from sdiareward.scoring.calibration import Calibration, fit
from sdiareward.scoring.model_spec import ModelSpec
from sdiareward.scoring.reward_function import reward_fn
from sdiareward.scoring.scorer import Scorer
from sdiareward.serving import service
from sdiareward.serving.app import create_app
from sdiareward.serving.client import RefusedError, RewardClient, ServiceError, encode_dialogue, remote_reward_fn
from sdiareward.serving.settings import API_KEY_ENV, Limits, ServiceSettings, read_api_key


pytestmark = pytest.mark.slow
KEY = "the-key-of-the-tests-0123456789"
LIMITS = Limits(max_body_mib=1, max_dialogues=4, max_in_flight=6, body_timeout_s=1.0, max_turns=6, max_turn_s=20.0)
SETTINGS = ServiceSettings(model=ModelSpec("tiny"), port=0, limits=LIMITS, api_key=KEY)
AS_JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def scorer(make_tiny_model, tiny_processor):
    """Return the scorer of a tiny model that has a calibration."""
    pairs = np.random.default_rng(0).normal([[0.5, 0.0]], 0.5, (40, 2))
    version = tiny_processor.prompt_version
    calibration = fit(pairs, ["wild", "scripted"] * 20, ["joint"] * 40, prompt_version=version)
    return Scorer(make_tiny_model(calibration=calibration), tiny_processor, device="cpu")


@contextmanager
def serving(scorer):
    """Serve in a thread; yield the address, and what SIGTERM calls."""
    urls, ends = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "_on_end", ends.append)
        patch.setattr(service, "build_app", lambda settings: create_app(settings, scorer))
        thread = threading.Thread(target=service.serve_model, args=(SETTINGS, urls.append))
        thread.start()
        while not urls:
            time.sleep(0.01)
    yield urls[0], ends[0]
    ends[0]()
    thread.join()


@pytest.fixture(scope="module")
def url(scorer):
    with pytest.MonkeyPatch.context() as patch, serving(scorer) as (address, _):
        patch.setattr(service, "HEADER_TIMEOUT_S", 0.5)
        yield address


@pytest.fixture(scope="module")
def client(url):
    return RewardClient(url, KEY)


@pytest.fixture(scope="module")
def dialogues(make_dialogue):
    return [make_dialogue(0.2 + 0.02 * k, 0.1 + 0.03 * (k % 4), text=f"line {k}") for k in range(8)]


@pytest.fixture(scope="module")
def rewards(scorer, dialogues):
    """Return what each dialogue gets alone."""
    return [scorer.score([dialogue])[0] for dialogue in dialogues]


def post(url, path="/score", key=KEY, **options):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= options.pop("headers", {})
    return requests.post(url + path, headers=headers, timeout=60, **options)


def metric(url, name):
    """Return the sum of a metric's values over its labels."""
    text = requests.get(f"{url}/metrics", headers={"Authorization": f"Bearer {KEY}"}, timeout=60).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))


def test_rewards_are_those_of_the_scorer_whatever_is_scored_together(url, client, scorer, dialogues, rewards):
    before = metric(url, "sdiareward_dialogues_total")
    assert client.score(dialogues) == pytest.approx(rewards, abs=1e-5)
    assert metric(url, "sdiareward_dialogues_total") == before + len(dialogues)
    assert client.score(dialogues[0]) == pytest.approx(rewards[0], abs=1e-5)
    request = {"dialogues": [encode_dialogue(each) for each in dialogues[:4]], "criterion": "modality"}
    found = [result["reward"] for result in post(url, json=request).json()["results"]]
    assert found == pytest.approx(scorer.score(dialogues[:4], "modality"), abs=1e-5)


def test_a_multipart_request_gives_the_same_reward(url, dialogues, rewards):
    turns = encode_dialogue(dialogues[0])["turns"]
    # A name is found in either form of Unicode.
    sent, named = (unicodedata.normalize(form, "gespräch") for form in ("NFC", "NFD"))
    parts = {}
    for number, turn in enumerate(turns):
        parts[f"{sent}-{number}"] = ("turn.wav", base64.b64decode(turn["content"][1]["audio"]["base64"]), "audio/wav")
        turn["content"][1]["audio"] = {"file": f"{named}-{number}"}
    request = json.dumps({"dialogues": [{"turns": turns}]})
    answer = post(url, files={**parts, "request": (None, request, "application/json")})
    assert answer.json()["results"][0]["reward"] == pytest.approx(rewards[0], abs=1e-5)
    twice = [*parts.items(), *parts.items(), ("request", (None, request))]
    assert "has two parts" in post(url, files=twice).json()["detail"][0]["msg"]


def test_two_dialogues_are_compared_and_calibrated(client, scorer, dialogues, rewards):
    found = client.compare(dialogues[0], dialogues[5])
    assert found.rewards == pytest.approx((rewards[0], rewards[5]), abs=1e-5)
    assert found.margin == pytest.approx(rewards[0] - rewards[5], abs=1e-5)
    assert found.probability == pytest.approx(1 / (1 + math.exp(-found.margin)))
    calibration = Calibration.of(scorer.model.config)
    shares = [calibration.by_quantile(reward, "joint") for reward in rewards[:3]]
    assert client.score(dialogues[:3], calibrated=True) == pytest.approx(shares, abs=1e-5)
    log_odds = [calibration.by_subset(reward, "wild") for reward in rewards[:3]]
    assert client.score(dialogues[:3], calibrated=True, subset="wild") == pytest.approx(log_odds, abs=1e-4)
    found = client.compare(dialogues[0], dialogues[1], calibrated=True, subset="wild")
    assert found.probability == pytest.approx(1 / (1 + math.exp(log_odds[1] - log_odds[0])), abs=1e-4)
    with pytest.raises(RefusedError, match=r"subset is 'tame'.* scripted, wild"):
        client.score(dialogues[:1], calibrated=True, subset="tame")
    with pytest.raises(RefusedError, match="criterion is 'tame'"):
        client.score(dialogues[:1], "tame")


def test_a_bad_dialogue_in_a_batch_is_explained_and_hurts_no_other(url, client, dialogues, rewards):
    def add_token(dialogue):
        # The tokenizer alone recognises it: it gets as far as the model's queue.
        *before, last = dialogue
        return [*before, {**last, "content": [{"type": "text", "text": "<|im_end|>"}, last["content"][1]]}]

    mixed = [add_token(each) if k % 3 == 0 else each for k, each in enumerate(dialogues)]
    for k, result in enumerate(client.score_or_reason(mixed)):
        if k % 3 == 0:
            assert result.startswith("turn 2: its text has the control token")
        else:
            assert result == pytest.approx(rewards[k], abs=1e-5)
    answer = post(url, json={"dialogues": [encode_dialogue(each) for each in mixed[:2]]})
    [problem] = answer.json()["detail"]
    assert (problem["dialogue"], problem["turn"], problem["loc"]) == (1, 2, ["body", "dialogues", 0])
    with pytest.raises(RefusedError, match="^dialogue 3, turn 2: its text has") as caught:
        client.score([*dialogues[1:3], mixed[0]])
    assert caught.value.problems[0]["turn"] == 2


def encode(array, sampling_rate=16_000, kind="WAV"):
    buffer = io.BytesIO()
    soundfile.write(buffer, array, sampling_rate, format=kind)
    return {"base64": base64.b64encode(buffer.getvalue()).decode()}


A, LONG = encode(np.sin(np.arange(3200) / 20)), encode(np.full(4000, 0.5), 1000)  # 0.2 s, 4 s.
NO_AUDIO = {"base64": base64.b64encode(b"no audio at all").decode()}


def two_turns(recording=A, **changes):
    return [{"role": "user", "audio": recording}, {"role": "assistant", "text": "hi", "audio": recording, **changes}]


def with_content(recording, number):
    return [{"role": role, "content": [{"type": "audio", "audio": recording}] * number} for role in ROLES]


# The turns of a dialogue that cannot be scored, and the number of the turn that is named.
BAD_DIALOGUES = {
    "base64": (two_turns(audio={"base64": "!!!"}), 2),
    "no audio file": (two_turns(audio=NO_AUDIO), 2),
    "missing part": (two_turns(audio={"file": "missing"}), 2),
    "no recording": (two_turns(audio=None), 2),
    "instructed": ([{"role": "system", "text": "judge"}, *two_turns(audio=None)], 2),
    "long turn": (two_turns(encode(np.full(21_000, 0.5), 1000)), 1),
    "long together": (with_content(LONG, 6), 1),
    "many recordings": (with_content(encode(np.zeros(2), 1000), 600), 2),
    "two ways": (two_turns(audio={**A, "file": "a"}), 2),
    "web": (two_turns(audio={"url": "http://169.254.169.254/"}), 2),
    "disk": (two_turns(audio="/etc/passwd"), 2),
    "path": (two_turns(audio={"path": "/etc/passwd"}), 2),
    "many turns, before they are decoded": (two_turns({"base64": "AAAA"}) * 4, None),
    "memory": (two_turns(encode(np.zeros((4_000_000, 8)), 655_350, "FLAC")), 1),
}


@pytest.mark.parametrize(("turns", "turn"), BAD_DIALOGUES.values(), ids=BAD_DIALOGUES)
def test_a_dialogue_that_cannot_be_scored_is_refused_with_its_turn(url, turns, turn):
    good = two_turns()
    body = {"dialogues": [{"turns": good}, {"turns": turns}], "skip_bad": True}
    first, second = post(url, json=body).json()["results"]
    assert first["reward"] is not None and second["reward"] is None
    assert (second["error"]["dialogue"], second["error"]["turn"]) == (2, turn)


def test_what_is_just_within_the_limits_is_scored(url):
    answer = {"role": "assistant", "text": "hi"}
    instructed = [{"role": "system", "text": "judge"}, {"role": "user", "audio": A}, answer]
    wrapped = base64.encodebytes(base64.b64decode(A["base64"])).decode()
    for turns in (
        with_content(LONG, 5),
        two_turns() * 3,
        two_turns({"base64": wrapped}),
        two_turns(f"data:audio/wav;base64,{wrapped}"),
        instructed,
    ):
        body = {"dialogues": [{"turns": turns}], "require_audio": turns is not instructed}
        assert post(url, json=body).json()["results"][0]["reward"] is not None


MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        ({"data": b"{", "headers": AS_JSON}, 422, "json_invalid"),
        ({"data": b"[" * 10_000, "headers": AS_JSON}, 422, "json_invalid"),
        ({"data": b"\xff\xfe" * 50, "headers": AS_JSON}, 422, "json_invalid"),
        ({"data": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "content type is 'text/plain'"),
        ({"data": b"{}", "headers": AS_JSON | {"Content-Encoding": "gzip"}}, 415, "content encoding is 'gzip'"),
        (
            {"data": b"x", "headers": {"Content-Type": f"{MULTIPART['Content-Type']}; charset=punycode"}},
            415,
            "charset",
        ),
        ({"data": b"--x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "Missing boundary"),
        ({"data": b"x", "headers": MULTIPART}, 400, "Invalid multipart"),
        ({"files": {"a": b"x"}}, 422, "has no part 'request'"),
        ({"json": []}, 422, "model_type"),
        ({"json": {"dialogues": []}}, 422, "too_short"),
        ({"json": {"dialogues": [{"turns": []}] * 5}}, 422, "has 5 dialogues; send at most 4"),
        ({"json": {"dialogues": [{"turns": []}], "criteria": "joint"}}, 422, "extra_forbidden"),
        ({"json": {"dialogues": [{"turns": []}], "subset": "wild"}}, 422, "value_error"),
        ({"json": {"dialogues": [{"turns": []}, {"turns": [1]}]}}, 422, '"dialogue":2'),
        ({"json": {"a": {"turns": []}, "b": 1}, "path": "/compare"}, 422, '"dialogue":2'),
        ({"data": b"0" * (2**20 + 1), "headers": AS_JSON}, 413, "Too Large"),
        ({"data": (b"0" * 2**16 for _ in range(17)), "headers": AS_JSON}, 413, "Too Large"),
    ],
)
def test_a_malformed_body_is_refused_with_its_reason(url, options, status, reason):
    try:
        answer = post(url, **options)
    except requests.ConnectionError:
        # The server answered and closed while the rest of the body was still under way.
        assert status == 413
        return
    assert answer.status_code == status and reason in answer.text


def test_without_the_key_nothing_is_scored_and_the_key_is_never_shown(url, caplog):
    for key in (None, "wrong", KEY[:-1], KEY + "0"):
        answer = post(url, key=key, json={})
        assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
    assert requests.get(f"{url}/metrics", timeout=60).status_code == 401
    with pytest.raises(ServiceError, match="status 401: the API key is wrong") as caught:
        RewardClient(url, "not-the-key").score([[]])
    shown = f"{caught.value} {SETTINGS!r} {RewardClient(url, KEY)!r} {caplog.text}"
    assert "not-the-key" not in shown and KEY not in shown


def test_the_server_reports_its_model_and_describes_its_requests(url):
    health = requests.get(f"{url}/health", timeout=60).json()
    assert (health["status"], health["model"], health["limits"]["max_dialogues"]) == ("ok", "tiny", 4)
    assert health["criteria"] == ["colloquialness", "joint", "modality"]
    assert health["calibration_subsets"] == ["scripted", "wild"]
    content = requests.get(f"{url}/openapi.json", timeout=60).json()
    wanted = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(content)))
    assert (
        {"ScoreRequest", "CompareRequest", "DialogueForm", "Problems"}
        <= wanted
        <= set(content["components"]["schemas"])
    )
    for path in ("/score", "/compare"):
        example = content["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert post(url, path, json=example).status_code == 200
    assert requests.get(url, timeout=60).url == f"{url}/docs"
    # The page needs no other server.
    linked = re.findall(r'(?:src|href)="([^"]+)"', requests.get(f"{url}/docs", timeout=60).text)
    assert linked and all(link.startswith("/") for link in linked)
    assert all(requests.get(url + link, timeout=60).status_code == 200 for link in linked)


@pytest.fixture(scope="module")
def keyless(scorer):
    settings = replace(SETTINGS, host="own.name", api_key=None)
    return TestClient(create_app(settings, scorer), base_url="http://127.0.0.1:8000")


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "LOCALHOST", "[::1]:8000", "own.name", socket.gethostname()])
def test_a_server_without_a_key_answers_to_its_addresses_and_names(keyless, host):
    for headers in ({"host": host}, {"host": host, "origin": f"http://{host}"}):
        assert keyless.get("/health", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.", "localhost@evil.example"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8001", ""])
def test_a_rebound_name_or_a_page_of_another_site_is_refused(keyless, host, origin):
    for headers in ({"host": host}, {"origin": origin}):
        assert keyless.get("/health", headers=headers).status_code == 403
        assert keyless.post("/score", headers=headers).status_code == 403


def test_a_remote_reward_is_the_reward_of_the_local_function(client, scorer, speak):
    prompts = [[{"role": "user", "content": f"question {k}"}] for k in (0, 0, 1, 1)]
    completions = [[{"role": "assistant", "content": text}] for text in ("yes", "no", "", "<|im_end|>")]
    local, remote = reward_fn(scorer, speak=speak), remote_reward_fn(client, speak=speak)
    expected = local(prompts, completions)
    assert expected[2:] == [None, None]
    assert remote(prompts, completions) == [pytest.approx(reward, abs=1e-5) for reward in expected]
    assert remote.failures == local.failures
    assert remote.__name__ == "sdiareward_joint"
    with pytest.raises(ValueError, match="criterion is 'tame'; the server's model has"):
        remote_reward_fn(client, criterion="tame")


def connect(url):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def begin_slow_body(url):
    """Begin a request whose body does not come."""
    connection = connect(url)
    head = f"POST /score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
    return connection


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
def test_headers_are_limited_in_size_and_number(url, headers, status):
    with connect(url) as connection:
        with suppress(ConnectionError):
            connection.sendall(HEAD + headers + b"\r\n")
        assert connection.recv(2**16).split()[1] == status


def test_a_request_that_is_never_finished_is_closed_however_slowly_it_comes(url):
    unread = b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
    connections = [connect(url) for _ in range(5)]
    for connection, begin in zip(connections, (b"", b"GE", HEAD, HEAD + b"\r\n" + HEAD, unread), strict=True):
        connection.sendall(begin)
    deadline = time.monotonic() + 3
    while connections:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        for connection in list(connections):
            try:
                connection.sendall(b"x")
            except ConnectionError:
                connections.remove(connection)
                connection.close()


def test_slow_clients_are_refused_and_those_beyond_the_limit_wait(url, client, dialogues, rewards):
    connections = [begin_slow_body(url) for _ in range(LIMITS.max_in_flight)]
    # The question itself is in flight too.
    while metric(url, "sdiareward_requests_in_flight") <= LIMITS.max_in_flight:
        time.sleep(0.01)
    answer = post(url, json={})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert requests.get(f"{url}/health", timeout=60).status_code == 200
    # The client waits and tries again until there is room.
    assert client.score(dialogues[:1]) == pytest.approx(rewards[:1], abs=1e-5)
    for connection in connections:
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")
        connection.close()


def test_a_server_that_ends_answers_accepted_requests_and_refuses_new_ones(scorer, dialogues, rewards):
    bodies = [{"dialogues": [encode_dialogue(each) for each in dialogues[k : k + 4]]} for k in (0, 4)]
    with serving(scorer) as (url, end), concurrent.futures.ThreadPoolExecutor(2) as pool:
        late = begin_slow_body(url)
        answers = [pool.submit(post, url, json=body) for body in bodies]
        while metric(url, "sdiareward_requests_in_flight") <= 3 and not all(each.done() for each in answers):
            time.sleep(0.005)
        end()
        found = [result["reward"] for each in answers for result in each.result(timeout=60).json()["results"]]
        assert found == pytest.approx(rewards, abs=1e-5)
        with pytest.raises(requests.ConnectionError):
            while True:
                requests.get(f"{url}/health", timeout=60)
        # What was begun before is still answered.
        assert late.recv(1000).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("text", ["short", "", "with a blank in the middle", "ungültig-in-einem-header"])
def test_a_key_that_is_no_secret_is_refused_without_repeating_it(text, monkeypatch):
    monkeypatch.setenv(API_KEY_ENV, text)
    with pytest.raises(ValueError, match="^the API key has") as caught:
        read_api_key()
    assert not text or text not in str(caught.value)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(API_KEY_ENV, raising=False)
    assert read_api_key() is None
    monkeypatch.setenv(API_KEY_ENV, "from-the-environment")
    assert read_api_key() == "from-the-environment"
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert read_api_key(tmp_path / "key") == KEY


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--port 99999", "--port"),
        ("--drain-timeout-s inf", "--drain-timeout-s"),
        ("--max-in-flight 0", "--max-in-flight"),
        ("--max-body-mib inf", "--max-body-mib"),
        ("--num-replicas 2 --max-replicas 1", "num_replicas is 2"),
        ("--api-key-file /nowhere/at/all", "'/nowhere/at/all'"),
        ("--host 192.0.2.1", "192.0.2.1, port 8000"),
        ("--model /nowhere/at/all", "/nowhere/at/all"),
    ],
)
def test_a_command_that_cannot_serve_ends_before_anything_is_started(options, named, capsys):
    assert main(["serve", "--model", "checkpoints/nano", *options.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sdiareward serve: error: ") and named in said
    assert said.count("\n") == 1


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_reason(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert main(["serve", "--model", str(tmp_path), "--port", "0", "--device", "cpu"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sdiareward serve: error: model {tmp_path}: cannot be loaded (model_type is 'bert'")
