"""Ask any OpenAI-compatible chat endpoint, each question once.

An answer is cached on disk under everything it depends on as soon as it has passed its check, so a killed run pays for
nothing twice. An unusable answer is asked for again with the reason; its tokens count too. A parameter that the
endpoint refuses is changed for the rest of the run; `usage` and the cached answers record the change. Requests carry
no schema: many endpoints, and models that hear audio, take none. `extra_body` may hold one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import pydantic.dataclasses
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from sdiareward.common.errors import UserError
from sdiareward.common.files import require_shallow
from sdiareward.common.settings import explain_error


logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Value = TypeVar("Value")
Messages = Sequence[Mapping[str, Any]]
# The longest quotation of an endpoint in an error.
_QUOTED_CHARACTERS = 300
# About fifty thousand tokens: a longer reply is no answer.
_MAX_CHARACTERS = 200_000
_OPENING = re.compile(r"[{\[]")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}
# What is wrong with an endpoint, and the remedy, by its status, 0 without an answer.
_PROBLEMS = {
    (0,): ("the endpoint cannot be reached", "check base_url"),
    (401, 403): ("the endpoint does not accept the key in {key}", "check the key"),
    (404,): ("the endpoint does not know {model!r}", "check base_url"),
    (402, 429): ("the endpoint's limit is used up", "resume later"),
}
_EVENTS = ("calls", "cached", "retries", "reasks", "refusals", "failures", "calls_without_usage")
_TOKENS = ("prompt_tokens", "completion_tokens", "reused_prompt_tokens", "reused_completion_tokens")
_RENAMED = {"max_tokens": "max_completion_tokens"}
# The refusal of a question that is too long often names `max_tokens`.
_TOO_LONG = re.compile(r"context.{0,9}(length|size)", re.IGNORECASE)
# A validation error may repeat the whole request behind its reason.
_SEARCHED_CHARACTERS = 600
# Before this number of questions a share of failures has no meaning.
_FEWEST_ASKED = 20


@dataclass(frozen=True)
class TokenUsage:
    num_replies: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(*map(add, astuple(self), astuple(other)))


class ChatError(RuntimeError):
    """Raised when one question gets no usable answer; `answer` is the last one, None without a reply."""

    def __init__(
        self, message: str, *, answer: str | None = None, is_refusal: bool = False, spent: TokenUsage | None = None
    ):
        super().__init__(message)
        self.answer, self.is_refusal, self.spent = answer, is_refusal, spent or TokenUsage()


class EndpointError(UserError):
    """Raised when every question would fail: no key, unknown model, no connection, quota used up."""


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True)
class ChatSettings:
    """An endpoint, a model, and the parameters of requests."""

    model: str
    base_url: str | None = None  # Up to and including `/v1`; by default that of the `openai` package.
    api_key_env: str | None = "OPENAI_API_KEY"  # Variable with the key; None for an endpoint without keys.
    temperature: float | None = 0.0  # None, here and in the next two: the default of the endpoint.
    max_tokens: int | None = 2048
    seed: int | None = 0
    max_retries: NonNegativeInt = 6  # After a rate limit, a server error or a timeout.
    timeout_s: PositiveFloat = 120.0
    concurrency: PositiveInt = 4  # Requests in flight in `ChatClient.map`.
    usd_per_million_input_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)  # Further fields of the request.

    def __post_init__(self) -> None:
        if (self.usd_per_million_input_tokens is None) != (self.usd_per_million_output_tokens is None):
            raise ValueError("one price is missing; give usd_per_million_input_tokens and _output_tokens, or neither.")

    def compute_price_usd(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        prices = self.usd_per_million_input_tokens, self.usd_per_million_output_tokens
        if prices[0] is None or prices[1] is None:
            return None
        return (prompt_tokens * prices[0] + completion_tokens * prices[1]) / 1e6

    def request(self, messages: Messages) -> dict[str, Any]:
        """Return the fields of a request for `messages`: everything the answer depends on, and no secret."""
        optional = {"temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.seed}
        fields: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        fields |= {"extra_body": dict(self.extra_body)} if self.extra_body else {}
        return {"model": self.model, "messages": [dict(message) for message in messages], **fields}


@dataclass(frozen=True)
class Answered(Generic[Value]):
    """An answer that passed its check."""

    value: Value
    text: str
    spent: TokenUsage


class ChatClient:
    """Ask one endpoint through a cache of answers; threads may share a client, and processes and endpoints a cache."""

    def __init__(self, settings: ChatSettings, cache_dir: str | Path):
        self.settings = settings
        self.cache_dir = Path(cache_dir)
        self._counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        # A lock lives as long as somebody asks its question.
        self._asking: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._cache: Any = None
        self._endpoint: Any = None
        # What the endpoint refuses -> what is sent instead; None for nothing.
        self._changed: dict[str, str | None] = {}

    @property
    def usage(self) -> dict[str, Any]:
        """The counts so far; `reused_...` were spent by an earlier run, `usd` is None without prices."""
        with self._lock:
            counts: dict[str, Any] = {name: self._counts[name] for name in (*_EVENTS, *_TOKENS)}
            changed = {"changed_parameters": self._changed} if self._changed else {}
        usd = self.settings.compute_price_usd(counts["prompt_tokens"], counts["completion_tokens"])
        return {**counts, "usd": usd, **changed}

    def has_answers(self) -> bool:
        return len(self._open_cache()) > 0

    def ask_json(self, messages: Messages, validate: Callable[[Any], Value], *, attempts: int = 2) -> Value:
        """Return what `validate` makes of the JSON in the answer, such as `Model.model_validate` of pydantic."""

        def read(text: str, *, is_cut: bool) -> Value:
            return validate(parse_json(text, is_cut=is_cut))

        return self.ask(messages, read, attempts=attempts).value

    def ask(self, messages: Messages, read: Callable[..., Value], *, attempts: int = 2) -> Answered[Value]:
        """Return what `read(text, is_cut=...)` makes of the answer; its `ValueError` tells the model what is wrong."""
        # Without the address of the endpoint: a model that moved keeps its answers.
        content = json.dumps(self.settings.request(messages), sort_keys=True)
        key = hashlib.sha256(content.encode()).hexdigest()
        with self._lock:
            lock = self._asking.setdefault(key, threading.Lock())
        # Of two threads with the same question the second waits and finds the answer of the first.
        with lock:
            record = json.loads(self._open_cache().get(key, "null", retry=True))
            with suppress(ValueError, TypeError, KeyError):
                if record:
                    return self._reuse(read(record["text"], is_cut=record["is_cut"]), record)
            return self._ask(messages, read, attempts, key)

    def map(
        self,
        ask: Callable[[Item], Value],
        items: Iterable[Item],
        *,
        failures: tuple[type[Exception], ...] = (ChatError,),
        description: str = "questions",
    ) -> Iterator[Value | Exception]:
        """Yield `ask(item)`, or one of `failures`, in order; items are read as needed."""
        from tqdm import tqdm

        source = iter(items)
        pending: deque[Future[Value]] = deque()
        pool = ThreadPoolExecutor(self.settings.concurrency)
        try:
            with tqdm(total=len(items) if isinstance(items, Sized) else None, desc=description) as progress:
                while True:
                    more = islice(source, 4 * self.settings.concurrency - len(pending))
                    pending.extend(pool.submit(ask, item) for item in more)
                    if not pending:
                        return
                    error = pending[0].exception()
                    if error is not None and not isinstance(error, failures):
                        raise error
                    progress.update()
                    result: Any = error or pending[0].result()
                    pending.popleft()
                    yield result
        finally:
            # Requests in flight are paid for: they are awaited, and their answers cached.
            pool.shutdown(wait=True, cancel_futures=True)

    def _open_cache(self) -> Any:
        import diskcache

        class TextDisk(diskcache.Disk):
            """Texts alone: a cache that others wrote runs no code."""

            def fetch(self, mode: int, filename: Any, value: Any, read: bool) -> Any:
                if mode == diskcache.core.MODE_PICKLE:
                    raise ValueError("a cached answer is no text; remove the cache.")
                return super().fetch(mode, filename, value, read)

        # Nothing is evicted. A rollback journal works on network file systems, too, unlike a write-ahead log.
        options = {"eviction_policy": "none", "sqlite_journal_mode": "delete", "sqlite_synchronous": 2}
        with self._lock:
            try:
                if self._cache is None:
                    self._cache = diskcache.Cache(str(self.cache_dir), disk=TextDisk, **options)
            except sqlite3.DatabaseError as error:
                raise EndpointError(f"{self.cache_dir}: the cache cannot be read ({error}); move it away.") from error
        return self._cache

    def _reuse(self, value: Value, record: Mapping[str, Any]) -> Answered[Value]:
        prompt, completion = record["prompt_tokens"], record["completion_tokens"]
        self._change(record["changed_parameters"], "recorded with a cached answer")
        self._count(cached=1, reused_prompt_tokens=prompt, reused_completion_tokens=completion)
        return Answered(value, record["text"], TokenUsage(1, prompt, completion))

    def _ask(self, messages: Messages, read: Callable[..., Value], attempts: int, key: str) -> Answered[Value]:
        """Ask until an answer passes, each time with the last problem, and cache it."""
        conversation, spent, problem, text = list(messages), TokenUsage(), "", ""
        try:
            for attempt in range(attempts):
                self._count(reasks=min(attempt, 1))
                text, is_cut, used = self._send(conversation)
                spent += used
                try:
                    value = read(text, is_cut=is_cut)
                except (ValueError, TypeError, KeyError) as error:
                    problem = f"it lacks {error}." if isinstance(error, KeyError) else explain_error(error)
                    conversation = ask_again(messages, text, problem)
                    continue
                record = {**asdict(spent), "changed_parameters": self._changed, "text": text, "is_cut": is_cut}
                self._open_cache().set(key, json.dumps(record), retry=True)
                return Answered(value, text, spent)
            text = self._redact(text)
            raise ChatError(
                f"{self.settings.model} gave no usable answer in {attempts} attempts: {self._redact(problem)} "
                f"Its last answer begins {text[:_QUOTED_CHARACTERS]!r}.",
                answer=text,
            )
        except ChatError as error:
            self._count(failures=1)
            error.spent += spent
            raise

    def _send(self, messages: Messages) -> tuple[str, bool, TokenUsage]:
        """Return the text of an answer, whether it was cut, and its tokens; ask again without a refused parameter."""
        endpoint = self._connect()
        import openai

        reasons: list[str] = []
        changed = self._changed
        while True:
            request = _substitute(self.settings.request(messages), changed)
            self._count(calls=1)
            try:
                raw = endpoint.chat.completions.with_raw_response.create(**request)
                completion = raw.parse()
                self._count(retries=raw.retries_taken)
                if not completion.choices:
                    raise ValueError(raw.text[:_QUOTED_CHARACTERS])
                choice = completion.choices[0]
                content = choice.message.content or ""
                if isinstance(content, list):  # Some endpoints answer in parts.
                    content = "".join(part["text"] for part in content if part.get("type", "text") == "text")
                if not isinstance(content, str):
                    raise TypeError(f"its content is a {type(content).__name__}, not a text")
                break
            except openai.APIError as error:
                is_refusal = isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError)
                change = _find_change(f"{error.message} {error.body}", request, changed) if is_refusal else None
                if change is None:
                    # `from None`: the chained error would show the text of the endpoint before the key is removed.
                    raise self._convert_error(error) from None
                changed = {**changed, **change}
                reasons.append(self._quote(error))
            except (ValueError, AttributeError, TypeError, LookupError) as error:
                what = self._redact(f"{type(error).__name__}: {error}")
                raise ChatError(f"the endpoint's answer is no chat completion ({what}).") from None
        # Only now: a refusal of this question alone may name a parameter by chance.
        self._change(changed, " ".join(reasons))
        prompt_tokens = completion_tokens = 0
        with suppress(AttributeError, TypeError, ValueError):
            used = completion.usage
            prompt_tokens, completion_tokens = int(used.prompt_tokens or 0), int(used.completion_tokens or 0)
        without = int(not prompt_tokens and not completion_tokens)
        self._count(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, calls_without_usage=without)
        spent = TokenUsage(1, prompt_tokens, completion_tokens)
        refusal = getattr(choice.message, "refusal", None)
        if refusal or choice.finish_reason == "content_filter":
            self._count(refusals=1)
            text = self._redact(str(refusal or "content filter"))
            raise ChatError(f"{self.settings.model} refused: {text}", answer=text, is_refusal=True, spent=spent)
        return content, choice.finish_reason == "length", spent

    def _connect(self) -> Any:
        """Return the `openai` client, created on first use: a run with all answers cached needs no key."""
        try:
            import openai
        except ModuleNotFoundError:
            raise EndpointError("the package 'openai' is not installed; pip install openai.") from None
        settings = self.settings
        if not (key := self._read_key()):
            raise EndpointError(
                f"environment variable {settings.api_key_env} is not set; put the key of the endpoint in it, or "
                "name another one with api_key_env (null for an endpoint without keys)."
            )
        with self._lock:
            self._endpoint = self._endpoint or openai.OpenAI(
                base_url=settings.base_url, api_key=key, max_retries=settings.max_retries, timeout=settings.timeout_s
            )
        return self._endpoint

    def _read_key(self) -> str:
        name = self.settings.api_key_env
        return "none" if name is None else os.environ.get(name, "")

    def _redact(self, text: str) -> str:
        """Remove the key from a text of the endpoint: some endpoints repeat an unknown key."""
        key = self._read_key()
        return text.replace(key, "[key]") if key and self.settings.api_key_env else text

    def _convert_error(self, error: Any) -> ChatError | EndpointError:
        """Return our error for one of the `openai` package, and count its retries."""
        import openai

        sent = int(error.request.headers.get("x-stainless-retry-count", 0))
        self._count(retries=sent)
        is_lost = isinstance(error, openai.APIConnectionError) and not isinstance(error, openai.APITimeoutError)
        status, said = 0 if is_lost else getattr(error, "status_code", -1), f"after {sent + 1} tries"
        for statuses, (problem, remedy) in _PROBLEMS.items():
            if status in statuses:
                found = problem.format(key=self.settings.api_key_env, model=self.settings.model)
                return EndpointError(f"{found} {said} ({self._quote(error)}); {remedy}.")
        return ChatError(f"the endpoint gave no answer {said} ({self._quote(error)}).")

    def _quote(self, error: Any) -> str:
        """Return the message of an error of the `openai` package, with the endpoint's words where it omits them."""
        is_said = isinstance(error.body, Mapping) and "message" in error.body or str(error.body or "") in error.message
        what = f"{type(error).__name__}: {error.message}{'' if is_said else f' {error.body}'}"
        return self._redact(what)[:_QUOTED_CHARACTERS]

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _change(self, changed: Mapping[str, str | None], reason: str) -> None:
        """Send changed parameters for the rest of the run."""
        with self._lock:
            new = {name: other for name, other in changed.items() if name not in self._changed}
            self._changed = {**self._changed, **new}
        for name, other in new.items():
            how = f"sends it as {other}" if other else "omits it"
            logger.warning("%s: the endpoint refuses %s; the run %s (%s)", self.settings.model, name, how, reason)


