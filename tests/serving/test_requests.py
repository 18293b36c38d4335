"""What a server refuses before any model sees it: forms, recordings, keys."""

import asyncio
import base64
import io
import json
import socket
import unicodedata

import numpy as np
import pytest
import soundfile


pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")

from starlette.exceptions import HTTPException
from starlette.requests import Request

from sdiareward.chat_sdiareward import ROLES, DialogueError
from sdiareward.cli import main
from sdiareward.serving.bodies import BadRequestError, Body, read_body, read_dialogue_form
from sdiareward.serving.forms import Dialogue, ScoreRequest
from sdiareward.serving.settings import API_KEY_ENV, ApiKey, Limits, read_api_key


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
    return read_dialogue_form(dialogue, files or {}, limits or Limits(), **options).to_messages()


def sound(recording):
    return {"type": "audio", "audio": recording}


def two_turns(recording, **changes):
    assistant = {"role": "assistant", "text": "hi", "audio": recording, **changes}
    return [{"role": "user", "audio": recording}, assistant]


def test_a_dialogue_becomes_messages_with_the_words_first_or_in_the_order_of_its_content(audio):
    messages = read(dialogue_of(*two_turns(audio)))
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert [item["type"] for item in messages[1]["content"]] == ["text", "audio"]
    assert messages[1]["content"][1]["audio"]["bytes"] == base64.b64decode(audio["base64"])
    turn = {"role": "assistant", "content": [sound(audio), {"type": "text", "text": "hi"}]}
    messages = read(dialogue_of({"role": "user", "audio": audio}, turn))
    assert [item["type"] for item in messages[1]["content"]] == ["audio", "text"]


@pytest.mark.parametrize("form", ["{}", "data:audio/wav;base64,{}"])
def test_base64_may_be_wrapped_and_a_data_url(audio, form):
    data = base64.b64decode(audio["base64"])
    text = form.format(base64.encodebytes(data).decode())
    assert read(dialogue_of(*two_turns({"base64": text})))[1]["content"][1]["audio"]["bytes"] == data


@pytest.fixture(scope="module")
def long(make_tone):
    return in_base64(encoded(make_tone(2.0)))


SECRET = "A" * 60
# By what is wrong: turns made of a short and of a long recording, limits, and the number of the turn that is named.
BAD_DIALOGUES = {
    "base64": (lambda a, _: two_turns(a, audio={"base64": "!!!"}), {}, 2),
    "no audio file": (lambda a, _: two_turns(a, audio=in_base64(b"no audio at all")), {}, 2),
    "name of a recording": (lambda a, _: two_turns(a, text="q/d01.wav"), {}, 2),
    "missing part": (lambda a, _: two_turns(a, audio={"file": "missing"}), {}, 2),
    "no recording": (lambda a, _: two_turns(a, audio=None), {}, 2),
    "empty": (lambda a, _: two_turns(a, audio=None, text=None), {}, 2),
    "two users": (lambda a, _: two_turns(a, role="user"), {}, 2),
    "ends with the user": (lambda a, _: two_turns(a)[:1], {}, None),
    "instructed": (lambda a, _: [{"role": "system", "text": "judge"}, *two_turns(a, audio=None)], {}, 2),
    "long turn": (lambda _, long: two_turns(long), {"max_turn_s": 1.5}, 1),
    "long together": (lambda _, long: [{"role": role, "content": [sound(long)] * 31} for role in ROLES], {}, 1),
    "many recordings": (lambda a, _: [{"role": role, "content": [sound(a)] * 600} for role in ROLES], {}, 2),
    "role": (lambda a, _: two_turns(a, role=SECRET), {}, 2),
    "two ways": (lambda a, _: two_turns(a, audio={**a, "file": "a"}), {}, 2),
    "web": (lambda a, _: two_turns(a, audio={"url": "http://169.254.169.254/"}), {}, 2),
    "disk": (lambda a, _: two_turns(a, audio="/etc/passwd"), {}, 2),
    "many turns, before they are decoded": (lambda *_: two_turns({"base64": "AAAA"}) * 2, {"max_turns": 2}, None),
    "memory": (lambda *_: two_turns(in_base64(encoded(np.zeros((4_000_000, 8)), 655_350, "FLAC"))), {}, 1),
}


@pytest.mark.parametrize(("make", "limits", "turn"), BAD_DIALOGUES.values(), ids=BAD_DIALOGUES)
def test_a_dialogue_that_cannot_be_scored_is_refused_with_its_turn(make, limits, turn, audio, long):
    with pytest.raises(DialogueError) as caught:
        read(dialogue_of(*make(audio, long)), Limits(**limits))
    assert caught.value.turn == turn


