"""What a server refuses before any model sees it: forms, recordings, keys."""

import asyncio
import base64
import io
import json
import socket
import tempfile

import numpy as np
import pytest
import soundfile


pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")

from starlette.exceptions import HTTPException
from starlette.requests import Request

from sdiareward.chat_sdiareward import MAX_TURNS, DialogueError
from sdiareward.cli import main
from sdiareward.serving.bodies import BadRequestError, Body, read_body
from sdiareward.serving.cluster import UnavailableError
from sdiareward.serving.forms import Dialogue, ScoreRequest
from sdiareward.serving.inputs import read_dialogue_form
from sdiareward.serving.settings import API_KEY_ENV, ApiKey, Limits, Replicas, read_api_key


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


def read(dialogue, limits=None, *, files=None, **options):
    return read_dialogue_form(dialogue, files or {}, limits or Limits(), **options)


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
    with pytest.raises(DialogueError) as caught:
        read(dialogue_of(*two_turns(audio, **change)))
    assert str(caught.value).startswith(reason)
    assert caught.value.turn == turn


def test_the_dialogue_must_end_with_the_assistant(audio):
    with pytest.raises(DialogueError, match="^has 1 turns and ends with the user"):
        read(dialogue_of(*two_turns(audio)[:1]))


def test_words_alone_are_judged_where_that_is_asked_for(audio):
    messages = read(dialogue_of(*two_turns(audio, audio=None)), require_audio=False)
    assert messages[1]["content"] == [{"type": "text", "text": "hi"}]


def test_an_instruction_is_text_and_not_counted_as_a_turn(audio):
    system = {"role": "system", "text": "judge"}
    with pytest.raises(DialogueError, match="^turn 2: has no audio") as caught:
        read(dialogue_of(system, *two_turns(audio, audio=None)))
    assert caught.value.turn == 2
    assert len(read(dialogue_of(system, *two_turns(audio)))) == 3


def test_a_turn_longer_than_the_limit_is_refused(make_tone):
    audio = in_base64(encoded(make_tone(2.0)))
    with pytest.raises(DialogueError, match=r"^turn 1: lasts 2\.0 s; a turn lasts at most 1\.5 s"):
        read(dialogue_of(*two_turns(audio)), Limits(max_turn_s=1.5))
    assert read(dialogue_of(*two_turns(audio)), Limits(max_turn_s=2.0))


def test_several_recordings_of_a_turn_are_as_long_as_one(make_tone):
    item = {"type": "audio", "audio": in_base64(encoded(make_tone(2.0)))}

    def turns(num_items):
        return [{"role": role, "content": [item] * num_items} for role in ("user", "assistant")]

    assert len(read(dialogue_of(*turns(30)))[0]["content"]) == 30
    with pytest.raises(DialogueError, match="^turn 1: its recordings last over 60 s together, the most of a turn"):
        read(dialogue_of(*turns(31)))
    with pytest.raises(DialogueError, match="^turn 1: has 65 texts and recordings; at most 64 are accepted"):
        read(dialogue_of({"role": "user", "content": [{"type": "text", "text": "a"}] * 65}, *turns(1)[1:]))


def test_more_turns_than_the_limit_are_refused(audio):
    with pytest.raises(DialogueError, match="^has 4 turns; this server scores at most 2"):
        read(dialogue_of(*two_turns(audio) * 2), Limits(max_turns=2))


def test_a_dialogue_of_too_many_turns_is_refused_before_its_recordings_are_read():
    undecodable = dialogue_of(*two_turns({"base64": "AAAA"}) * 2)
    with pytest.raises(DialogueError, match="^has 4 turns"):
        read(undecodable, Limits(max_turns=2))


def test_a_few_bytes_that_would_fill_the_memory_are_refused():
    bomb = encoded(np.zeros((4_000_000, 8), np.float32), 655_350, "FLAC")
    assert len(bomb) < 100_000
    with pytest.raises(DialogueError, match=r"^turn 1: has 8 channels at 655350 Hz"):
        read(dialogue_of(*two_turns(in_base64(bomb))))


def problems_of(text):
    with pytest.raises(BadRequestError) as caught:
        Body(text.encode()).parse(ScoreRequest, Limits())
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ('{"dialogues": []}', "List should have at least 1 item"),
        ('{"dialogues": [{"turns": []}], "criteria": "joint"}', "Extra inputs are not permitted"),
        ('{"dialogues": [{"turns": []}], "subset": "wild"}', "subset is for calibrated values"),
        ("[" * 10_000, "Invalid JSON"),
    ],
)
def test_a_malformed_request_is_explained(text, message):
    assert any(message in problem.msg for problem in problems_of(text))


@pytest.mark.parametrize("values", ["1" + ",1" * 10**6, "[[[1]]]," * 10**5 + "1", "{}," * 10**5 + "1"])
def test_more_values_than_dialogues_need_are_refused_before_they_are_parsed(values, monkeypatch):
    monkeypatch.setattr(ScoreRequest, "model_validate_json", None)
    (problem,) = problems_of(f'{{"dialogues": [{{"turns": [{values}]}}]}}')
    assert problem.msg.endswith("send at most 65536, with fewer dialogues.")


def test_of_very_many_problems_the_first_are_listed_and_the_others_counted():
    problems = problems_of('{"dialogues": [{"turns": [' + "1," * 299 + "1]}]}")
    assert len(problems) == 101
    assert problems[99].turn == 100
    assert problems[100].msg == "200 more problems are not listed; fix these first."