def ask_again(messages: Messages, reply: str, problem: str) -> list[Mapping[str, Any]]:
    remark = f"Your answer cannot be used: {problem} Answer again, with the complete JSON and nothing else."
    # An endpoint may refuse an empty message.
    answer = [{"role": "assistant", "content": reply}] if reply.strip() else []
    return [*messages, *answer, {"role": "user", "content": remark}]


def _substitute(request: Mapping[str, Any], changed: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the fields of a request without the parameters that have changed, or with them under another name."""
    fields = {**request, "extra_body": dict(request.get("extra_body", {}))}
    for name, other in changed.items():
        for part in (fields, fields["extra_body"]):
            if name in part:
                value = part.pop(name)
                if other is not None:
                    fields["extra_body"].setdefault(other, value)
    return fields


def _find_change(
    message: str, request: Mapping[str, Any], changed: Mapping[str, str | None]
) -> dict[str, str | None] | None:
    """Return the parameter that a refusal names first, with its new name, or None to omit it."""
    text = message[:_SEARCHED_CHARACTERS]
    fields = sorted({*request, *request["extra_body"]} - {"model", "extra_body"})
    named = re.search(rf"\b(?:{'|'.join(map(re.escape, fields))})\b", text)
    if named is None or named[0] == "messages" or _TOO_LONG.search(text):
        return None
    other = _RENAMED.get(named[0])
    return {named[0]: other if other and other in text and other not in changed else None}


def parse_json(text: str, *, is_cut: bool = False) -> Any:
    """Return the only JSON object or array in a reply; prose or a code fence around it is ignored.

    The same piece twice, or a list of plain values beside an object, has one meaning. Two pieces that differ, one key
    with two values and a piece that is not closed are errors: `json_repair` alone would choose one or complete it.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"the answer has {len(text)} characters; it must have at most {_MAX_CHARACTERS}.")
    require_shallow(text)
    with suppress(ValueError):
        value = _DECODER.decode(text.strip())
        if isinstance(value, dict | list):
            return value
    if is_cut:  # JSON inside a cut answer may be a part of it.
        raise ValueError("the answer was cut off at the token limit; be shorter.")
    values = [_read_piece(piece) for piece in dict.fromkeys(_split_pieces(text))]
    found = {json.dumps(value, sort_keys=True): value for value in values if value is not None}
    objects = [value for key, value in found.items() if "{" in key]
    left = objects if len(objects) == 1 else list(found.values())
    if len(left) != 1:
        count = f"{len(left)} pieces of" if left else "no valid"
        raise ValueError(f"the answer holds {count} JSON; it must be exactly one object or array.")
    return left[0]


