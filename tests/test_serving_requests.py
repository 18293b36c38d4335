"""What a server refuses before any model sees it: forms, recordings, addresses, keys."""

import asyncio
import base64
import contextlib
import io
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import soundfile


pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")

from sdiareward.cli import main
from sdiareward.serving.bodies import BadRequestError, Body
from sdiareward.serving.forms import Dialogue, ScoreRequest
from sdiareward.serving.inputs import Recordings, TurnError, read_dialogue_form
from sdiareward.serving.settings import API_KEY_ENV, ApiKey, Limits, Replicas, read_api_key
from sdiareward.serving.urls import UrlError, UrlFetcher, parse_prefixes, require_public


KEY = "0123456789abcdef0123"


def encoded(array, sampling_rate=16_000, kind="WAV"):
    buffer = io.BytesIO()
    soundfile.write(buffer, array, sampling_rate, format=kind)
    return buffer.getvalue()


def in_base64(data):
    return {"base64": base64.b64encode(data).decode()}


@pytest.fixture(scope="module")
def audio(make_tone):
    return in_base64(encoded(make_tone(0.3)))


def dialogue_of(*turns):
    return Dialogue.model_validate({"turns": list(turns)})


def read(dialogue, limits=None, *, files=None, fetched=None, **options):
    return read_dialogue_form(dialogue, Recordings(files or {}, fetched or {}), limits or Limits(), **options)


def two_turns(recording, **changes):
    assistant = {"role": "assistant", "text": "hi", "audio": recording, **changes}
    return [{"role": "user", "audio": recording}, assistant]


def test_a_dialogue_becomes_messages_with_the_words_before_the_recording(audio):
    messages = read(dialogue_of(*two_turns(audio)))
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert [item["type"] for item in messages[1]["content"]] == ["text", "audio"]
    assert messages[1]["content"][1]["audio"]["bytes"] == base64.b64decode(audio["base64"])


def test_content_keeps_its_own_order(audio):
    items = [{"type": "audio", "audio": audio}, {"type": "text", "text": "hi"}]
    turn = {"role": "assistant", "content": items}
    messages = read(dialogue_of({"role": "user", "audio": audio}, turn))
    assert [item["type"] for item in messages[1]["content"]] == ["audio", "text"]


@pytest.mark.parametrize(
    ("change", "turn", "reason"),
    [
        ({"audio": {"base64": "!!!"}}, 2, "turn 2: its audio is not base64"),
        ({"audio": in_base64(b"no audio at all")}, 2, "turn 2: cannot be decoded as audio"),
        ({"audio": {"file": "missing"}}, 2, "turn 2: there is no file part 'missing'; the request has none."),
        ({"audio": None}, 2, "turn 2: has no audio"),
        ({"audio": None, "text": None}, 2, "turn 2: is empty"),
        ({"role": "user"}, 2, "turn 2: two user turns in a row"),
    ],
)
def test_a_turn_that_cannot_be_judged_is_named(audio, change, turn, reason):
    with pytest.raises(TurnError) as caught:
        read(dialogue_of(*two_turns(audio, **change)))
    assert str(caught.value).startswith(reason)
    assert caught.value.turn == turn


def test_the_dialogue_must_end_with_the_assistant(audio):
    with pytest.raises(TurnError, match="^has 1 turns and ends with the user"):
        read(dialogue_of(*two_turns(audio)[:1]))


def test_words_alone_are_judged_where_that_is_asked_for(audio):
    messages = read(dialogue_of(*two_turns(audio, audio=None)), require_audio=False)
    assert messages[1]["content"] == [{"type": "text", "text": "hi"}]


def test_an_instruction_is_text_and_not_counted_as_a_turn(audio):
    system = {"role": "system", "text": "judge"}
    with pytest.raises(TurnError, match="^turn 2: has no audio") as caught:
        read(dialogue_of(system, *two_turns(audio, audio=None)))
    assert caught.value.turn == 2
    assert len(read(dialogue_of(system, *two_turns(audio)))) == 3


def test_a_turn_longer_than_the_limit_is_refused(make_tone):
    audio = in_base64(encoded(make_tone(2.0)))
    with pytest.raises(TurnError, match=r"^turn 1: lasts 2\.0 s; a turn lasts at most 1\.5 s"):
        read(dialogue_of(*two_turns(audio)), Limits(max_turn_s=1.5))
    assert read(dialogue_of(*two_turns(audio)), Limits(max_turn_s=2.0))


