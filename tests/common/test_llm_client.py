import json
import sqlite3
import time
import traceback
from functools import partial

import pydantic
import pytest
from support.chat_server import ChatServer, Reply

from sdiareward.common.llm import ChatClient, ChatError, ChatSettings, EndpointError, parse_answer


QUESTION = [{"role": "user", "content": "What is six times seven? JSON only."}]
KEY = "sk-very-secret-0123456789"


class Answer(pydantic.BaseModel):
    number: pydantic.StrictInt


def ask_number(client, messages=QUESTION, **options):
    return client.ask_json(messages, Answer.model_validate, **options).number


def numbered(count):
    return [[{"role": "user", "content": str(index)}] for index in range(count)]


def try_each(client, questions):
    """Return the answers in order, with the errors in their places."""

    def ask(messages):
        try:
            return ask_number(client, messages)
        except ChatError as error:
            return error

    return list(client.map(ask, questions))


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
        assert ask_number(first) == ask_number(first) == 42
        assert server.requests == [{"model": "tiny", "messages": QUESTION, **options, "top_k": 5}]
        assert first.usage["calls"] == first.usage["cached"] == 1
        monkeypatch.delenv("TEST_CHAT_KEY")
        again = ask(server, **options, extra_body={"top_k": 5})
        assert ask_number(again) == 42
        counts = ("calls", "prompt_tokens", "cached", "reused_prompt_tokens", "reused_completion_tokens")
        assert [again.usage[name] for name in counts] == [0, 0, 1, 100, 20]
        with pytest.raises(EndpointError, match="TEST_CHAT_KEY is not set"):
            ask_number(again, numbered(1)[0])
        others = [{"model": "other"}, {"temperature": 0.1}, {"seed": 1}, {"extra_body": {"top_k": 6}}, {}]
        for changes in others:
            ask_number(ask(server, **{**options, "api_key_env": None, **changes}))
        assert len(server.requests) == 1 + len(others)


def test_a_cache_is_checked_again_and_a_damaged_or_harmful_one_is_an_error(ask, tmp_path, bomb):
    class Negative(pydantic.BaseModel):
        number: pydantic.NegativeInt

    content, trace = bomb
    path = tmp_path / "answers" / "cache.db"
    with ChatServer({"number": 42}, {"number": -42}) as server:
        client = ask(server)
        found = [client.ask_json(QUESTION, kind.model_validate).number for kind in (Answer, Negative, Negative)]
        assert (found, len(server.requests)) == ([42, -42, -42], 2)
        with sqlite3.connect(path) as cache:
            cache.execute("UPDATE Cache SET value = ?, mode = 4", (content,))
        with pytest.raises(ValueError, match="remove the cache"):
            ask_number(ask(server))
        assert not trace.exists()
        path.write_bytes(b"damaged" * 1000)
        with pytest.raises(EndpointError, match="answers: the cache cannot be read"):
            ask_number(ask(server))


def test_an_unusable_answer_is_asked_for_again_with_the_reason(ask):
    cut = Reply('Sure: {"number": 4} and', finish_reason="length")
    with ChatServer("I would say 42.", {"number": "42"}, cut, {"number": 42}) as server:
        client = ask(server)
        assert ask_number(client, attempts=4) == 42
    second, third, fourth = (request["messages"] for request in server.requests[1:])
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[1]["content"] == "I would say 42." and "has no valid JSON" in second[2]["content"]
    assert "number is '42'" in third[2]["content"] and "cut off at the token limit" in fourth[2]["content"]
    assert [client.usage[name] for name in ("calls", "reasks", "prompt_tokens", "completion_tokens")] == [
        4,
        3,
        400,
        80,
    ]


def completion(message, usage="null"):
    return f'{{"choices": [{{"message": {message}, "finish_reason": "stop"}}], "usage": {usage}}}'


SOON = {"Retry-After": "0.01"}


@pytest.mark.parametrize(
    ("reply", "message", "counts"),
    [
        ("never", "no usable answer in 2 attempts.*begins 'never'", {"calls": 2}),
        (Reply(refusal="I cannot."), "refused", {"calls": 1, "refusals": 1}),
        (Reply(finish_reason="content_filter"), "refused", {"calls": 1, "refusals": 1}),
        (Reply(status=500, headers=SOON), "did not answer after 2 tries", {"calls": 1, "retries": 1}),
        (Reply('{"number": 42}', delay_s=1.0, headers=SOON), "did not answer after 2 tries", {"retries": 1}),
        *(
            (Reply(body=body), "did not return a chat completion", {"calls": 1})
            for body in (
                *("<html>busy</html>", '{"choices": []}', "[1]"),
                *map(completion, ("null", '{"content": 7}', '{"content": [7]}')),
            )
        ),
    ],
)
def test_a_question_without_a_usable_answer_is_an_error_and_not_cached(ask, reply, message, counts):
    with ChatServer(reply) as server:
        client = ask(server, max_retries=1, timeout_s=0.3)
        with pytest.raises(ChatError, match=message):
            ask_number(client)
    assert {name: client.usage[name] for name in counts} == counts
    assert (client.usage["failures"], len(client.cache)) == (1, 0)