def test_what_is_just_within_the_limits_is_read(audio, long):
    assert read(dialogue_of(*two_turns(long)), Limits(max_turn_s=2.0, max_turns=2))
    several = [{"role": role, "content": [sound(long)] * 30} for role in ROLES]
    assert len(read(dialogue_of(*several))[0]["content"]) == 30
    answer = {"role": "assistant", "text": "hi"}
    instructed = dialogue_of({"role": "system", "text": "judge"}, {"role": "user", "audio": audio}, answer)
    messages = read(instructed, require_audio=False)
    assert messages[2]["content"] == [{"type": "text", "text": "hi"}]


def problems_of(text):
    with pytest.raises(BadRequestError) as caught:
        Body(text.encode()).parse(ScoreRequest)
    return caught.value.problems


def with_turns(*dialogues):
    return {"dialogues": [{"turns": turns} for turns in dialogues]}


# Requests, and the type and dialogue of the problem that is named.
BAD_REQUESTS = {
    "no json": ("not json", ("json_invalid", None)),
    "deep": ("[" * 10_000, ("json_invalid", None)),
    "list": ("[]", ("model_type", None)),
    "no dialogues": ({"dialogues": []}, ("too_short", None)),
    "misspelt": ({"dialogues": [{"turns": []}], "criteria": "joint"}, ("extra_forbidden", None)),
    "subset": ({"dialogues": [{"turns": []}], "subset": "wild"}, ("value_error", None)),
    "turn": (with_turns([], [{"role": "user"}, 1]), ("dict_type", 2)),
}


@pytest.mark.parametrize(("request_body", "expected"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_malformed_request_is_explained(request_body, expected):
    (problem,) = problems_of(request_body if isinstance(request_body, str) else json.dumps(request_body))
    assert (problem.type, problem.dialogue) == expected


def test_of_very_many_problems_the_first_are_listed_and_the_others_counted():
    problems = problems_of('{"dialogues": [{"turns": [' + "1," * 299 + "1]}]}")
    assert len(problems) == 101
    assert problems[100].msg == "200 more problems are not listed; fix these first."


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


@pytest.mark.parametrize("sent", [{"coding": "gzip"}, {"coding": "deflate, br"}, {"options": "; charset=punycode"}])
def test_a_body_in_a_coding_or_another_charset_than_utf8_is_refused_unread(sent):
    assert read_parts("request", "user", options="; charset=UTF-8", coding="identity").files == {"user": b"{}"}
    with pytest.raises(HTTPException, match="415"):
        read_parts("request", **sent)


def test_a_part_is_found_under_its_name_in_either_form_of_unicode(audio):
    composed, decomposed = (unicodedata.normalize(form, "gespräch") for form in ("NFC", "NFD"))
    files = dict.fromkeys(read_parts("request", decomposed).files, base64.b64decode(audio["base64"]))
    for name in (composed, decomposed):
        assert len(read(dialogue_of(*two_turns({"file": name})), files=files)) == 2


@pytest.mark.parametrize("name", ["user", "request"])
def test_two_parts_of_one_name_are_refused(name):
    assert read_parts("request", "user").files == {"user": b"{}"}
    with pytest.raises(BadRequestError, match=f"has two parts '{name}'; give each its own name"):
        read_parts("request", "user", name)


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
    ("options", "named"),
    [
        ("--port 99999", "--port"),
        ("--drain-timeout-s inf", "drain_timeout_s is inf"),
        ("--max-in-flight 0", "max_in_flight is 0"),
        ("--max-body-mib inf", "max_body_mib is inf"),
        ("--request-timeout-s inf", "request_timeout_s is inf"),
        ("--num-replicas 2 --max-replicas 1", "at most 1 replicas"),
        ("--num-replicas 0", "--num-replicas"),
        ("--api-key-file /nowhere/at/all", "'/nowhere/at/all'"),
        ("--host 192.0.2.1", "192.0.2.1, port 8000"),
    ],
)
def test_a_command_that_cannot_serve_ends_before_anything_is_started(options, named, capsys):
    assert main(["serve", "--model", "checkpoints/nano", *options.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sdiareward serve: error: ") and named in said
    assert said.count("\n") == 1


def test_a_port_that_is_taken_is_named(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--model", "checkpoints/nano", "--port", port]) == 2
    assert f"port {port} (Address already in use)" in capsys.readouterr().err