def test_more_turns_than_the_limit_are_refused(audio):
    with pytest.raises(TurnError, match="^has 4 turns; this server judges at most 2"):
        read(dialogue_of(*two_turns(audio) * 2), Limits(max_turns=2))


def test_a_few_bytes_that_would_fill_the_memory_are_refused():
    bomb = encoded(np.zeros((4_000_000, 8), np.float32), 655_350, "FLAC")
    assert len(bomb) < 100_000
    with pytest.raises(TurnError, match=r"^turn 1: has 8 channels at 655350 Hz"):
        read(dialogue_of(*two_turns(in_base64(bomb))))


def problems_of(text):
    with pytest.raises(BadRequestError) as caught:
        Body(text.encode()).parse(ScoreRequest)
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ('{"dialogues": []}', "List should have at least 1 item"),
        ('{"dialogues": [{"turns": []}], "criteria": "joint"}', "Extra inputs are not permitted"),
        ('{"dialogues": [{"turns": []}], "subset": "wild"}', "subset is for calibrated values"),
        ("[" * 100_000, "Invalid JSON"),
    ],
)
def test_a_malformed_request_is_explained(text, message):
    assert any(message in problem.msg for problem in problems_of(text))


def test_a_malformed_turn_is_named_and_what_was_sent_is_not_repeated():
    secret = "A" * 1000
    text = json.dumps({"dialogues": [{"turns": []}, {"turns": [{"role": "user"}, {"role": secret}]}]})
    (problem,) = problems_of(text)
    assert (problem.dialogue, problem.turn) == (2, 2)
    assert problem.loc == ["body", "dialogues", 1, "turns", 1, "role"]
    assert secret not in problem.model_dump_json()


def test_a_recording_is_given_in_one_way_only():
    (problem,) = problems_of(
        '{"dialogues": [{"turns": [{"role": "user", "audio": {"base64": "AA", "url": "http://x/"}}]}]}'
    )
    assert "found base64, url; give exactly one" in problem.msg


def test_a_key_is_compared_whole_and_never_shown():
    key = ApiKey(KEY)
    assert key.matches(KEY)
    assert not any(key.matches(other) for other in (KEY[:-1], KEY + "0", "", "\udcff"))
    assert KEY not in f"{key!r} {key}"


