import json
import signal
import sqlite3
import subprocess
import sys
import time
import traceback

import pydantic
import pytest
from support import forked
from support.chat_server import ChatServer, Reply

from sdiareward.common.llm import ChatClient, ChatError, ChatSettings, EndpointError, parse_json


QUESTION = [{"role": "user", "content": "What is six times seven? JSON only."}]
KEY = "sk-very-secret-0123456789"


def openai_style(name, message="Unsupported parameter.", **more):
    return {"error": {"message": message, "type": "invalid_request_error", "param": name, **more}}


def number(answer):
    if not isinstance(answer["number"], int):
        raise ValueError("'number' must be an integer.")
    return answer["number"]


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Return a function giving a client of a server, with settings changed as named."""
    monkeypatch.setenv("TEST_CHAT_KEY", KEY)

    def make(server, **changes):
        settings = {"model": "tiny", "base_url": server.url, "api_key_env": "TEST_CHAT_KEY", "timeout_s": 5.0}
        return ChatClient(ChatSettings(**{**settings, **changes}), tmp_path / "answers")

    return make


def test_a_question_is_sent_with_its_parameters_and_answered_from_disk_the_next_time(ask, monkeypatch):
    options = {"temperature": 0.5, "max_tokens": 77, "seed": 3}
    with ChatServer({"number": 42}) as server:
        first = ask(server, **options, extra_body={"top_k": 5})
        assert first.ask_json(QUESTION, number) == first.ask_json(QUESTION, number) == 42
    (request,) = server.requests
    assert request == {"model": "tiny", "messages": QUESTION, **options, "top_k": 5}
    assert first.usage["calls"] == first.usage["cached"] == 1
    # Neither key nor endpoint is needed.
    monkeypatch.delenv("TEST_CHAT_KEY")
    again = ask(server, **options, extra_body={"top_k": 5})
    assert again.ask_json(QUESTION, number) == 42
    counts = ("calls", "prompt_tokens", "cached", "reused_prompt_tokens", "reused_completion_tokens")
    assert [again.usage[name] for name in counts] == [0, 0, 1, 100, 20]


@pytest.mark.parametrize("changes", [{"model": "other"}, {"temperature": 0.1}, {"seed": 1}, {"extra_body": {"a": 1}}])
def test_whatever_the_answer_depends_on_makes_another_question(ask, changes):
    with ChatServer({"number": 42}) as server:
        ask(server).ask_json(QUESTION, number)
        ask(server, **changes).ask_json(QUESTION, number)
        ask(server).ask_json([*QUESTION, {"role": "user", "content": "Now."}], number)
    assert len(server.requests) == 3


def test_an_answer_on_disk_that_fails_a_new_check_is_asked_for_again_and_a_damaged_cache_is_an_error(ask, tmp_path):
    def negative(answer):
        if number(answer) > 0:
            raise ValueError("'number' must be negative.")
        return answer["number"]

    with ChatServer({"number": 42}, {"number": -42}) as server:
        client = ask(server)
        found = [client.ask_json(QUESTION, check) for check in (number, negative, negative)]
        assert (found, len(server.requests)) == ([42, -42, -42], 2)
        (tmp_path / "answers" / "cache.db").write_bytes(b"damaged" * 1000)
        with pytest.raises(EndpointError, match="answers: the cache cannot be read .*move it away"):
            ask(server).ask_json(QUESTION, number)


def test_a_cache_that_would_run_code_is_refused(ask, tmp_path, bomb):
    content, trace = bomb
    with ChatServer({"number": 42}) as server:
        client = ask(server)
        client.ask_json(QUESTION, number)
        with sqlite3.connect(tmp_path / "answers" / "cache.db") as cache:
            cache.execute("UPDATE Cache SET value = ?, mode = 4", (content,))
        with pytest.raises(ValueError, match="remove the cache"):
            ask(server).ask_json(QUESTION, number)
    assert not trace.exists()


def test_an_unusable_answer_is_asked_for_again_with_the_reason(ask):
    class Answer(pydantic.BaseModel):
        number: pydantic.StrictInt

    cut = Reply('Sure: {"number": 4} and', finish_reason="length")
    with ChatServer("I would say 42.", {"number": "42"}, cut, {"number": 42}) as server:
        client = ask(server)
        assert client.ask_json(QUESTION, Answer.model_validate, attempts=4).number == 42
    second, third, fourth = (request["messages"] for request in server.requests[1:])
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[1]["content"] == "I would say 42." and "holds no valid JSON" in second[2]["content"]
    assert "number is '42': Input should be a valid integer" in third[2]["content"]
    assert "cut off at the token limit" in fourth[2]["content"]
    assert (client.usage["calls"], client.usage["reasks"]) == (4, 3)
    assert (client.usage["prompt_tokens"], client.usage["completion_tokens"]) == (400, 80)


def test_answers_that_never_become_usable_end_in_an_error_with_the_last_one_and_nothing_on_disk(ask):
    with ChatServer("no", "never") as server:
        client = ask(server)
        with pytest.raises(ChatError, match="no usable answer in 2 attempts.*begins 'never'"):
            client.ask_json(QUESTION, number)
    assert (len(server.requests), client.usage["failures"], client.has_answers()) == (2, 1, False)


@pytest.mark.parametrize("refusal", [Reply(refusal="I cannot."), Reply(finish_reason="content_filter")])
def test_a_refusal_is_counted_and_not_argued_with(ask, refusal):
    with ChatServer(refusal) as server:
        client = ask(server)
        with pytest.raises(ChatError, match="refused"):
            client.ask_json(QUESTION, number)
    assert len(server.requests) == client.usage["refusals"] == 1


def test_rate_limits_and_server_errors_are_waited_out_and_counted(ask):
    busy = Reply(status=429, headers={"Retry-After": "0.3"})
    with ChatServer(busy, Reply(status=500, headers={"Retry-After": "0.01"}), {"number": 42}) as server:
        client = ask(server)
        begin = time.monotonic()
        assert client.ask_json(QUESTION, number) == 42
    assert time.monotonic() - begin >= 0.3
    assert (client.usage["calls"], client.usage["retries"]) == (1, 2)


@pytest.mark.parametrize(
    ("reply", "max_retries"),
    [(Reply(status=500, headers={"Retry-After": "0.01"}), 2), (Reply('{"number": 42}', delay_s=1.0), 0)],
    ids=["errors", "too slow"],
)
def test_a_server_that_keeps_failing_costs_one_question(ask, reply, max_retries):
    with ChatServer(reply) as server:
        client = ask(server, max_retries=max_retries, timeout_s=0.5)
        with pytest.raises(ChatError, match=f"no answer after {max_retries + 1} tries"):
            client.ask_json(QUESTION, number)
    assert (client.usage["retries"], client.usage["failures"]) == (max_retries, 1)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(status=401), "does not accept the key in TEST_CHAT_KEY"),
        (Reply(status=403, body=json.dumps(openai_style(None, "no quota"))), "no quota"),
        (Reply(status=402), "limit is used up after 1 tries"),
        (Reply(status=404), "does not know 'tiny'"),
        (Reply(status=429, headers={"Retry-After": "0.01"}), "limit is used up after 2 tries"),
    ],
)
def test_an_endpoint_that_answers_nothing_is_an_error_of_its_own_that_ends_a_loop(ask, reply, message):
    with ChatServer(reply) as server:
        client = ask(server, max_retries=1, concurrency=1)
        results = client.map(lambda messages: client.ask_json(messages, number), numbered(50))
        with pytest.raises(EndpointError, match=message):
            next(results)
        assert len(server.requests) < 10


def test_nobody_listening_a_missing_key_and_a_missing_package_say_what_to_do(ask, monkeypatch):
    server = ChatServer()
    server._http.server_close()
    with pytest.raises(EndpointError, match="cannot be reached after 1 tries.*check base_url"):
        ask(server, max_retries=0).ask_json(QUESTION, number)
    monkeypatch.delenv("TEST_CHAT_KEY")
    with pytest.raises(EndpointError, match="TEST_CHAT_KEY is not set"):
        ask(server).ask_json(QUESTION, number)
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(EndpointError, match="'openai' is not installed; pip install openai"):
        ask(server).ask_json(QUESTION, number)


def completion(message, usage="null"):
    return f'{{"choices": [{{"message": {message}, "finish_reason": "stop"}}], "usage": {usage}}}'


@pytest.mark.parametrize(
    "body",
    [
        *("<html>busy</html>", '{"choices": []}', "[1]"),
        *map(completion, ("null", '{"content": 7}', '{"content": [{"type": "text"}]}')),
    ],
)
def test_something_else_than_a_completion_costs_one_question(ask, body):
    with ChatServer(Reply(body=body)) as server, pytest.raises(ChatError, match="no chat completion"):
        ask(server).ask_json(QUESTION, number)


def refusing(refuse, status=400):
    """Return a server that answers requests unless `refuse` returns the body of an error."""

    def reply(body):
        error = refuse(body)
        return {"number": 42} if error is None else Reply(status=status, body=json.dumps(error))

    return ChatServer(reply)


def refuse_fields(names, make):
    """Return a function that refuses the first of some fields of a request with `make(name)`."""
    return lambda body: next((make(name) for name in names if name in body), None)


MAX_TOKENS = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
ALL = {"temperature": 0.0, "max_tokens": 2048, "seed": 0}


def without(*names):
    return {name: value for name, value in ALL.items() if name not in names}


def find_extra(name):
    """Answer as FastAPI and Mistral."""
    return {"detail": [{"type": "extra_forbidden", "loc": ["body", name], "msg": "no extra", "input": 1}]}


@pytest.mark.parametrize(
    ("refuse", "status", "sent", "changed"),
    [
        (
            *(refuse_fields(["max_tokens"], lambda name: openai_style(name, MAX_TOKENS)), 400),
            {**without("max_tokens"), "max_completion_tokens": 2048},
            {"max_tokens": "max_completion_tokens"},
        ),
        # Named in words alone, as by LiteLLM and TGI.
        (
            *(refuse_fields(["temperature", "seed"], lambda name: {"error": f"`{name}` must be left alone"}), 422),
            *(without("temperature", "seed"), {"temperature": None, "seed": None}),
        ),
        (
            *(refuse_fields(["temperature", "seed", "response_format"], find_extra), 422),
            *(without("temperature", "seed"), dict.fromkeys(["temperature", "seed", "response_format"])),
        ),
        (
            *(refuse_fields(["response_format"], lambda _: openai_style("response_format.json_schema")), 400),
            *(ALL, {"response_format": None}),
        ),
    ],
)
def test_a_refused_parameter_is_changed_for_the_run_and_said(ask, caplog, refuse, status, sent, changed):
    has_schema = bool(changed and "response_format" in changed)
    extra = {"response_format": {"type": "json_schema"}} if has_schema else {}
    with refusing(refuse, status) as server:
        client = ask(server, concurrency=4, extra_body=extra)
        assert list(client.map(lambda messages: client.ask_json(messages, number), numbered(40))) == [42] * 40
        num_requests = len(server.requests)
        resumed = ask(server, extra_body=extra)
        for messages in (*numbered(40), QUESTION):
            assert resumed.ask_json(messages, number) == 42
        # The kept answers say how they were got, so the resumed run does not try in vain.
        assert len(server.requests) == num_requests + 1
    last = {name: value for name, value in server.requests[-1].items() if name not in ("model", "messages")}
    assert last == sent
    # Each of the requests in flight at first may be refused for each parameter.
    assert num_requests <= 40 + 4 * len(client.usage["changed_parameters"])
    assert changed in (None, client.usage["changed_parameters"])
    assert resumed.usage["changed_parameters"] == client.usage["changed_parameters"]
    assert all(name in caplog.text for name in client.usage["changed_parameters"])


TOO_LONG = "This model's maximum context length is 4096 tokens, however you requested 5000; reduce max_tokens."


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai_style("messages", TOO_LONG, code="context_length_exceeded")),
        (400, openai_style("max_tokens", TOO_LONG)),
        (400, {"error": {"message": "the request exceeds the available context size", "code": 400}}),
        (422, {"detail": [{"loc": ["body", "messages", 0, "content"], "msg": "bad", "input": "seed temperature"}]}),
        (400, openai_style("messages[0].content[1].input_audio.format", "audio is not wav or mp3, seed")),
        (413, "<html>Request Entity Too Large</html>"),
        (400, openai_style(None, "We cannot talk about 'the temperature of a seed'.")),
    ],
)
def test_a_refusal_of_one_question_changes_nothing_for_the_others(ask, status, error):
    def refuse(body):
        return error if body["messages"][0]["content"] == "1" else None

    with refusing(refuse, status) as server:
        client = ask(server, max_retries=0, concurrency=1)
        results = list(client.map(lambda messages: client.ask_json(messages, number), numbered(3)))
    assert [results[0], results[2]] == [42, 42] and isinstance(results[1], ChatError)
    others = [request for request in server.requests if request["messages"][0]["content"] != "1"]
    assert len(others) == 2 and all(ALL.items() <= request.items() for request in others)
    assert "changed_parameters" not in client.usage


@pytest.mark.parametrize("status", [400, 401, 500])
def test_the_key_is_in_no_error_no_log_and_no_file(ask, tmp_path, caplog, status):
    caplog.set_level("DEBUG")
    with ChatServer({"number": 42}, Reply(status=status, error=f"Incorrect key: {KEY}")) as server:
        client = ask(server, max_retries=0)
        client.ask_json(QUESTION, number)
        with pytest.raises((ChatError, EndpointError), match=r"Incorrect key: \[key\]") as caught:
            client.ask_json([*QUESTION, *QUESTION], number)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    shown = "".join(traceback.format_exception(caught.value))
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).decode("latin-1")
    for text in (shown, repr(client.settings), str(client.usage), caplog.text, written):
        assert KEY not in text


PARTS = '[{"type": "thinking", "text": "Hm."}, {"type": "text", "text": "{\\"number\\": "}, {"text": "42}"}]'
WHOLE = '"{\\"number\\": 42}"'


@pytest.mark.parametrize(
    ("content", "usage"),
    [
        (PARTS, "null"),
        *((WHOLE, usage) for usage in ('"many"', "[]", '{"prompt_tokens": "x", "completion_tokens": 1}')),
    ],
)
def test_an_answer_in_parts_is_joined_and_tokens_that_are_no_numbers_are_counted(ask, content, usage):
    with ChatServer(Reply(body=completion(f'{{"content": {content}}}', usage))) as server:
        client = ask(server)
        assert client.ask_json(QUESTION, number) == 42
    assert (client.usage["calls_without_usage"], client.usage["prompt_tokens"]) == (1, 0)


def numbered(count):
    return [[{"role": "user", "content": str(index)}] for index in range(count)]


def echo(body):
    """Answer 0 last of all, and 3 never."""
    question = body["messages"][0]["content"]
    answer = "no" if question == "3" else json.dumps({"number": int(question)})
    return Reply(answer, delay_s=0.2 if question == "0" else 0.0)


def test_many_questions_come_back_in_order_with_failures_in_their_place(ask):
    with ChatServer(echo) as server:
        client = ask(server, concurrency=4)
        results = list(client.map(lambda messages: client.ask_json(messages, number), numbered(8)))
    assert isinstance(results[3], ChatError)
    assert results[:3] + results[4:] == [0, 1, 2, 4, 5, 6, 7]


def test_the_same_question_at_the_same_time_is_sent_once_and_others_as_many_as_the_settings_say(ask):
    with ChatServer(Reply('{"number": 1}', delay_s=0.2)) as server:
        client = ask(server, concurrency=4)
        begin = time.monotonic()
        asked = [*[QUESTION] * 4, *numbered(8)]
        assert list(client.map(lambda messages: client.ask_json(messages, number), asked)) == [1] * 12
        assert len(server.requests) == 9
        assert 0.6 <= time.monotonic() - begin < 1.6


def test_a_caller_that_stops_begins_nothing_new_and_keeps_what_was_under_way(ask):
    taken = []

    def items():
        for messages in numbered(1000):
            taken.append(messages)
            yield messages

    with ChatServer(Reply('{"number": 1}', delay_s=0.05)) as server:
        client = ask(server, concurrency=2)
        results = client.map(lambda messages: client.ask_json(messages, number), items())
        assert next(results) == 1
        results.close()
        sent = len(server.requests)
        time.sleep(0.15)
        assert len(server.requests) == sent <= 4
    assert len(taken) <= 8
    assert len(client._open_cache()) == sent


ASKING = """
import sys
from sdiareward.common.llm import ChatClient, ChatSettings
client = ChatClient(ChatSettings("tiny", sys.argv[1], api_key_env=None, concurrency=2), sys.argv[2])
questions = [[{"role": "user", "content": str(index)}] for index in range(20)]
print(list(client.map(lambda messages: client.ask_json(messages, lambda answer: answer["number"]), questions)))
"""


@pytest.mark.slow
def test_a_killed_run_asks_only_for_what_it_had_no_answer_to(ask, tmp_path):
    with ChatServer(lambda body: Reply(json.dumps({"number": 1}), delay_s=0.05)) as server:
        command = [sys.executable, "-c", ASKING, server.url, str(tmp_path / "answers")]
        process = forked.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(server.requests) < 6:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        server.requests.clear()
        client = ask(server, api_key_env=None)
        before = len(client._open_cache())
        assert list(client.map(lambda messages: client.ask_json(messages, number), numbered(20))) == [1] * 20
        assert len(server.requests) == 20 - before
    assert 4 <= before < 20


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, {"b": 2}]}',
        ' \n{"a": [1, {"b": 2}]}\n',
        '```json\n{"a": [1, {"b": 2}]}\n```',
        'Here is what you asked for [as JSON]:\n{"a": [1, {"b": 2}]}\nI hope that {this} helps.',
        'Sure! ```\n{"a": [1, {"b": 2}]}``` Anything else?',
        *(f'{{"a": [1, {{"b": 2}}]}}{behind}' for behind in (" [1]", "}", "]", " [", "\n{", '\n{"a": [1, {"b": 2}]}')),
        'See [1] and ["x", 2]: {"a": [1, {"b": 2,},],}',
        '{"a": [1, {"b": 2}], "a": [1, {"b": 2}]}',
        "{'a': [1, {'b': 2}]}",
        "[x,] " * 2_000 + '{"a": [1, {"b": 2}]}',
    ],
)
def test_json_is_found_among_prose_and_fences_and_repaired_where_it_has_one_meaning(text):
    assert parse_json(text) == {"a": [1, {"b": 2}]}


def test_repairs_change_no_text_and_keep_line_breaks():
    text = 'So: {"a": ["1, ]", "x\\",}"],\n "b": "two\nlines",}'
    assert parse_json(text) == {"a": ["1, ]", 'x",}'], "b": "two\nlines"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "Yes.", "42", '{"a": NaN}', "[" * 100_000, '{"a": 1} or {"a": 2}', '{"a": {"b": 1}'),
        *('[{"a": 1}, {"a": 2', 'Well: [{"a": 1}, {"a": 2', '{"a": 1}\n[{"a": 2}]', '{"a": 1} {"a": true}'),
        *('{"a": 1, "a": 2}', 'So: {"a": 1, "a": 2}', '{"a": 1} {"a": 2'),
    ],
)
def test_json_that_is_missing_ambiguous_or_broken_is_refused(text):
    with pytest.raises(ValueError, match="JSON"):
        parse_json(text)


@pytest.mark.parametrize(
    "changes", [{"concurrency": 0}, {"max_retries": -1}, {"timeout_s": 0}, {"usd_per_million_input_tokens": 1.0}]
)
def test_settings_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes)).split("_input")[0]):
        ChatSettings("tiny", **changes)
