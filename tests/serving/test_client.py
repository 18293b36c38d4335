"""What the client does with answers, without a server's model: a small server says what it is told to."""

import base64
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import soundfile


pytest.importorskip("requests", reason="no client: pip install 'sdiareward[serve]'")

from sdiareward.serving.client import RefusedError, RewardClient, ServiceError, encode_dialogue


class Told:
    """Answer `/score` by the words of the dialogues: their length is the reward, `fail` makes the model fail."""

    reply = None

    def answer(self, path, body):
        if self.reply is not None:
            return self.reply
        if path == "/health":
            return 200, "{}"
        if len(body) > 10_000:
            return 413, '{"detail": "Content Too Large"}'
        words = [dialogue["turns"][0]["content"][0]["text"] for dialogue in json.loads(body)["dialogues"]]
        if "fail" in words:
            return 500, '{"detail": "the model failed on this request"}'
        bad = [{"msg": "is bad", "dialogue": k} for k, text in enumerate(words, start=1) if text == "bad"]
        if bad:
            return 422, json.dumps({"detail": bad})
        return 200, json.dumps({"results": [{"reward": float(len(text)), "error": None} for text in words]})


def spoken(letter, num_characters):
    """Return words of one letter; without spaces they would be taken for a recording in base64."""
    return (f"{letter} " * num_characters)[:num_characters]


@pytest.fixture
def told():
    told = Told()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            status, text = told.answer(self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    told.client = RewardClient(f"http://127.0.0.1:{server.server_port}", max_retries=0)
    yield told
    server.shutdown()
    server.server_close()


def words(*texts):
    return [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in texts]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (spoken("b", 20_000), "status 413: Content Too Large; send shorter recordings"),
        ("fail", "answered with status 500: the model failed on this request"),
        ("bad", "is bad"),
    ],
)
def test_a_dialogue_that_is_refused_costs_itself_alone(told, text, reason):
    first, found, last = told.client.score_or_reason(words("a", text, "ccc"))
    assert (first, last) == (1, 3) and reason in found
    with pytest.raises(RefusedError if text == "bad" else ServiceError, match=reason):
        told.client.score(words("a", text))


@pytest.mark.parametrize(
    ("dialogue", "place"),
    [
        (None, "is missing"),
        (["x"], "turn 1: "),
        ([{"text": "a"}], "turn 1: "),
        ([{"role": "tool", "text": "a"}], "turn 1: "),
        ([{"role": "user", "content": 5}], "turn 1: "),
        ([{"role": "user", "text": "a\ud83d"}], "turn 1: "),
        ([{"role": "system", "audio": b"a"}], "turn 0: "),
    ],
)
def test_what_no_request_can_hold_costs_itself_alone(told, dialogue, place):
    first, reason, last = told.client.score_or_reason([*words("a"), dialogue, *words("ccc")])
    assert (first, last) == (1, 3)
    assert place in reason
    with pytest.raises(RefusedError) as caught:
        told.client.score([*words("a"), dialogue])
    assert caught.value.problems[0]["dialogue"] == 2


@pytest.mark.parametrize("text", ["[]", "null", "3", "<html>", ""])
@pytest.mark.parametrize("status", [200, 404, 422])
def test_an_answer_that_is_no_object_is_the_services_fault(told, status, text):
    told.reply = (status, text)
    with pytest.raises(ServiceError, match=f"answered with status {status}"):
        told.client.health()


def encode(samples):
    """Return the bytes that are sent of samples."""
    dialogue = [{"role": "user", "audio": {"array": samples, "sampling_rate": 16_000}}]
    (item,) = encode_dialogue(dialogue)["turns"][0]["content"]
    return base64.b64decode(item["audio"]["base64"])


def test_samples_are_sent_in_as_many_bits_as_the_model_sees(make_tone):
    tone = make_tone(1.0)
    data = encode(tone)
    found, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    assert rate == 16_000 and len(data) < tone.size * 4
    np.testing.assert_allclose(found, tone, rtol=0, atol=2.0**-24)
    of_16_bits = np.rint(tone * 2**15).astype(np.float32) / 2**15
    data = encode(of_16_bits)
    np.testing.assert_array_equal(soundfile.read(io.BytesIO(data), dtype="float32")[0], of_16_bits)
    assert len(data) < tone.size * 2


@pytest.mark.parametrize(
    "samples", [np.full(800, 1.5), np.full(800, np.nan), np.zeros(0)], ids=["loud", "nan", "none"]
)
def test_samples_that_flac_cannot_hold_are_sent_as_they_are(samples):
    found, _ = soundfile.read(io.BytesIO(encode(samples.astype(np.float32))))
    np.testing.assert_array_equal(found, samples)