def test_rate_limits_and_server_errors_are_waited_out_and_counted(ask):
    with ChatServer(Reply(status=429, headers=SOON), Reply(status=500, headers=SOON), {"number": 42}) as server:
        client = ask(server)
        assert ask_number(client) == 42
    assert (client.usage["calls"], client.usage["retries"]) == (1, 2)


def openai_style(name, message="Unsupported parameter.", **more):
    return {"error": {"message": message, "type": "invalid_request_error", "param": name, **more}}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(status=401), "rejects the key in TEST_CHAT_KEY"),
        (Reply(status=403, body=json.dumps(openai_style(None, "no quota"))), "no quota"),
        (Reply(status=402), "quota is used up after 1 tries"),
        (Reply(status=404), "has no model 'tiny'"),
        (Reply(status=429, headers=SOON), "quota is used up after 2 tries"),
        (None, "cannot be reached after 2 tries.*check base_url"),
    ],
)
def test_an_endpoint_that_answers_nothing_is_an_error_that_ends_a_loop(ask, reply, message):
    with ChatServer(reply or Reply()) as server:
        if reply is None:
            server._http.server_close()
        client = ask(server, max_retries=1, concurrency=1)
        with pytest.raises(EndpointError, match=message):
            next(client.map(partial(ask_number, client), numbered(50)))
        assert len(server.requests) < 10


def refuse(names, make, status=400):
    """Return a server that refuses the first of some fields of a request with `make(name)`, and else answers."""

    def reply(body):
        found = next((name for name in names if name in body), None)
        return {"number": 42} if found is None else Reply(status=status, body=json.dumps(make(found)))

    return ChatServer(reply)


def find_extra(name):
    """Answer as FastAPI and Mistral."""
    return {"detail": [{"type": "extra_forbidden", "loc": ["body", name], "msg": "no extra", "input": 1}]}


RENAME = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
ALL = {"temperature": 0.0, "max_tokens": 2048, "seed": 0}


@pytest.mark.parametrize(
    ("names", "make", "status", "added", "changed"),
    [
        (["max_tokens"], lambda name: openai_style(name, RENAME), 400, {"max_completion_tokens": 2048}, None),
        (["temperature", "seed"], lambda name: {"error": f"`{name}` must be left alone"}, 422, {}, None),
        (["temperature", "response_format"], find_extra, 422, {}, None),
        (["response_format"], lambda _: openai_style("response_format.json_schema"), 400, {}, None),
        (
            *(["max_tokens", "max_completion_tokens"], lambda name: openai_style(name, RENAME), 400, {}),
            {"max_tokens": "max_completion_tokens", "max_completion_tokens": None},
        ),
    ],
)
def test_a_refused_parameter_is_changed_for_the_run_and_reported(ask, caplog, names, make, status, added, changed):
    changed = changed or {name: next(iter(added), None) for name in names}
    options = {"concurrency": 4, "extra_body": {"response_format": {}} if "response_format" in names else {}}
    with refuse(names, make, status) as server:
        client, resumed = ask(server, **options), ask(server, **options)
        assert list(client.map(partial(ask_number, client), numbered(12))) == [42] * 12
        num_requests = len(server.requests)
        # Each of the requests in flight at first may be refused for each parameter.
        assert num_requests <= 12 + 4 * len(changed)
        # Cached answers hold the changes, so the resumed run does not try in vain.
        assert list(map(partial(ask_number, resumed), (*numbered(12), QUESTION))) == [42] * 13
        assert len(server.requests) == num_requests + 1
    sent = {name: value for name, value in server.requests[-1].items() if name not in ("model", "messages")}
    assert sent == {name: value for name, value in ALL.items() if name not in names} | added
    assert client.usage["changed_parameters"] == resumed.usage["changed_parameters"] == changed
    assert all(name in caplog.text for name in names)


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
    def reply(body):
        is_bad = body["messages"][0]["content"] == "1"
        return Reply(status=status, body=json.dumps(error)) if is_bad else {"number": 42}

    with ChatServer(reply) as server:
        client = ask(server, max_retries=0, concurrency=1)
        first, second, third = try_each(client, numbered(3))
    assert (first, third) == (42, 42) and isinstance(second, ChatError)
    others = [request for request in server.requests if request["messages"][0]["content"] != "1"]
    assert len(others) == 2 and all(ALL.items() <= request.items() for request in others)
    assert "changed_parameters" not in client.usage


