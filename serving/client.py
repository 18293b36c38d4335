"""The client of a server: it needs neither torch nor the model."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import requests
from urllib3.util import Retry

from sdiareward.audio_sdiareward import Heard, describe_unheard
from sdiareward.chat_sdiareward import DialogueError

from .encoding import encode_dialogue
from .settings import API_KEY_ENV


logger = logging.getLogger(__name__)

# A dialogue's index and its form in a request.
Numbered = tuple[int, dict[str, Any]]

_RETRIED = (502, 503, 504)
_LONGEST_PAUSE_S = 30.0
_QUOTED_CHARACTERS = 300
# The fields of a request other than its dialogues.
_SPARE_BYTES = 1024


class ServiceError(RuntimeError):
    """Raised when the server does not answer, or fails for a reason other than the request."""


class RefusedError(ValueError):
    """Raised when the server refuses the request; `problems` name dialogue and turn from 1."""

    def __init__(self, problems: Sequence[Mapping[str, Any]]):
        super().__init__("; ".join(_as_line(problem) for problem in problems))
        self.problems = list(problems)


class _TooLargeError(RefusedError):
    """Raised when a request is too large."""


class _FailedError(ServiceError):
    """Raised when the model failed on the request."""


class ExponentialRetry(Retry):
    """Pause longer before each retry, at least `Retry-After`; at random, so that refused clients spread out."""

    def sleep(self, response: Any = None) -> None:
        requested_s = self.get_retry_after(response) if response is not None else None
        time.sleep(max(requested_s or 0.0, self.get_backoff_time()) * random.uniform(1.0, 1.5))


def _as_line(problem: Mapping[str, Any]) -> str:
    number = problem.get("dialogue")
    return f"dialogue {number}, {problem['msg']}" if number else str(problem["msg"])


@dataclass(frozen=True)
class Comparison:
    rewards: tuple[float, float]
    margin: float  # Reward of the first minus that of the second.
    probability: float  # That the first is better.
    heard: tuple[Heard, Heard]  # Seconds given and heard, cut turns, silent turns.


class RewardClient:
    """Score dialogues on a server, which gets the recordings and reads no files; threads may share a client."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        max_retries: int = 8,
        timeout_s: float = 150.0,
        dialogues_per_request: int = 8,
        concurrency: int = 4,
    ):
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self.dialogues_per_request = dialogues_per_request
        self.concurrency = concurrency
        self._api_key = api_key if api_key is not None else os.environ.get(API_KEY_ENV)
        # A reward depends on the dialogue alone, so a retry is safe.
        self._session = self._open_session(max_retries)

    def __repr__(self) -> str:
        return f"RewardClient({self.url!r})"

    def score(
        self,
        dialogues: Sequence[Any],
        criterion: str = "joint",
        calibrated: bool = False,
        *,
        subset: str | None = None,
        require_audio: bool = True,
        heard: MutableMapping[int, Heard] | None = None,
    ) -> list[float]:
        """Return the rewards, higher is better, or calibrated values: with `subset` the log-odds in it.

        `heard` is as in `Scorer.score`.
        """
        options = {"criterion": criterion, "calibrated": calibrated, "subset": subset, "require_audio": require_audio}
        results = list(self._iter_results(dialogues, options))
        _note_heard(results, heard)
        return [result["calibrated" if calibrated else "reward"] for result in results]

    def score_or_reason(
        self,
        dialogues: Sequence[Any],
        criterion: str = "joint",
        *,
        require_audio: bool = True,
        heard: MutableMapping[int, Heard] | None = None,
    ) -> list[float | str]:
        """Return the reward of each dialogue, or the reason why it was skipped."""
        options = {"criterion": criterion, "require_audio": require_audio, "skip_bad": True}
        results = list(self._iter_results(dialogues, options))
        _note_heard(results, heard)
        return [result["error"]["msg"] if result["error"] else result["reward"] for result in results]

    def compare(
        self,
        a: Any,
        b: Any,
        criterion: str = "joint",
        *,
        calibrated: bool = False,
        subset: str | None = None,
        require_audio: bool = True,
    ) -> Comparison:
        options = {"criterion": criterion, "calibrated": calibrated, "subset": subset, "require_audio": require_audio}
        found = self._post("/compare", {**options, "a": encode_dialogue(a), "b": encode_dialogue(b)})
        a, b = found["a"], found["b"]
        heard = _read_heard(a), _read_heard(b)
        return Comparison((a["reward"], b["reward"]), found["margin"], found["probability"], heard)

    def health(self) -> dict[str, Any]:
        """Return the state of the server: its model, criteria and limits."""
        return self._send("GET", "/health")

    def _iter_results(self, dialogues: Sequence[Any], options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        size = min(self.dialogues_per_request, int(self._limits["max_dialogues"])) if len(dialogues) > 1 else 1
        parts = [range(first, min(first + size, len(dialogues))) for first in range(0, len(dialogues), size)]
        if len(parts) == 1:
            yield from self._score_part(dialogues, parts[0], options)
            return
        with ThreadPoolExecutor(self.concurrency) as pool:
            for results in pool.map(lambda part: self._score_part(dialogues, part, options), parts):
                yield from results

    def _score_part(
        self, dialogues: Sequence[Any], part: range, options: Mapping[str, Any]
    ) -> Sequence[dict[str, Any]]:
        encoded = [_encode_or_reason(dialogues[index], index, options) for index in part]
        valid = [(index, each) for index, each in zip(part, encoded, strict=True) if not isinstance(each, str)]
        found = iter(
            [result for group in self._split_by_size(valid) for result in self._score_together(group, options)]
        )
        return [{"error": {"msg": each}} if isinstance(each, str) else next(found) for each in encoded]

    @cached_property
    def _limits(self) -> dict[str, Any]:
        given = self.health().get("limits", {})
        return {"max_dialogues": self.dialogues_per_request, "max_body_bytes": float("inf"), **given}

    def _split_by_size(self, encoded: Sequence[Numbered]) -> Iterator[list[Numbered]]:
        """Yield groups of dialogues that fit into one request, or a single one that is too large."""
        group: list[Numbered] = []
        size = 0
        for index, each in encoded:
            added = len(json.dumps(each))
            if group and size + added > self._limits["max_body_bytes"] - _SPARE_BYTES:
                yield group
                group, size = [], 0
            group.append((index, each))
            # Two bytes are the separator.
            size += added + 2
        if group:
            yield group

    def _score_together(self, group: Sequence[Numbered], options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the results of one request; if it is too large, or the model fails on it, send each half."""
        try:
            return self._post("/score", {**options, "dialogues": [each for _, each in group]})["results"]
        except (_TooLargeError, _FailedError) as error:
            if len(group) > 1:
                middle = len(group) // 2
                return [
                    *self._score_together(group[:middle], options),
                    *self._score_together(group[middle:], options),
                ]
            if not options.get("skip_bad"):
                raise
            return [{"error": {"msg": str(error)}}]
        except RefusedError as error:
            # The server counts dialogues within the request.
            named = {each["dialogue"] - 1: each for each in error.problems if each.get("dialogue")}
            if options.get("skip_bad") and named:
                rest = [each for place, each in enumerate(group) if place not in named]
                found = iter(self._score_together(rest, options) if rest else ())
                return [{"error": named[k]} if k in named else next(found) for k in range(len(group))]
            problems = [
                {**each, "dialogue": group[each["dialogue"] - 1][0] + 1} if each.get("dialogue") else each
                for each in error.problems
            ]
            raise RefusedError(problems) from None

    def _post(self, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._send("POST", path, {name: value for name, value in request.items() if value is not None})

    def _send(self, method: str, path: str, content: Any = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        address = f"{self.url}{path}"
        try:
            answer = self._session.request(method, address, json=content, headers=headers, timeout=self.timeout_s)
        except requests.RequestException as error:
            kind = type(error).__name__
            raise ServiceError(f"{address} does not answer ({kind}); start it with `sdiareward serve`.") from None
        return self._read(answer, address)

    @staticmethod
    def _read(answer: requests.Response, address: str) -> dict[str, Any]:
        try:
            content = answer.json()
        except ValueError:
            content = None
        if answer.status_code == 200 and isinstance(content, dict):
            return content
        detail = content.get("detail", answer.text) if isinstance(content, dict) else answer.text
        if answer.status_code == 422 and isinstance(detail, list):
            raise RefusedError(detail)
        text = str(detail)[:_QUOTED_CHARACTERS]
        if answer.status_code == 413:
            raise _TooLargeError([{"msg": f"it is larger than the server accepts ({text}); send shorter recordings."}])
        kind = _FailedError if answer.status_code == 500 else ServiceError
        raise kind(f"{address} answered with status {answer.status_code}: {text}")

    def _open_session(self, max_retries: int) -> requests.Session:
        retry = ExponentialRetry(
            max_retries,
            status_forcelist=_RETRIED,
            allowed_methods=None,
            backoff_factor=0.2,
            backoff_max=_LONGEST_PAUSE_S,
            backoff_jitter=0.2,
            raise_on_status=False,
        )
        session = requests.Session()
        # Use neither the proxies of the environment nor .netrc: the server is on this machine or in its network.
        session.trust_env = False
        adapter = requests.adapters.HTTPAdapter(max_retries=retry, pool_maxsize=max(self.concurrency, 10))
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        return session


def _read_heard(result: Mapping[str, Any]) -> Heard:
    found: dict[str, Any] = {field.name: result.get(field.name, field.default) for field in fields(Heard)}
    for name in ("cut_turns", "silent_turns"):
        found[name] = tuple(found[name])
    return Heard(**found)


def _note_heard(results: Sequence[Mapping[str, Any]], heard: MutableMapping[int, Heard] | None) -> None:
    """Put what was heard into `heard`; without it log what was not."""
    found = {index: _read_heard(result) for index, result in enumerate(results) if not result["error"]}
    if heard is not None:
        heard.update(found)
        return
    for notice in describe_unheard((f"dialogues[{index}]", each) for index, each in found.items()):
        logger.warning(notice)


def _encode_or_reason(
    dialogue: Sequence[Mapping[str, Any]], index: int, options: Mapping[str, Any]
) -> dict[str, Any] | str:
    """Return a dialogue in the form of a request or, with `skip_bad`, the reason to skip it."""
    try:
        return encode_dialogue(dialogue)
    except (OSError, TypeError, ValueError) as error:
        if not options.get("skip_bad"):
            if isinstance(error, DialogueError):
                raise RefusedError([{"msg": str(error), "dialogue": index + 1}]) from None
            raise
        return " ".join(str(error).split())