def test_a_request_of_the_largest_size_has_few_enough_values():
    item = {"type": "audio", "audio": {"base64": "AA"}}
    turn = {"role": "user", "content": [{"type": "text", "text": "one, two, three, and so on"}, item]}
    request = {"dialogues": [{"turns": [turn] * MAX_TURNS}] * Limits().max_dialogues}
    assert len(Body(json.dumps(request).encode()).parse(ScoreRequest, Limits()).dialogues) == 64


def read_parts(*names, options="", content="{}", coding=None):
    """Read a multipart body with a file under each name."""
    head = 'Content-Disposition: form-data; name="{0}"; filename="{0}"'
    lines = [line for name in names for line in ("--b", head.format(name), "", content)]
    body = "\r\n".join([*lines, "--b--", ""]).encode()

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    kind = f"multipart/form-data; boundary=b{options}".encode()
    codings = [(b"content-encoding", coding.encode())] if coding else []
    scope = {"type": "http", "headers": [(b"content-type", kind), *codings]}
    return asyncio.run(read_body(Request(scope, receive), Limits()))


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate, gzip"])
def test_a_body_in_a_coding_is_refused_unread(coding):
    assert read_parts("request", coding="identity").text == b"{}"
    with pytest.raises(HTTPException, match=f"415: content encoding is '{coding}'; send the body as it is"):
        read_parts("request", coding=coding)


@pytest.mark.parametrize("name", ["user", "request"])
def test_two_parts_of_one_name_are_refused(name):
    assert read_parts("request", "user").files == {"user": b"{}"}
    with pytest.raises(BadRequestError, match=f"has two parts '{name}'; give each its own name"):
        read_parts("request", "user", name)


def test_a_disk_that_takes_no_large_recording_is_said_and_may_be_asked_again(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert read_parts("request", content="x" * 1000).text == b"x" * 1000
    with pytest.raises(UnavailableError, match=r"disk cannot take what was sent \(No such file or directory\)"):
        read_parts("request", content="x" * 2**21)


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", '"UTF-16"', "undefined"])
def test_a_multipart_body_in_another_charset_than_utf8_is_refused_unread(charset):
    assert read_parts("request", "user", options="; charset=UTF-8").files == {"user": b"{}"}
    with pytest.raises(HTTPException, match="415: charset is .*; send UTF-8"):
        read_parts("request", options=f"; charset={charset}")


def test_a_malformed_turn_is_named_and_what_was_sent_is_not_repeated():
    secret = "A" * 1000
    text = json.dumps({"dialogues": [{"turns": []}, {"turns": [{"role": "user"}, {"role": secret}]}]})
    (problem,) = problems_of(text)
    assert (problem.dialogue, problem.turn) == (2, 2)
    assert problem.loc == ["body", "dialogues", 1, "turns", 1, "role"]
    assert secret not in problem.model_dump_json()


def test_an_instruction_is_not_counted_in_a_malformed_dialogue_either():
    turns = [{"role": "system", "text": "Judge."}, {"role": "user", "audio": {}}]
    (problem,) = problems_of(json.dumps({"dialogues": [{"turns": turns}]}))
    assert (problem.dialogue, problem.turn) == (1, 1)
    (problem,) = problems_of(json.dumps({"dialogues": [{"turns": [{"role": "system", "audio": {"base64": "AA"}}]}]}))
    assert (problem.dialogue, problem.turn) == (1, None)


def test_a_recording_is_given_in_one_way_only():
    (problem,) = problems_of('{"dialogues": [{"turns": [{"role": "user", "audio": {"base64": "AA", "file": "a"}}]}]}')
    assert "found base64, file; give either base64 or file" in problem.msg


@pytest.mark.parametrize("address", ["http://169.254.169.254/", "https://example.org/a.wav", "file:///etc/passwd"])
def test_an_address_in_the_place_of_a_recording_is_refused(address):
    turn = {"role": "user", "audio": {"url": address}}
    problems = problems_of(json.dumps({"dialogues": [{"turns": [turn]}]}))
    assert [(problem.type, problem.turn) for problem in problems] == [("extra_forbidden", 1)]


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
        (lambda: Replicas(batch_wait_s=-0.1), "batch_wait_s is -0.1; give 0 or more"),
        (lambda: Replicas(num_gpus=float("nan")), "num_gpus is nan; give 0 or more"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--port", "99999"], "port is 99999; give one up to 65535"),
        (["--drain-timeout-s", "inf"], "drain_timeout_s is inf; give a number of seconds"),
        (["--max-in-flight", "0"], "max_in_flight is 0; give a positive, finite number."),
        (["--max-body-mib", "inf"], "--max-body-mib is inf; give a positive, finite number."),
        (["--request-timeout-s", "inf"], "request_timeout_s is inf; give a positive, finite number."),
        (["--num-replicas", "2", "--max-replicas", "1"], "at most 1 replicas but at least 2 are asked for"),
        (["--api-key-file", "/nowhere/at/all"], "No such file or directory: '/nowhere/at/all'"),
        (["--host", "192.0.2.1"], "cannot listen at 192.0.2.1, port 8000"),
    ],
)
def test_a_command_that_cannot_serve_ends_before_anything_is_started(options, reason, capsys):
    assert main(["serve", "--model", "checkpoints/nano", *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sdiareward serve: error: ") and reason in said
    assert said.count("\n") == 1


def test_a_port_that_is_taken_is_named(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--model", "checkpoints/nano", "--port", port]) == 2
    assert f"port {port} (Address already in use)" in capsys.readouterr().err