@pytest.mark.parametrize("text", ["short", "", "with a blank in the middle", "ungültig-in-einem-header"])
def test_a_key_that_is_no_secret_is_refused_without_repeating_it(text):
    with pytest.raises(ValueError, match="^the API key has") as caught:
        ApiKey(text)
    assert not text or text not in str(caught.value)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(API_KEY_ENV, raising=False)
    assert read_api_key() is None
    monkeypatch.setenv(API_KEY_ENV, "from-the-environment")
    assert read_api_key().matches("from-the-environment")
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert read_api_key(tmp_path / "key").matches(KEY)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limits(max_in_flight=0), "max_in_flight is 0"),
        (lambda: Limits(body_timeout_s=-1.0), "body_timeout_s is -1.0"),
        (lambda: Replicas(max_batch_size=0), "max_batch_size is 0"),
        (lambda: Replicas(minimum=3, maximum=2), "at most 2 replicas but at least 3"),
        (lambda: Replicas(batch_wait_s=-0.1), "neither is negative"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


PREFIX = "https://audio.example.org/open/"


def fetcher(*prefixes, max_bytes=1000, timeout_s=5.0):
    return UrlFetcher(prefixes, max_bytes, timeout_s)


def test_without_a_list_nothing_is_fetched():
    with pytest.raises(UrlError, match="^this server fetches no addresses"):
        fetcher().require_allowed(PREFIX)


@pytest.mark.parametrize("address", [f"{PREFIX}a.wav", f"{PREFIX}deep/a%20b.wav?x=1", PREFIX])
def test_addresses_below_a_prefix_are_allowed(address):
    assert str(fetcher(PREFIX).require_allowed(address)) == address


def test_the_port_of_the_scheme_may_be_written_out():
    address = "https://audio.example.org:443/open/a.wav"
    assert fetcher(PREFIX).require_allowed(address).path == "/open/a.wav"


@pytest.mark.parametrize(
    "address",
    [
        "http://audio.example.org/open/a.wav",
        "https://audio.example.org:8443/open/a.wav",
        "https://audio.example.org/opened/a.wav",
        "https://audio.example.org/open/../secret.wav",
        "https://audio.example.org/open/%2e%2e/secret.wav",
        "https://audio.example.org/open/%252e%252e/secret.wav",
        "https://audio.example.org/open/..\\secret.wav",
        "https://audio.example.org/open/..%5csecret.wav",
        "https://audio.example.org@evil.example/open/a.wav",
        "https://user@audio.example.org/open/a.wav",
        "https://audio.example.org.evil.example/open/a.wav",
        "https://evil.example/https://audio.example.org/open/a.wav",
        "https://audio.example.org/open/\na.wav",
        "//audio.example.org/open/a.wav",
        "file:///etc/passwd",
        "ftp://audio.example.org/open/a.wav",
        "https://[::1/open/",
        "",
    ],
)
def test_every_other_address_is_refused(address):
    with pytest.raises(UrlError, match="not among those"):
        fetcher(PREFIX).require_allowed(address)


@pytest.mark.parametrize("prefix", ["audio.example.org", "file:///etc", "https://u:p@x/", "https://x/?a=1", ""])
def test_a_prefix_that_is_no_address_is_refused(prefix):
    with pytest.raises(ValueError, match="is no prefix of addresses"):
        parse_prefixes([prefix])


PRIVATE = "127.0.0.1 10.1.2.3 192.168.0.1 169.254.169.254 0.0.0.0 ::1 fe80::1%eth0 ::ffff:10.0.0.1"


@pytest.mark.parametrize("host", PRIVATE.split())
def test_private_addresses_are_not_public(host):
    with pytest.raises(UrlError, match="private address"):
        require_public(["8.8.8.8", host])


def test_public_addresses_are_public():
    require_public(["8.8.8.8", "2001:4860:4860::8888"])


@pytest.fixture(scope="module")
def files():
    """Return the address of a real server of files, redirects and silence."""
    finished = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            if self.path == "/open/slow":
                finished.wait(5)
            redirects = {
                "/open/in": "/open/a",
                "/open/out": "/secret",
                "/open/away": "http://127.0.0.2/open/a",
                "/open/loop": "/open/loop",
            }
            if self.path in redirects:
                self.send_response(302)
                self.send_header("Location", redirects[self.path])
                self.end_headers()
                return
            sizes = {"/open/a": 10, "/open/large": 1001, "/secret": 10}
            self.send_response(200 if self.path in sizes else 404)
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(b"x" * sizes.get(self.path, 0))

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    finished.set()
    server.shutdown()
    server.server_close()


def fetch(address, prefix, **options):
    return asyncio.run(fetcher(prefix, **options).fetch_all([address]))[address]


@pytest.mark.parametrize("name", ["a", "in"])
def test_a_recording_is_fetched_and_a_redirect_on_the_list_followed(files, name):
    assert fetch(f"http://{files}/open/{name}", f"http://{files}/open/") == b"x" * 10


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("out", "its address is not among those"),
        ("away", "its address is not among those"),
        ("loop", "redirects more than 3 times"),
        ("large", "gives more than 1000 bytes"),
        ("missing", "answered with status 404"),
    ],
)
def test_an_address_that_gives_nothing_good_says_why(files, name, reason):
    assert reason in fetch(f"http://{files}/open/{name}", f"http://{files}/open/")


def test_an_address_that_is_slow_is_given_up(files):
    reason = fetch(f"http://{files}/open/slow", f"http://{files}/open/", timeout_s=0.2)
    assert reason == "its address did not answer within 0.2 s."


def test_a_name_that_stands_for_this_machine_is_not_reached(files):
    address = f"http://localhost:{files.rpartition(':')[2]}/open/a"
    assert "its name stands for a private address" in fetch(address, address.removesuffix("a"))


def test_a_server_that_is_not_there_is_a_reason():
    assert fetch("http://127.0.0.1:9/a", "http://127.0.0.1:9/") == "its address cannot be fetched (no answer)."


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--max-in-flight", "0"], "max_in_flight is 0; give a positive number."),
        (["--num-replicas", "2", "--max-replicas", "1"], "at most 1 replicas but at least 2 are asked for"),
        (["--allow-url-prefix", "audio.example.org"], "'audio.example.org' is no prefix of addresses"),
        (["--api-key-file", "/nowhere/at/all"], "No such file or directory: '/nowhere/at/all'"),
        (["--host", "192.0.2.1"], "cannot listen at 192.0.2.1, port 8000"),
    ],
)
def test_a_command_that_cannot_serve_ends_before_anything_is_started(options, reason, capsys):
    assert main(["serve", "--model", "checkpoints/nano", *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sdiareward: error: ") and reason in said
    assert said.count("\n") == 1


def test_a_port_that_is_taken_is_named(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--model", "checkpoints/nano", "--port", port]) == 2
    assert f"port {port} (Address already in use)" in capsys.readouterr().err
