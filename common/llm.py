"""Ask any OpenAI-compatible chat endpoint, each question once.

A valid answer is cached on disk at once, keyed by everything it depends on, so a killed run pays for nothing twice.
After an invalid answer the question is repeated with the reason; its tokens count too. A parameter that the endpoint
refuses is changed for the rest of the run; `usage` and the cached answers record the change. Requests have no schema,
because many endpoints and audio models do not support one; `extra_body` may add it.
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
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import pydantic.dataclasses
from pydantic import BaseModel, Field, NonNegativeInt, PositiveFloat, PositiveInt

from .answers_in_json import parse_answer
from .errors import UserError
from .settings import explain_error


logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Value = TypeVar("Value")
Messages = Sequence[Mapping[str, Any]]
# Maximum length of a quoted endpoint message.
_QUOTED_CHARACTERS = 300
# The share of failures is not checked before this number of questions.
_FEWEST_ASKED = 20
# Problem and remedy by HTTP status; 0 means no answer.
_PROBLEMS = {
    0: ("the endpoint cannot be reached", "check base_url"),
    **dict.fromkeys((401, 403), ("the endpoint rejects the key in {key}", "check the key")),
    404: ("the endpoint has no model {model!r}", "check base_url"),
    **dict.fromkeys((402, 429), ("the quota is used up", "resume later")),
}
_TOKENS = ("prompt_tokens", "completion_tokens")
_COUNTED = ("calls", "cached", "retries", "reasks", "refusals", "failures", "calls_without_usage")
_RENAMED = {"max_tokens": "max_completion_tokens"}
# The error for a prompt that is too long often names `max_tokens`.
_TOO_LONG = re.compile(r"context.{0,9}(length|size)", re.IGNORECASE)
# A validation error may quote the whole request after its reason.
_SEARCHED_CHARACTERS = 600


@dataclass(frozen=True)
class TokenUsage:
    num_replies: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(*(one + more for one, more in zip(vars(self).values(), vars(other).values(), strict=True)))


class ChatError(RuntimeError):
    """Raised when one question gets no valid answer; `answer` is the last reply or None."""

    def __init__(
        self, message: str, answer: str | None = None, spent: TokenUsage = TokenUsage(), refused: bool = False
    ):
        super().__init__(message)
        self.answer, self.spent, self.is_refusal = answer, spent, refused


class EndpointError(UserError):
    """Raised when every question would fail: missing key, unknown model, no connection, exhausted quota."""


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True)
class ChatSettings:
    """An endpoint, a model, and the parameters of requests."""

    model: str
    base_url: str | None = None  # Including `/v1`; None: the default of the `openai` package.
    api_key_env: str | None = "OPENAI_API_KEY"  # Environment variable with the key; None: no key is needed.
    temperature: float | None = 0.0  # None, here and in the next two fields: the default of the endpoint.
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
        per_input, per_output = self.usd_per_million_input_tokens, self.usd_per_million_output_tokens
        if per_input is None or per_output is None:
            return None
        return (prompt_tokens * per_input + completion_tokens * per_output) / 1e6

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything an answer depends on besides the model and the messages."""
        optional = {"temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.seed}
        return {name: value for name, value in optional.items() if value is not None} | self.extra_body


@dataclass(frozen=True)
class Answered(Generic[Value]):
    """A valid answer."""

    value: Value
    text: str
    spent: TokenUsage


class _Message(BaseModel):
    content: str | list[dict[str, Any]] | None = None  # Some endpoints answer in parts.
    refusal: str | None = None

    @property
    def text(self) -> str:
        parts = self.content if isinstance(self.content, list) else [{"text": self.content}]
        return "".join(part.get("text") or "" for part in parts if part.get("type", "text") == "text")


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


class ChatClient:
    """Ask one endpoint through a cache. Threads can share a client; processes and endpoints can share a cache."""

    def __init__(self, settings: ChatSettings, cache_dir: str | Path):
        self.settings = settings
        self.cache_dir = Path(cache_dir)
        self._counts = Counter(dict.fromkeys((*_COUNTED, *_TOKENS, *(f"reused_{name}" for name in _TOKENS)), 0))
        self._lock = threading.RLock()
        # A lock exists while its question is being asked.
        self._asking: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        # Refused parameter -> its replacement; None omits it.
        self._changed: dict[str, str | None] = {}

    @property
    def usage(self) -> dict[str, Any]:
        """The counts so far. An earlier run paid for `reused_...`; `usd` is None without prices."""
        with self._lock:
            found: dict[str, Any] = dict(self._counts)
        found["usd"] = self.settings.compute_price_usd(found["prompt_tokens"], found["completion_tokens"])
        return found | ({"changed_parameters": self._changed} if self._changed else {})

    @cached_property
    def cache(self) -> Any:
        """The cached answers by question, as JSON text."""
        import diskcache

        class TextDisk(diskcache.Disk):
            """Reads text only, so that an untrusted cache cannot run code."""

            def fetch(self, mode: int, filename: Any, value: Any, read: bool) -> Any:
                if mode == diskcache.core.MODE_PICKLE:
                    raise ValueError("a cached answer is not text; remove the cache.")
                return super().fetch(mode, filename, value, read)

        # Nothing is evicted. Unlike a write-ahead log, a rollback journal works on network file systems.
        options = {"eviction_policy": "none", "sqlite_journal_mode": "delete", "sqlite_synchronous": 2}
        try:
            return diskcache.Cache(str(self.cache_dir), disk=TextDisk, **options)
        except sqlite3.DatabaseError as error:
            raise EndpointError(f"{self.cache_dir}: the cache cannot be read ({error}); move it away.") from error

    @cached_property
    def _endpoint(self) -> Any:
        """The `openai` client, created on first use: a run with all answers cached needs no key."""
        import openai

        settings, key = self.settings, self._key
        if settings.api_key_env and not key:
            remedy = "set it to the endpoint's key, or name another one in api_key_env (null: no key)."
            raise EndpointError(f"environment variable {settings.api_key_env} is not set; {remedy}")
        options: dict[str, Any] = {"max_retries": settings.max_retries, "timeout": settings.timeout_s}
        return openai.OpenAI(base_url=settings.base_url, api_key=key or "none", **options)

    @property
    def _key(self) -> str:
        return os.environ.get(self.settings.api_key_env or "", "")

    def ask_json(self, messages: Messages, validate: Callable[[Any], Value], *, attempts: int = 2) -> Value:
        """Return the answer's JSON after `validate`, which may be pydantic's `Model.model_validate`."""
        return self.ask(messages, lambda text, is_cut: validate(parse_answer(text, is_cut)), attempts=attempts).value

    def ask(self, messages: Messages, read: Callable[..., Value], *, attempts: int = 2) -> Answered[Value]:
        """Return `read(text, is_cut=...)` of the answer; the model gets its `ValueError` and is asked again."""
        # Without the endpoint's address, so that a model keeps its answers when it moves.
        asked = [self.settings.model, list(messages), self.settings.parameters]
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        with self._lock:
            lock = self._asking.setdefault(key, threading.Lock())
        # If two threads ask the same question, the second waits for the answer of the first.
        with lock:
            record = json.loads(self.cache.get(key, "null", retry=True))
            with suppress(ValueError):
                if record:
                    value, tokens = read(record["text"], is_cut=record["is_cut"]), record["tokens"]
                    self._change(record["changed_parameters"], "recorded with a cached answer")
                    self._count(cached=1, reused_prompt_tokens=tokens[0], reused_completion_tokens=tokens[1])
                    return Answered(value, record["text"], TokenUsage(1, *tokens))
            answered, is_cut = self._ask(messages, read, attempts)
            tokens = (answered.spent.prompt_tokens, answered.spent.completion_tokens)
            record = {"tokens": tokens, "changed_parameters": self._changed, "text": answered.text, "is_cut": is_cut}
            self.cache.set(key, json.dumps(record), retry=True)
            return answered

    def map(
        self, ask: Callable[[Item], Value], items: Iterable[Item], description: str = "questions"
    ) -> Iterator[Value]:
        """Yield `ask(item)` in order; items are read as needed."""
        from tqdm import tqdm

        source, pending = iter(items), deque[Future[Value]]()
        pool = ThreadPoolExecutor(self.settings.concurrency)
        try:
            with tqdm(total=len(items) if isinstance(items, Sized) else None, desc=description) as progress:
                while True:
                    more = islice(source, 4 * self.settings.concurrency - len(pending))
                    pending.extend(pool.submit(ask, item) for item in more)
                    if not pending:
                        return
                    result = pending[0].result()
                    pending.popleft()
                    progress.update()
                    yield result
        finally:
            # Requests in flight are paid for: wait for them and cache their answers.
            pool.shutdown(wait=True, cancel_futures=True)

    def _ask(self, messages: Messages, read: Callable[..., Value], attempts: int) -> tuple[Answered[Value], bool]:
        """Ask until an answer is valid, each time with the last problem; return it and whether it was cut."""
        conversation, spent, problem, text = list(messages), TokenUsage(), "", ""
        try:
            for attempt in range(attempts):
                self._count(reasks=min(attempt, 1))
                text, is_cut, used = self._send(conversation)
                spent += used
                try:
                    return Answered(read(text, is_cut=is_cut), text, spent), is_cut
                except ValueError as error:
                    problem = explain_error(error)
                    conversation = ask_again(messages, text, problem)
            text, found = self._redact(text), f"gave no usable answer in {attempts} attempts: {self._redact(problem)}"
            end = f"Its last answer begins {text[:_QUOTED_CHARACTERS]!r}."
            raise ChatError(f"{self.settings.model} {found} {end}", text)
        except ChatError as error:
            self._count(failures=1)
            error.spent += spent
            raise

    def _send(self, messages: Messages) -> tuple[str, bool, TokenUsage]:
        """Return the text of an answer, whether it was cut, and its tokens; retry without a refused parameter."""
        import openai

        changed, reasons = self._changed, list[str]()
        create = self._endpoint.chat.completions.with_raw_response.create
        while True:
            parameters = self.settings.parameters
            for name, other in changed.items():
                if name in parameters:
                    value = parameters.pop(name)
                    parameters |= {other: value} if other else {}
            self._count(calls=1)
            try:
                raw = create(model=self.settings.model, messages=list(messages), extra_body=parameters)
                break
            except openai.APIError as error:
                is_refusal = isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError)
                change = _find_change(f"{error.message} {error.body}", parameters, changed) if is_refusal else None
                if change is None:
                    # `from None`: the chained error could show the key.
                    raise self._convert_error(error) from None
                changed = {**changed, **change}
                reasons.append(self._quote(error))
        self._count(retries=raw.retries_taken)
        try:
            completion = _Completion.model_validate_json(raw.content)
        except ValueError:
            said = self._redact(raw.content.decode(errors="replace"))[:_QUOTED_CHARACTERS]
            raise ChatError(f"the endpoint did not return a chat completion ({said}).") from None
        # Only now: an error about this question alone may name a parameter by chance.
        self._change(changed, " ".join(reasons))
        choice, tokens = completion.choices[0], [0, 0]
        with suppress(AttributeError, TypeError, ValueError):
            tokens = [int(completion.usage.get(name) or 0) for name in _TOKENS]
        self._count(prompt_tokens=tokens[0], completion_tokens=tokens[1], calls_without_usage=int(not any(tokens)))
        spent = TokenUsage(1, *tokens)
        if choice.message.refusal or choice.finish_reason == "content_filter":
            self._count(refusals=1)
            text = self._redact(choice.message.refusal or "content filter")
            raise ChatError(f"{self.settings.model} refused: {text}", text, spent, True)
        return choice.message.text, choice.finish_reason == "length", spent

    def _redact(self, text: str) -> str:
        """Remove the key from an endpoint's text: some endpoints quote an invalid key."""
        return text.replace(self._key, "[key]") if self._key else text

    def _convert_error(self, error: Any) -> ChatError | EndpointError:
        """Convert an error of the `openai` package, and count its retries."""
        import openai

        sent = int(error.request.headers.get("x-stainless-retry-count", 0))
        self._count(retries=sent)
        is_lost = isinstance(error, openai.APIConnectionError) and not isinstance(error, openai.APITimeoutError)
        status, said = 0 if is_lost else getattr(error, "status_code", -1), f"after {sent + 1} tries"
        if status not in _PROBLEMS:
            return ChatError(f"the endpoint did not answer {said} ({self._quote(error)}).")
        problem, remedy = _PROBLEMS[status]
        found = problem.format(key=self.settings.api_key_env, model=self.settings.model)
        return EndpointError(f"{found} {said} ({self._quote(error)}); {remedy}.")

    def _quote(self, error: Any) -> str:
        """Return the message of an `openai` error, with the endpoint's message if it is missing."""
        is_said = isinstance(error.body, Mapping) and "message" in error.body or str(error.body or "") in error.message
        what = f"{type(error).__name__}: {error.message}{'' if is_said else f' {error.body}'}"
        return self._redact(what)[:_QUOTED_CHARACTERS]

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _change(self, changed: Mapping[str, str | None], reason: str) -> None:
        """Use changed parameters for the rest of the run."""
        with self._lock:
            new = {name: other for name, other in changed.items() if name not in self._changed}
            self._changed = {**self._changed, **new}
        for name, other in new.items():
            how = f"sends it as {other}" if other else "omits it"
            logger.warning("%s: the endpoint refuses %s; the run %s (%s)", self.settings.model, name, how, reason)