def _split_pieces(text: str) -> Iterator[str]:
    """Yield the outermost objects and arrays in prose."""
    position = 0
    while opening := _OPENING.search(text, position):
        depth, start = 0, opening.start()
        for found in _BRACKETS.finditer(text, start):
            depth += _STEPS.get(found[0], 0)
            if not depth:
                position = found.end()
                yield text[start:position]
                break
        else:
            if position and not text[start:].strip("{[ \r\n"):
                return
            raise ValueError("the JSON is not complete or not valid.")


def _read_piece(piece: str) -> Any:
    """Return the value of a piece of JSON, repaired in its punctuation alone; None for brackets of prose."""
    import json_repair

    try:
        return _DECODER.decode(piece)
    except ValueError as error:
        problem = str(error)
    with suppress(ValueError):
        value = json_repair.loads(piece)
        if isinstance(value, dict | list) and _list_words(piece) == _list_words(json.dumps(value, ensure_ascii=False)):
            return json.loads(json.dumps(value, allow_nan=False))
    if ":" in piece:
        raise ValueError(f"the JSON is not valid ({problem}).")
    return None


def _list_words(text: str) -> list[str]:
    return re.findall(r"[\w.+-]+", re.sub(r"\\.", " ", text))


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if twice := [key for key, value in pairs if made[key] != value]:
        raise ValueError(f"{twice[0]!r} is there twice with different values.")
    return made


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON.")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_make_object, strict=False)


@dataclass
class FailureLimit:
    """Stop a run whose model fails on more than a share of the questions."""

    max_failed: float
    asked: str  # Who failed at what, for the message: "the judge failed on {} pairs".
    setting: str  # Name of the setting of `max_failed`.
    num_asked: int = 0
    reasons: list[str] = field(default_factory=list)

    def count(self, failure: str | None) -> None:
        """Count a question and the reason if it failed; raise `EndpointError` above the limit."""
        self.num_asked += 1
        self.reasons += [] if failure is None else [failure]
        if self.num_asked >= _FEWEST_ASKED:
            self.require_few()

    def require_few(self) -> None:
        """Check all questions of a run that has ended, however few."""
        if len(self.reasons) > self.max_failed * self.num_asked:
            failed = self.asked.format(f"{len(self.reasons)} of {self.num_asked}")
            raise EndpointError(
                f"{failed}, the first time with: {self.reasons[0]} At most {self.max_failed:.0%} may fail "
                f"({self.setting}); mend the endpoint's settings and run the same command: answers are kept."
            )


def require_share(max_failed: float) -> None:
    if not 0 <= max_failed <= 1:
        raise ValueError(f"max_failed is {max_failed!r}; give a share from 0 to 1.")
