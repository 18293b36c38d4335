"""A client for the server, without torch or a model, and a reward function for TRL that uses it."""

from __future__ import annotations

import base64
import io
import logging
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import requests
import soundfile
from urllib3.util import Retry

from sdiareward.audio_sdiareward import Heard, describe_unheard, open_source
from sdiareward.chat_sdiareward import make_dialogue

from .settings import API_KEY_ENV


if TYPE_CHECKING:
    from sdiareward.scoring.reward_function import RewardFunction

logger = logging.getLogger(__name__)

_CONCURRENCY = 16
# 24-bit samples, left-aligned in 32 bits.
_FULL_SCALE = 2**23
_Heard = MutableMapping[int, Heard] | None


class ServiceError(RuntimeError):
    """Raised when the server does not answer, or fails although the request is valid."""

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        self.status = status


class RefusedError(ValueError):
    """Raised when the server refuses the request; `problems` name dialogue and turn from 1."""

    def __init__(self, problems: Sequence[Mapping[str, Any]]):
        names = (f"dialogue {each['dialogue']}, " if each.get("dialogue") else "" for each in problems)
        super().__init__("; ".join(f"{name}{each['msg']}" for name, each in zip(names, problems, strict=True)))
        self.problems = list(problems)


@dataclass(frozen=True)
class Comparison:
    rewards: tuple[float, float]
    margin: float  # First reward minus second.
    probability: float  # Probability that the first is better.
    heard: tuple[Heard, Heard]  # Seconds given and heard, cut turns, silent turns.


class RewardClient:
    """Score dialogues on a server; the client uploads the recordings. Threads can share a client.

    `options` of the methods are fields of the request: `require_audio`, `calibrated` and, with it, `subset`.
    """

    def __init__(self, url: str, api_key: str | None = None, *, max_retries: int = 8, timeout_s: float = 150.0):
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        key = api_key if api_key is not None else os.environ.get(API_KEY_ENV)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session = requests.Session()
        # Ignore proxies of the environment and .netrc: the server is on this machine or its network.
        self._session.trust_env = False
        # A retry is safe, because a reward depends on the dialogue alone.
        rules: dict[str, Any] = {"allowed_methods": None, "backoff_factor": 0.2, "backoff_jitter": 0.2}
        retry = Retry(max_retries, status_forcelist=(502, 503, 504), raise_on_status=False, **rules)
        adapter = requests.adapters.HTTPAdapter(max_retries=retry, pool_maxsize=_CONCURRENCY)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def score(
        self, dialogues: Sequence[Any], criterion: str = "joint", *, heard: _Heard = None, **options: Any
    ) -> list[float]:
        """Return the rewards (higher is better) or calibrated values; `heard` as in `Scorer.score`."""
        results = self._score_all(dialogues, {**options, "criterion": criterion}, heard)
        return [result["calibrated" if options.get("calibrated") else "reward"] for result in results]

    def score_or_reason(
        self, dialogues: Sequence[Any], criterion: str = "joint", *, heard: _Heard = None, **options: Any
    ) -> list[float | str]:
        """Return the reward of each dialogue, or the reason it was skipped."""
        results = self._score_all(dialogues, {**options, "criterion": criterion}, heard, skips_bad=True)
        return [result["error"]["msg"] if result["error"] else result["reward"] for result in results]

    def compare(self, a: Any, b: Any, criterion: str = "joint", **options: Any) -> Comparison:
        body = {**options, "criterion": criterion, "a": encode_dialogue(a), "b": encode_dialogue(b)}
        found = self._send("POST", "/compare", body)
        rewards = found["a"]["reward"], found["b"]["reward"]
        heard = _read_heard(found["a"]), _read_heard(found["b"])
        return Comparison(rewards, found["margin"], found["probability"], heard)

    def health(self) -> dict[str, Any]:
        """Return the server's model, criteria and limits."""
        return self._send("GET", "/health")

    def _score_all(
        self, dialogues: Sequence[Any], options: Mapping[str, Any], heard: _Heard, *, skips_bad: bool = False
    ) -> list[dict[str, Any]]:
        """Return the results, one request each; the server batches waiting requests."""

        def score(number: int) -> dict[str, Any]:
            try:
                body = {**options, "dialogues": [encode_dialogue(dialogues[number - 1])]}
                result: dict[str, Any] = self._send("POST", "/score", body)["results"][0]
                return result
            except (ServiceError, OSError, TypeError, ValueError) as error:
                # Skip a dialogue that is too large or fails in the model: others may succeed.
                if isinstance(error, ServiceError) and not (skips_bad and error.status in (413, 500)):
                    raise
                problems = getattr(error, "problems", [{"msg": " ".join(str(error).split())}])
            if skips_bad:
                return {"error": problems[0]}
            raise RefusedError([{**each, "dialogue": number} for each in problems])

        with ThreadPoolExecutor(_CONCURRENCY) as pool:
            results = list(pool.map(score, range(1, len(dialogues) + 1)))
        found = {index: _read_heard(result) for index, result in enumerate(results) if not result["error"]}
        if heard is not None:
            heard.update(found)
        else:
            for notice in describe_unheard((f"dialogues[{index}]", each) for index, each in found.items()):
                logger.warning(notice)
        return results

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        address = f"{self.url}{path}"
        try:
            answer = self._session.request(method, address, json=body, headers=self._headers, timeout=self.timeout_s)
        except requests.RequestException as error:
            kind = type(error).__name__
            raise ServiceError(f"{address} does not answer ({kind}); start it with `sdiareward serve`.") from None
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.status_code == 200 and isinstance(found, dict):
            return found
        detail = found.get("detail", answer.text) if isinstance(found, dict) else answer.text
        if answer.status_code == 422 and isinstance(detail, list):
            raise RefusedError(detail)
        text = f"{str(detail)[:300]}{'; send shorter recordings' * (answer.status_code == 413)}"
        raise ServiceError(f"{address} answered with status {answer.status_code}: {text}", answer.status_code)


