"""The client of a server, which needs neither torch nor the model, and a reward function for TRL that asks one."""

from __future__ import annotations

import base64
import io
import logging
import os
import re
from collections.abc import Hashable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import requests
from urllib3.util import Retry

from sdiareward.audio_sdiareward import Heard, describe_unheard, open_source
from sdiareward.chat_sdiareward import ROLES, DialogueError, make_dialogue

from .settings import API_KEY_ENV


if TYPE_CHECKING:
    from sdiareward.scoring.reward_function import RewardFunction

logger = logging.getLogger(__name__)

_RETRIED = (502, 503, 504)
_QUOTED_CHARACTERS = 300
_SURROGATE = re.compile("[\ud800-\udfff]")
# Samples of 24 bits, aligned to the top of 32.
_FULL_SCALE = 2**23


class ServiceError(RuntimeError):
    """Raised when the server does not answer, or fails for a reason other than the request."""


class RefusedError(ValueError):
    """Raised when the server refuses the request; `problems` name dialogue and turn from 1."""

    def __init__(self, problems: Sequence[Mapping[str, Any]]):
        lines = (
            f"dialogue {each['dialogue']}, {each['msg']}" if each.get("dialogue") else each["msg"] for each in problems
        )
        super().__init__("; ".join(lines))
        self.problems = list(problems)


class _FailedError(ServiceError):
    """Raised when a request is too large, or the model failed on it: others may be answered."""


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
        concurrency: int = 16,
    ):
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self.concurrency = concurrency
        key = api_key if api_key is not None else os.environ.get(API_KEY_ENV)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session = requests.Session()
        # Use neither the proxies of the environment nor .netrc: the server is on this machine or in its network.
        self._session.trust_env = False
        # A reward depends on the dialogue alone, so a retry is safe.
        retry = Retry(
            max_retries,
            status_forcelist=_RETRIED,
            allowed_methods=None,
            backoff_factor=0.2,
            backoff_max=30.0,
            backoff_jitter=0.2,
            raise_on_status=False,
        )
        adapter = requests.adapters.HTTPAdapter(max_retries=retry, pool_maxsize=max(concurrency, 10))
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)

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
        results = self._score_all(dialogues, options)
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
        options = {"criterion": criterion, "require_audio": require_audio}
        results = self._score_all(dialogues, options, skips_bad=True)
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
        found = self._send("POST", "/compare", {**options, "a": encode_dialogue(a), "b": encode_dialogue(b)})
        a, b = found["a"], found["b"]
        heard = _read_heard(a), _read_heard(b)
        return Comparison((a["reward"], b["reward"]), found["margin"], found["probability"], heard)

    def health(self) -> dict[str, Any]:
        """Return the state of the server: its model, criteria and limits."""
        return self._send("GET", "/health")

    def _score_all(
        self, dialogues: Sequence[Any], options: Mapping[str, Any], *, skips_bad: bool = False
    ) -> list[dict[str, Any]]:
        """Return the results: of one request each, since the server scores together what waits together."""

        def score(number: int) -> dict[str, Any]:
            try:
                body = {**options, "dialogues": [encode_dialogue(dialogues[number - 1])]}
                result: dict[str, Any] = self._send("POST", "/score", body)["results"][0]
                return result
            except RefusedError as error:
                problems = error.problems
            except _FailedError as error:
                if not skips_bad:
                    raise
                problems = [{"msg": str(error)}]
            except (OSError, TypeError, ValueError) as error:
                problems = [{"msg": " ".join(str(error).split())}]
            if skips_bad:
                return {"error": problems[0]}
            raise RefusedError([{**each, "dialogue": number} for each in problems])

        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(score, range(1, len(dialogues) + 1)))

    def _send(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        address = f"{self.url}{path}"
        body = content and {name: value for name, value in content.items() if value is not None}
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
        failure = _FailedError if answer.status_code in (413, 500) else ServiceError
        more = "; send shorter recordings" if answer.status_code == 413 else ""
        text = str(detail)[:_QUOTED_CHARACTERS]
        raise failure(f"{address} answered with status {answer.status_code}: {text}{more}")


def remote_reward_fn(url: str | RewardClient, api_key: str | None = None, **options: Any) -> RewardFunction:
    """Build a reward function with the options of `reward_fn`; a server that does not answer ends the run."""
    from sdiareward.scoring.reward_function import RewardFunction, RewardOptions

    client = url if isinstance(url, RewardClient) else RewardClient(url, api_key)
    own = RewardOptions(**options)
    known = client.health()["criteria"]
    if own.criterion not in known:
        raise ValueError(f"criterion is {own.criterion!r}; the server's model knows {', '.join(known)}.")
    return RewardFunction(RemoteScorer(client), own)  # type: ignore[arg-type]


class RemoteScorer:
    """Score with a server instead of the [`Scorer`] of a reward function."""

    def __init__(self, client: RewardClient):
        import torch

        self.client = client
        # Stands for the model in the request queue.
        self.model = torch.nn.Identity()
        self.model.device = torch.device("cpu")  # type: ignore[assignment]

    def iter_scores(
        self,
        dialogues: Sequence[Any],
        criterion: Sequence[str],
        *,
        groups: Sequence[Hashable] | None = None,  # Not sent: the server finds shared prefixes.
        skipped: MutableMapping[int, str],
        heard: MutableMapping[int, Heard],
    ) -> Iterator[tuple[int, float]]:
        """Yield `(index, reward)`; write the reason for each skipped dialogue to `skipped`. All have one criterion."""
        # The `require_audio` of the reward function has been applied before.
        if not dialogues:
            return
        results = self.client.score_or_reason(dialogues, criterion[0], require_audio=False, heard=heard)
        for index, result in enumerate(results):
            if isinstance(result, str):
                skipped[index] = result
            else:
                yield index, result


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


def encode_dialogue(given: Any) -> dict[str, Any]:
    """Return a dialogue in the form of a request, with its recordings in base64."""
    dialogue = make_dialogue(given, is_whole=False)
    turns: list[dict[str, Any]] = []
    if dialogue.system is not None:
        turns.append({"role": "system", "text": dialogue.system})
    for number, turn in enumerate(dialogue.turns, start=1):
        if turn.role not in ROLES:
            raise DialogueError(f"its role is {turn.role!r}; use 'user' or 'assistant'.", number)
        if _SURROGATE.search(turn.text):
            raise DialogueError("its text holds half of a character of two; give whole ones.", number)
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "audio", "audio": {"base64": _to_base64(part.source)}}
            for part in turn.parts
        ]
        turns.append({"role": turn.role, "content": content})
    return {"turns": turns}


def _to_base64(audio: Any) -> str:
    """Return a file in base64; samples become a file of 24 bits, the precision of float32."""
    import soundfile

    handle, _, array, sampling_rate = open_source(audio)
    if array is None:
        data = Path(handle).read_bytes() if isinstance(handle, str) else handle.getvalue()
        return base64.b64encode(data).decode()
    buffer = io.BytesIO()
    samples = array.T if array.ndim == 2 else array
    # FLAC cannot hold samples beyond full scale or not finite; the server checks those.
    if samples.size and np.issubdtype(samples.dtype, np.floating) and np.abs(samples).max() < 1 - 1 / _FULL_SCALE:
        scaled = np.rint(samples.astype(np.float64) * _FULL_SCALE).astype(np.int32) << 8
        soundfile.write(buffer, scaled, sampling_rate, format="FLAC", subtype="PCM_24")
    else:
        soundfile.write(buffer, samples, sampling_rate, format="WAV", subtype="FLOAT")
    return base64.b64encode(buffer.getvalue()).decode()
