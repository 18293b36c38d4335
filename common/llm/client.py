"""Ask any OpenAI-compatible chat endpoint for answers in JSON, each question once.

An answer is cached on disk under a hash of everything it depends on as soon as it has passed its check, so a killed
run pays for nothing twice. An unusable answer is asked for again with the reason; its tokens count too. A parameter
that the endpoint refuses (see `refusals`) is changed for the rest of the run; `usage` and the kept answers say so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from sdiareward.common.files import read_sealed, seal, write_file

from .json_parsing import parse_json
from .refusals import find_change, substitute
from .settings import ChatError, ChatSettings, EndpointError, TokenUsage


__all__ = [
    "CachedAnswer",
    "ChatClient",
    "ChatError",
    "ChatSettings",
    "EndpointError",
    "ask_again",
]


logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Value = TypeVar("Value")
# The longest quotation of an answer in an error.
_QUOTED_CHARACTERS = 300
_COUNTS = (
    "calls",
    "cached",
    "retries",
    "reasks",
    "refusals",
    "failures",
    "calls_without_usage",
    "prompt_tokens",
    "completion_tokens",
    "reused_prompt_tokens",
    "reused_completion_tokens",
)


@dataclass(frozen=True)
class CachedAnswer(Generic[Value]):
    """An answer that passed its check."""

    value: Value
    text: str  # The reply; of a cached answer the JSON only.
    spent: TokenUsage


@dataclass(frozen=True)
class _Reply:
    content: str
    is_cut: bool
    spent: TokenUsage


class ChatClient:
    """Ask one endpoint through a cache of answers; threads may share a client, and processes and endpoints a cache."""

    def __init__(self, settings: ChatSettings, cache_dir: str | Path):
        self.settings = settings
        self.cache_dir = Path(cache_dir)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        # A lock lives as long as somebody asks its question.
        self._asking: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._endpoint: Any = None
        # What the endpoint refuses -> what is sent instead; None for nothing.
        self._changed: dict[str, str | None] = {}

    @property
    def usage(self) -> dict[str, Any]:
        """The counts so far; `reused_...` were spent by an earlier run, `usd` is None without prices."""
        with self._lock:
            counts: dict[str, Any] = {name: self._counts[name] for name in _COUNTS}
            changed = {"changed_parameters": self._changed} if self._changed else {}
        usd = self.settings.compute_price_usd(counts["prompt_tokens"], counts["completion_tokens"])
        return {**counts, "usd": usd, **changed}

    def has_answers(self) -> bool:
        return any(self.cache_dir.glob("*/*.json"))

    def ask_json(
        self, messages: Sequence[Mapping[str, Any]], validate: Callable[[Any], Value], *, attempts: int = 2
    ) -> Value:
        return self.ask(messages, validate, attempts=attempts).value

    def ask(
        self, messages: Sequence[Mapping[str, Any]], validate: Callable[[Any], Value], *, attempts: int = 2
    ) -> CachedAnswer[Value]:
        """Return the checked answer; `validate` raises `ValueError` with a message for the model if it is wrong."""
        content = json.dumps(self.settings.request(messages), sort_keys=True)
        # Without the address of the endpoint: a model that moved keeps its answers.
        key = hashlib.sha256(content.encode()).hexdigest()
        path = self.cache_dir / key[:2] / f"{key}.json"
        with self._lock:
            lock = self._asking.setdefault(key, threading.Lock())
        # Of two threads with the same question the second waits and finds the answer of the first.
        with lock:
            if (known := self._read_answer(path, validate)) is not None:
                return known
            replies: list[_Reply] = []
            try:
                return self._ask(messages, validate, attempts, path, replies)
            except ChatError as error:
                self._count(failures=1)
                error.spent = TokenUsage.total([error.spent, *(reply.spent for reply in replies)])
                raise

    def map(
        self,
        ask: Callable[[Item], Value],
        items: Iterable[Item],
        *,
        failures: tuple[type[Exception], ...] = (ChatError,),
        description: str = "questions",
        total: int | None = None,
    ) -> Iterator[Value | Exception]:
        """Yield `ask(item)`, or one of `failures`, in order; items are read as needed."""
        from tqdm import tqdm

        source = iter(items)
        pending: deque[Future[Value]] = deque()
        pool = ThreadPoolExecutor(self.settings.concurrency)
        total = len(items) if total is None and isinstance(items, Sized) else total
        try:
            with tqdm(total=total, desc=description) as progress:
                while True:
                    for item in islice(source, 4 * self.settings.concurrency - len(pending)):
                        pending.append(pool.submit(ask, item))
                    if not pending:
                        return
                    try:
                        result: Value | Exception = pending[0].result()
                    except failures as error:
                        result = error
                    pending.popleft()
                    progress.update()
                    yield result
        finally:
            # Requests in flight are paid for: they are awaited, and their answers cached.
            pool.shutdown(wait=True, cancel_futures=True)

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _read_answer(self, path: Path, validate: Callable[[Any], Value]) -> CachedAnswer[Value] | None:
        """Return the cached answer; None if there is none that passes the check."""
        try:
            record = read_sealed(path)
            value = validate(record["answer"])
            spent = TokenUsage(1, int(record["prompt_tokens"]), int(record["completion_tokens"]))
            self._change(dict(record.get("changed_parameters", {})), "recorded with a cached answer")
        # The last: an infinite count.
        except (ValueError, TypeError, KeyError, OverflowError):
            return None
        reused = {"reused_prompt_tokens": spent.prompt_tokens, "reused_completion_tokens": spent.completion_tokens}
        self._count(cached=1, **reused)
        return CachedAnswer(value, json.dumps(record["answer"], ensure_ascii=False), spent)

    def _write_answer(self, path: Path, answer: Any, spent: TokenUsage) -> None:
        record = {
            "model": self.settings.model,
            "answer": answer,
            "prompt_tokens": spent.prompt_tokens,
            "completion_tokens": spent.completion_tokens,
            **({"changed_parameters": self._changed} if self._changed else {}),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, seal(record), is_shared=True)

    def _ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        validate: Callable[[Any], Value],
        attempts: int,
        path: Path,
        replies: list[_Reply],
    ) -> CachedAnswer[Value]:
        """Ask until an answer passes, each time with the last problem; append each reply to `replies`."""
        conversation: list[Mapping[str, Any]] = list(messages)
        problem = ""
        for attempt in range(attempts):
            self._count(reasks=min(attempt, 1))
            reply = self._send(conversation)
            replies.append(reply)
            try:
                answer = parse_json(reply.content, is_cut=reply.is_cut)
                value = validate(answer)
            except (ValueError, TypeError, KeyError) as error:
                problem = f"it lacks {error}." if isinstance(error, KeyError) else str(error)
            else:
                spent = TokenUsage.total(reply.spent for reply in replies)
                self._write_answer(path, answer, spent)
                return CachedAnswer(value, reply.content, spent)
            conversation = ask_again(messages, reply.content, problem)
        last = self._redact(replies[-1].content) if replies else ""
        raise ChatError(
            f"{self.settings.model} gave no usable answer in {attempts} attempts: {self._redact(problem)} "
            f"Its last answer begins {last[:_QUOTED_CHARACTERS]!r}.",
            answer=last,
        )

    def _send(self, messages: Sequence[Mapping[str, Any]]) -> _Reply:
        """Send one request, again without each refused parameter, and return the answer; raise `ChatError` if none."""
        endpoint = self._connect()
        import openai

        reasons: list[str] = []
        changed = self._changed
        while True:
            request = substitute(self.settings.request(messages), changed)
            self._count(calls=1)
            try:
                raw = endpoint.chat.completions.with_raw_response.create(**request)
                completion = raw.parse()
                self._count(retries=raw.retries_taken)
                if not completion.choices:
                    raise ValueError(raw.text[:_QUOTED_CHARACTERS])
                choice = completion.choices[0]
                content = _join_parts(choice.message.content)
                break
            except openai.APIError as error:
                is_refusal = isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError)
                change = find_change(f"{error.message} {error.body}", request, changed) if is_refusal else None
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
        spent = _read_usage(completion.usage)
        self._count(prompt_tokens=spent.prompt_tokens, completion_tokens=spent.completion_tokens)
        self._count(calls_without_usage=int(spent == TokenUsage(1)))
        refusal = getattr(choice.message, "refusal", None)
        if refusal or choice.finish_reason == "content_filter":
            self._count(refusals=1)
            text = self._redact(str(refusal or "content filter"))
            raise ChatError(f"{self.settings.model} refused: {text}", answer=text, is_refusal=True, spent=spent)
        return _Reply(content, choice.finish_reason == "length", spent)

    def _connect(self) -> Any:
        """Return the `openai` client, created on first use: a run with all answers cached needs no key."""
        try:
            import openai
        except ModuleNotFoundError:
            raise EndpointError("the package 'openai' is not installed; pip install openai.") from None
        key = self._read_key()
        if not key:
            raise EndpointError(
                f"environment variable {self.settings.api_key_env} is not set; put the key of the endpoint in it, or "
                "name another one with api_key_env (null for an endpoint without keys)."
            )
        with self._lock:
            if self._endpoint is None:
                self._endpoint = openai.OpenAI(
                    base_url=self.settings.base_url,
                    api_key=key,
                    max_retries=self.settings.max_retries,
                    timeout=self.settings.timeout_s,
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

        sent = error.request.headers.get("x-stainless-retry-count", 0)
        self._count(retries=int(sent))
        what, tries = self._quote(error), f"after {int(sent) + 1} tries"
        status = getattr(error, "status_code", None)
        if status in (401, 403):
            return EndpointError(f"the endpoint does not accept the key in {self.settings.api_key_env} ({what}).")
        if status == 404:
            return EndpointError(f"the endpoint does not know {self.settings.model!r} ({what}); check base_url.")
        if status in (402, 429):
            return EndpointError(f"the endpoint's limit is used up {tries} ({what}); resume later.")
        if isinstance(error, openai.APIConnectionError) and not isinstance(error, openai.APITimeoutError):
            return EndpointError(f"the endpoint cannot be reached {tries} ({what}); check base_url.")
        return ChatError(f"the endpoint gave no answer {tries} ({what}).")

    def _quote(self, error: Any) -> str:
        """Return what an error of the `openai` package says, with the endpoint's words where it leaves them out."""
        is_said = isinstance(error.body, Mapping) and "message" in error.body or str(error.body or "") in error.message
        what = f"{type(error).__name__}: {error.message}{'' if is_said else f' {error.body}'}"
        return self._redact(what)[:_QUOTED_CHARACTERS]

    def _change(self, changed: Mapping[str, str | None], reason: str) -> None:
        """Send changed parameters for the rest of the run."""
        with self._lock:
            new = {name: other for name, other in changed.items() if name not in self._changed}
            self._changed = {**self._changed, **new}
        for name, other in new.items():
            how = f"sends it as {other}" if other else "omits it"
            logger.warning("%s: the endpoint refuses %s; the run %s (%s)", self.settings.model, name, how, reason)


def _join_parts(content: Any) -> str:
    """Return the text of an answer, which some endpoints give in parts."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type", "text") == "text")
    if not isinstance(content, str | None):
        raise TypeError(f"its content is a {type(content).__name__}, not a text")
    return content or ""


def _read_usage(usage: Any) -> TokenUsage:
    """Return the reported tokens of an answer; 0 where the endpoint reports none."""
    try:
        return TokenUsage(1, int(usage.prompt_tokens or 0), int(usage.completion_tokens or 0))
    except (AttributeError, TypeError, ValueError):
        return TokenUsage(1)


def ask_again(messages: Sequence[Mapping[str, Any]], reply: str, problem: str) -> list[Mapping[str, Any]]:
    remark = f"Your answer cannot be used: {problem} Answer again, with the complete JSON and nothing else."
    # An endpoint may refuse an empty message.
    answer = [{"role": "assistant", "content": reply}] if reply.strip() else []
    return [*messages, *answer, {"role": "user", "content": remark}]
