"""What the client does with answers, and what it sends; a function answers in place of a server."""

import base64
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile


pytest.importorskip("requests", reason="no client: pip install 'sdiareward[serve]'")

from sdiareward.serving.client import RefusedError, RewardClient, ServiceError, encode_dialogue


def answer(words):
    """Answer `/score`: the length of a dialogue's words is its reward, `fail` makes the model fail."""
    if len(words) > 10_000:
        return 413, {"detail": "Content Too Large"}
    if words == "fail":
        return 500, {"detail": "the model failed on this request"}
    if words == "bad":
        return 422, {"detail": [{"msg": "is bad", "dialogue": 1}]}
    return 200, {"results": [{"reward": float(len(words)), "error": None}]}


@pytest.fixture
def client():
    def request(method, url, json, **_):
        status, content = answer(json["dialogues"][0]["turns"][0]["content"][0]["text"])
        return SimpleNamespace(status_code=status, text=str(content), json=lambda: content)

    client = RewardClient("http://nowhere")
    client._session = SimpleNamespace(request=request)
    return client


def words(*texts):
    return [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in texts]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("b " * 10_000, "status 413: Content Too Large; send shorter recordings"),
        ("fail", "answered with status 500: the model failed on this request"),
        ("bad", "is bad"),
    ],
)
def test_a_dialogue_that_is_refused_costs_itself_alone(client, text, reason):
    first, found, last = client.score_or_reason(words("a", text, "ccc"))
    assert (first, last) == (1, 3) and reason in found
    with pytest.raises(RefusedError if text == "bad" else ServiceError, match=reason):
        client.score(words("a", text))


@pytest.mark.parametrize(
    ("dialogue", "place"),
    [
        (None, "is missing"),
        (["x"], "turn 1: "),
        ([{"text": "a"}], "turn 1: "),
        ([{"role": "user", "content": 5}], "turn 1: "),
        ([{"role": "user", "audio": "nowhere.wav"}], "nowhere.wav: no such audio file"),
        ([{"role": "system", "audio": b"a"}], "turn 0: "),
    ],
)
def test_what_cannot_be_sent_costs_itself_alone(client, dialogue, place):
    first, reason, last = client.score_or_reason([*words("a"), dialogue, *words("ccc")])
    assert (first, last) == (1, 3) and place in reason
    with pytest.raises(RefusedError) as caught:
        client.score([*words("a"), dialogue])
    assert caught.value.problems[0]["dialogue"] == 2


@pytest.mark.parametrize("text", ["[]", "null", "3", "<html>", ""])
@pytest.mark.parametrize("status", [200, 404, 422])
def test_an_answer_that_is_no_object_is_the_services_fault(client, status, text):
    found = SimpleNamespace(status_code=status, text=text, json=lambda: json.loads(text))
    client._session = SimpleNamespace(request=lambda *_, **__: found)
    with pytest.raises(ServiceError, match=f"answered with status {status}"):
        client.health()


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(ServiceError, match=r"http://127.0.0.1:9/health does not answer .* `sdiareward serve`"):
        RewardClient("http://127.0.0.1:9", max_retries=0).health()


def encode(samples):
    """Return the bytes that are sent of samples."""
    dialogue = [{"role": "user", "audio": {"array": samples, "sampling_rate": 16_000}}]
    [item] = encode_dialogue(dialogue)["turns"][0]["content"]
    return base64.b64decode(item["audio"]["base64"])


def test_samples_are_sent_in_24_bits_or_as_they_are_if_flac_cannot_hold_them(make_tone):
    tone = make_tone(1.0)
    of_16_bits = np.rint(tone * 2**15).astype(np.float32) / 2**15
    for samples, tolerance, most in ((tone, 2.0**-24, 4), (of_16_bits, 0, 2)):
        data = encode(samples)
        found, rate = soundfile.read(io.BytesIO(data), dtype="float32")
        np.testing.assert_allclose(found, samples, rtol=0, atol=tolerance)
        assert rate == 16_000 and len(data) < tone.size * most
    for samples in (np.full(800, 1.5), np.full(800, np.nan), np.zeros(0)):
        found, _ = soundfile.read(io.BytesIO(encode(samples.astype(np.float32))))
        np.testing.assert_array_equal(found, samples)