def _read_heard(result: Mapping[str, Any]) -> Heard:
    found: dict[str, Any] = {item.name: result.get(item.name, item.default) for item in fields(Heard)}
    return Heard(**found | {name: tuple(found[name]) for name in ("cut_turns", "silent_turns")})


def encode_dialogue(given: Any) -> dict[str, Any]:
    """Return a dialogue as JSON for a request, with recordings in base64; samples become 24-bit FLAC."""
    messages = make_dialogue(given, is_whole=False).to_messages()
    for item in (item for message in messages for item in message["content"] if "audio" in item):
        handle, _, array, sampling_rate = open_source(item["audio"])
        buffer = io.BytesIO()
        if array is None:
            buffer = io.BytesIO(Path(handle).read_bytes()) if isinstance(handle, str) else handle
        # FLAC cannot store samples that exceed full scale or are not finite; the server checks them.
        elif array.size and array.dtype.kind == "f" and np.abs(array).max() < 1 - 1 / _FULL_SCALE:
            scaled = np.rint(array.T.astype(np.float64) * _FULL_SCALE).astype(np.int32) << 8
            soundfile.write(buffer, scaled, sampling_rate, format="FLAC", subtype="PCM_24")
        else:
            soundfile.write(buffer, array.T, sampling_rate, format="WAV", subtype="FLOAT")
        item["audio"] = {"base64": base64.b64encode(buffer.getvalue()).decode()}
    return {"turns": messages}


class RemoteScorer:
    """Score with a server instead of the [`Scorer`] of a reward function."""

    def __init__(self, client: RewardClient):
        import torch

        self.client = client
        # Takes the model's place in the request queue.
        self.model, self.device = self, torch.device("cpu")

    def iter_scores(
        self, dialogues: Sequence[Any], criterion: Sequence[str], *, skipped: MutableMapping[int, str], **options: Any
    ) -> Iterator[tuple[int, float]]:
        """Yield `(index, reward)` under one criterion; write the reason for each skipped dialogue to `skipped`."""
        # The reward function has already applied `require_audio`; the server finds shared prefixes.
        heard = options["heard"]
        results = self.client.score_or_reason(dialogues, criterion[0], heard=heard, require_audio=False)
        for index, result in enumerate(results):
            if isinstance(result, str):
                skipped[index] = result
            else:
                yield index, result


def remote_reward_fn(url: str | RewardClient, api_key: str | None = None, **options: Any) -> RewardFunction:
    """Build a reward function with the options of `reward_fn`; it raises if the server does not answer."""
    from sdiareward.scoring.reward_function import RewardFunction, RewardOptions

    client = url if isinstance(url, RewardClient) else RewardClient(url, api_key)
    own = RewardOptions(**options)
    known = client.health()["criteria"]
    if own.criterion not in known:
        raise ValueError(f"criterion is {own.criterion!r}; the server's model has {', '.join(known)}.")
    return RewardFunction(RemoteScorer(client), own)  # type: ignore[arg-type]