@pytest.mark.parametrize("status", [400, 401, 500])
def test_the_key_is_in_no_error_no_log_and_no_file(ask, tmp_path, caplog, status):
    caplog.set_level("DEBUG")
    with ChatServer({"number": 42}, Reply(status=status, error=f"Incorrect key: {KEY}")) as server:
        client = ask(server, max_retries=0)
        ask_number(client)
        with pytest.raises((ChatError, EndpointError), match=r"Incorrect key: \[key\]") as caught:
            ask_number(client, [*QUESTION, *QUESTION])
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    shown = "".join(traceback.format_exception(caught.value))
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).decode("latin-1")
    for text in (shown, repr(client.settings), str(client.usage), caplog.text, written):
        assert KEY not in text


PARTS = '[{"type": "thinking", "text": "Hm."}, {"type": "text", "text": "{\\"number\\": "}, {"text": "42}"}]'
USAGES = ("null", '"many"', "[]", '{"prompt_tokens": "x", "completion_tokens": 1}')


@pytest.mark.parametrize("usage", USAGES)
def test_an_answer_in_parts_is_joined_and_tokens_that_are_no_numbers_are_counted(ask, usage):
    with ChatServer(Reply(body=completion(f'{{"content": {PARTS}}}', usage))) as server:
        client = ask(server)
        assert ask_number(client) == 42
    assert (client.usage["calls_without_usage"], client.usage["prompt_tokens"]) == (1, 0)


def test_many_questions_come_back_in_order_and_equal_ones_at_the_same_time_are_sent_once(ask):
    def echo(body):
        question = body["messages"][0]["content"]
        delay_s = 0.2 if question in ("0", QUESTION[0]["content"]) else 0.0
        return Reply("no" if question == "3" else '{"number": 1}', delay_s=delay_s)

    with ChatServer(echo) as server:
        found = try_each(ask(server, concurrency=4), [*[QUESTION] * 4, *numbered(8)])
    assert isinstance(found.pop(7), ChatError) and found == [1] * 11
    # The third question of the numbered ones is asked twice.
    assert len(server.requests) == 1 + 8 + 1


def test_a_caller_that_stops_begins_nothing_new_and_a_new_run_asks_only_for_the_rest(ask):
    with ChatServer(Reply('{"number": 1}', delay_s=0.05)) as server:
        client, source = ask(server, concurrency=2), iter(numbered(1000))
        results = client.map(partial(ask_number, client), source)
        assert next(results) == 1
        results.close()
        sent = len(server.requests)
        time.sleep(0.15)
        assert len(server.requests) == len(client.cache) == sent <= 4
        assert len(list(source)) >= 1000 - 8
        assert try_each(ask(server), numbered(12)) == [1] * 12
        assert len(server.requests) == 12


NESTED = '{"a": [1, {"b": 2}]}'


@pytest.mark.parametrize(
    "text",
    [
        *(NESTED, f" \n{NESTED}\n", f"```json\n{NESTED}\n```", f"Sure! ```\n{NESTED}``` Anything else?"),
        f"Here is what you asked for [as JSON]:\n{NESTED}\nI hope that {{this}} helps.",
        *(f"{NESTED}{behind}" for behind in (" [1]", "}", "]", " [", "\n{", f"\n{NESTED}")),
        *('See [1] and ["x", 2]: {"a": [1, {"b": 2,},],}', '{"a": [1, {"b": 2}], "a": [1, {"b": 2}]}'),
        *("{'a': [1, {'b': 2}]}", f"[x,] {'[x,] ' * 2_000}{NESTED}"),
    ],
)
def test_json_is_found_among_prose_and_fences_and_repaired_where_it_has_one_meaning(text):
    assert parse_answer(text) == {"a": [1, {"b": 2}]}


def test_repairs_change_no_text_and_keep_line_breaks():
    text = 'So: {"a": ["1, ]", "x\\",}"],\n "b": "two\nlines",}'
    assert parse_answer(text) == {"a": ["1, ]", 'x",}'], "b": "two\nlines"}


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
        parse_answer(text)


def test_a_price_without_the_other_is_refused():
    with pytest.raises(ValueError, match="usd_per_million"):
        ChatSettings("tiny", usd_per_million_input_tokens=1.0)
