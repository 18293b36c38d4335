"""Ask any OpenAI-compatible chat endpoint for answers in JSON, each question once.

The data set's judge, its annotator and the writer of its scripts all ask through this client. An answer is kept on
disk under a hash of everything it depends on as soon as it has passed its check, so a run that was killed pays for
nothing twice and a second run sends nothing. What cannot be used is asked again with the reason; what was spent on it
is counted all the same.

Two errors tell apart what failed: `ChatError` is about one question, the others may go on; `EndpointError` is about
the endpoint (no key, unknown model, nobody listening, quota used up), where going on would only lose every question.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from .json_answers import parse_json


Item = TypeVar("Item")
Value = TypeVar("Value")
# The longest part of an answer that an error quotes.
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


class ChatError(RuntimeError):
    """Raised when one question gets no usable answer; other questions may."""


class EndpointError(RuntimeError):
    """Raised when the endpoint answers no question at all, as it is configured."""


@dataclass(frozen=True)
class ChatSettings:
    """An endpoint, a model and how to ask it.

    Args:
        model (`str`): Name of the model, as the endpoint knows it.
        base_url (`str`, *optional*): Address up to and including `/v1`; None for the `openai` package's own default.
        api_key_env (`str`, *optional*, defaults to `"OPENAI_API_KEY"`): Environment variable that holds the key, which
            is written nowhere; None for an endpoint that asks for none.
        temperature (`float`, *optional*, defaults to 0.0): None leaves it to the endpoint, as do the next two.
        max_tokens (`int`, *optional*, defaults to 2048): Longest answer.
        seed (`int`, *optional*, defaults to 0): Seed of the endpoint's sampling, where it heeds one.
        max_retries (`int`, *optional*, defaults to 6): How often a request is sent again after a rate limit, a server
            error or a timeout, with growing pauses or the pause that the endpoint names.
        timeout_s (`float`, *optional*, defaults to 120.0): Longest wait for one answer, in seconds.
        concurrency (`int`, *optional*, defaults to 4): Requests under way at once in `ChatClient.map`.
        usd_per_million_input_tokens, usd_per_million_output_tokens (`float`, *optional*): Prices, in US dollars.
        extra_body (`Mapping`): Further fields of the request, such as `{"response_format": {"type": "json_object"}}`.

    Raises:
        ValueError: A number is out of its range, or only one of the two prices is given.
    """

    model: str
    base_url: str | None = None
    api_key_env: str | None = "OPENAI_API_KEY"
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    seed: int | None = 0
    max_retries: int = 6
    timeout_s: float = 120.0
    concurrency: int = 4
    usd_per_million_input_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("max_retries", 0), ("concurrency", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be more than 0 seconds.")
        if (self.usd_per_million_input_tokens is None) != (self.usd_per_million_output_tokens is None):
            raise ValueError("one price is missing; give usd_per_million_input_tokens and _output_tokens, or neither.")

    def request(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the fields of a request for `messages`: all that the answer depends on, and nothing secret."""
        optional = {"temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.seed}
        fields: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        if self.extra_body:
            fields["extra_body"] = dict(self.extra_body)
        return {"model": self.model, "messages": [dict(message) for message in messages], **fields}


@dataclass(frozen=True)
class _Reply:
    content: str
    is_cut: bool
    prompt_tokens: int
    completion_tokens: int


class ChatClient:
    """Ask one endpoint for JSON, through a cache of checked answers. May be shared by threads.

    Args:
        settings (`ChatSettings`): Whom to ask, and how.
        cache_dir (`str` or `Path`): Folder of the answers; several processes and endpoints may share it. The address
            of the endpoint is no part of an answer's key, so that a model that moved keeps its answers.
    """

    def __init__(self, settings: ChatSettings, cache_dir: str | Path):
        self.settings = settings
        self.cache_dir = Path(cache_dir)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Lock] = {}
        self._endpoint: Any = None

    @property
    def usage(self) -> dict[str, Any]:
        """What this client has spent so far.

        Returns:
            `dict`: `calls` (requests that were answered or failed for good), `cached` (questions answered from disk),
            `retries` (requests sent again by the `openai` package), `reasks` (questions asked again because the answer
            was of no use), `refusals`, `failures` (questions without an answer), `calls_without_usage` (answers whose
            tokens the endpoint did not tell), `prompt_tokens` and `completion_tokens`, the same of answers reused from
            disk (`reused_...`, spent by an earlier run), and `usd`, None where no prices are set.
        """
        with self._lock:
            counts = {name: self._counts[name] for name in _COUNTS}
        input_price = self.settings.usd_per_million_input_tokens
        output_price = self.settings.usd_per_million_output_tokens
        usd = None
        if input_price is not None and output_price is not None:
            usd = (counts["prompt_tokens"] * input_price + counts["completion_tokens"] * output_price) / 1e6
        return {**counts, "usd": usd}

    def ask_json(
        self, messages: Sequence[Mapping[str, Any]], validate: Callable[[Any], Value], *, attempts: int = 3
    ) -> Value:
        """Return what `validate` makes of the answer to `messages`.

        Args:
            messages (`Sequence[Mapping]`): The conversation, in the endpoint's form; see `audio_content`.
            validate (`Callable`): Takes the parsed JSON and returns what the caller wants of it, or raises
                `ValueError` (`TypeError` and `KeyError` count as such) with a message that the model can act on.
            attempts (`int`, *optional*, defaults to 3): How often to ask before giving up.

        Raises:
            ChatError: No usable answer in that many attempts, a refusal, or a request that the endpoint rejects.
            EndpointError: The endpoint cannot be used at all.
        """
        content = json.dumps(self.settings.request(messages), sort_keys=True)
        key = hashlib.sha256(content.encode()).hexdigest()
        path = self.cache_dir / key[:2] / f"{key}.json"
        with self._lock:
            lock = self._asking.setdefault(key, threading.Lock())
        # Two threads with the same question: the second waits and finds the answer of the first.
        with lock:
            if (known := self._read_answer(path, validate)) is not None:
                return known[0]
            try:
                return self._ask(messages, validate, attempts, path)
            except ChatError:
                self._count(failures=1)
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
        """Yield `ask(item)` for each item in order, `concurrency` at a time, with a progress bar.

        Items are taken as they are needed, never all at once. When the caller stops, or is interrupted, nothing new is
        begun; what is under way is waited for, since it is paid for, and its answers are kept.

        Args:
            ask (`Callable`): Called in threads; asks through this client.
            items (`Iterable`): What to ask about.
            failures (`tuple[type[Exception], ...]`): Errors that are yielded in the place of a result; others end the
                loop. `ChatError` by default.
            description (`str`): Title of the progress bar.
            total (`int`, *optional*): Number of items, where `items` has no length.
        """
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
            pool.shutdown(wait=True, cancel_futures=True)

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _read_answer(self, path: Path, validate: Callable[[Any], Value]) -> tuple[Value] | None:
        """Return the kept answer in a tuple; None if there is none that passes today's check."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            value = validate(record["answer"])
            reused = {f"reused_{name}": int(record[name]) for name in ("prompt_tokens", "completion_tokens")}
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None
        self._count(cached=1, **reused)
        return (value,)

    def _write_answer(self, path: Path, answer: Any, replies: Sequence[_Reply]) -> None:
        record = {
            "model": self.settings.model,
            "answer": answer,
            "prompt_tokens": sum(reply.prompt_tokens for reply in replies),
            "completion_tokens": sum(reply.completion_tokens for reply in replies),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        # Named by process and thread: processes that share the folder may ask the same at the same time.
        unfinished = path.with_name(f".{path.stem}.{os.getpid()}.{threading.get_ident()}.tmp")
        unfinished.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
        unfinished.replace(path)

    def _ask(
        self, messages: Sequence[Mapping[str, Any]], validate: Callable[[Any], Value], attempts: int, path: Path
    ) -> Value:
        """Ask until an answer passes, telling the model each time what was wrong."""
        conversation: list[Mapping[str, Any]] = list(messages)
        replies: list[_Reply] = []
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
                self._write_answer(path, answer, replies)
                return value
            remark = f"Your answer cannot be used: {problem} Answer again, with the complete JSON and nothing else."
            # An endpoint may refuse an empty message.
            said = [{"role": "assistant", "content": reply.content}] if reply.content.strip() else []
            conversation = [*messages, *said, {"role": "user", "content": remark}]
        last = self._redact(replies[-1].content)[:_QUOTED_CHARACTERS] if replies else ""
        raise ChatError(
            f"{self.settings.model} gave no usable answer in {attempts} attempts: {self._redact(problem)} "
            f"Its last answer begins {last!r}."
        )

    def _send(self, messages: Sequence[Mapping[str, Any]]) -> _Reply:
        """Send one request and return the answer; raise `ChatError` for a refusal."""
        endpoint = self._connect()
        import openai

        self._count(calls=1)
        try:
            raw = endpoint.chat.completions.with_raw_response.create(**self.settings.request(messages))
            completion = raw.parse()
            self._count(retries=raw.retries_taken)
            choice = completion.choices[0]
        except openai.APIError as error:
            # `from None`: the chained error would show what the endpoint said before the key is taken out of it.
            raise self._explain(error) from None
        except (ValueError, AttributeError, TypeError, IndexError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ChatError(f"the endpoint's answer is no chat completion ({self._redact(what)}).") from None
        usage = completion.usage
        tokens = (usage.prompt_tokens or 0, usage.completion_tokens or 0) if usage else (0, 0)
        self._count(prompt_tokens=tokens[0], completion_tokens=tokens[1], calls_without_usage=int(usage is None))
        refusal = getattr(choice.message, "refusal", None)
        if refusal or choice.finish_reason == "content_filter":
            self._count(refusals=1)
            raise ChatError(f"{self.settings.model} refused: {self._redact(str(refusal or 'content filter'))}")
        return _Reply(choice.message.content or "", choice.finish_reason == "length", *tokens)

    def _connect(self) -> Any:
        """Return the `openai` client, made on first use: a run that finds every answer on disk needs no key."""
        try:
            import openai
        except ModuleNotFoundError:
            raise EndpointError("the package 'openai' is not installed; pip install openai.") from None
        key = self._key()
        if not key:
            raise EndpointError(
                f"environment variable {self.settings.api_key_env} is not set; put the key of the endpoint in it, or "
                "name another one with api_key_env (null for an endpoint that asks for none)."
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

    def _key(self) -> str:
        name = self.settings.api_key_env
        return "none" if name is None else os.environ.get(name, "")

    def _redact(self, text: str) -> str:
        """Take the key out of what the endpoint said: some repeat it when they do not know it."""
        key = self._key()
        return text.replace(key, "[key]") if key and self.settings.api_key_env else text

    def _explain(self, error: Any) -> ChatError | EndpointError:
        """Return our error for one of the `openai` package, with its retries counted."""
        import openai

        sent = error.request.headers.get("x-stainless-retry-count", 0)
        self._count(retries=int(sent))
        what = self._redact(f"{type(error).__name__}: {error.message}")[:_QUOTED_CHARACTERS]
        tries = f"after {int(sent) + 1} tries"
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            return EndpointError(f"the endpoint does not accept the key in {self.settings.api_key_env} ({what}).")
        if isinstance(error, openai.NotFoundError):
            return EndpointError(f"the endpoint does not know {self.settings.model!r} ({what}); check base_url.")
        if isinstance(error, openai.RateLimitError):
            return EndpointError(f"the endpoint's limit is used up {tries} ({what}); go on later.")
        if isinstance(error, openai.APIConnectionError) and not isinstance(error, openai.APITimeoutError):
            return EndpointError(f"the endpoint cannot be reached {tries} ({what}); check base_url.")
        return ChatError(f"the endpoint gave no answer {tries} ({what}).")


def audio_content(source: Any, *, name: str | None = None) -> dict[str, Any]:
    """Return a recording as a part of a message: mono WAV, 16 kHz, 16 bit, in base64.

    Args:
        source: Anything `audio_sdiareward.read_audio` takes, such as a row's `{"bytes", "path"}`.
        name (`str`, *optional*): What to call the recording in an error.

    Raises:
        AudioError: The recording cannot be used.
        FileNotFoundError: The path does not exist.
    """
    import base64
    import io

    import numpy as np
    import soundfile

    from .audio_sdiareward import SAMPLING_RATE, read_audio

    # 32768 is what decoding divided by: 16-bit audio passes through unchanged.
    samples = np.clip(np.round(read_audio(source, name=name) * 32768), -32768, 32767).astype(np.int16)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, SAMPLING_RATE, format="WAV", subtype="PCM_16")
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