def ask_again(messages: Messages, reply: str, problem: str) -> list[Mapping[str, Any]]:
    remark = f"Your answer is not valid: {problem} Answer again, with the complete JSON and nothing else."
    # Some endpoints refuse an empty message.
    answer = [{"role": "assistant", "content": reply}] if reply.strip() else []
    return [*messages, *answer, {"role": "user", "content": remark}]


def _find_change(message: str, parameters: Iterable[str], changed: Mapping[str, Any]) -> dict[str, str | None] | None:
    """Return the first parameter that an error names, with its new name, or None to omit it."""
    text = message[:_SEARCHED_CHARACTERS]
    names = "|".join(map(re.escape, ["messages", *parameters]))
    named = re.search(rf"\b(?:{names})\b", text)
    if named is None or named[0] == "messages" or _TOO_LONG.search(text):
        return None
    other = _RENAMED.get(named[0])
    return {named[0]: other if other and other in text and other not in changed else None}


@dataclass
class FailureLimit:
    """Stop a run if the model fails on more than a given share of the questions."""

    max_failed: float
    asked: str  # Subject of the message, such as "the judge failed on {} pairs".
    setting: str  # Name of the setting behind `max_failed`.
    num_asked: int = 0
    reasons: list[str] = field(default_factory=list)

    def count(self, failure: str | None) -> None:
        """Count a question, and its failure if any; raise `EndpointError` above the limit."""
        self.num_asked += 1
        self.reasons += [] if failure is None else [failure]
        if self.num_asked >= _FEWEST_ASKED:
            self.require_few()

    def require_few(self) -> None:
        """Check the limit at the end of a run, however few questions there were."""
        if len(self.reasons) > self.max_failed * self.num_asked:
            failed = self.asked.format(f"{len(self.reasons)} of {self.num_asked}")
            most = f"At most {self.max_failed:.0%} may fail ({self.setting}); fix the settings and resume."
            raise EndpointError(f"{failed}; the first reason: {self.reasons[0]} {most}")
