"""Ask a model behind an endpoint for scores with the prompt of WavReward (Table 1, I)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sdiareward.common.llm.client import ChatClient, ChatError, ChatSettings, EndpointError
from sdiareward.pairs.messages import make_audio_content

from .judge import Judgement
from .prompts import JudgingPrompt


logger = logging.getLogger(__name__)
Messages = list[dict[str, Any]]


class TextClient(ChatClient):
    """Chat client for plain text: every answer is wrapped into JSON."""

    def _send(self, messages: Sequence[Mapping[str, Any]]) -> Any:
        reply = super()._send(messages)
        # An answer that was cut off has no score, as from a model in this process.
        return replace(reply, content=json.dumps({"text": reply.content, "is_cut": reply.is_cut}), is_cut=False)


class EndpointJudge:
    """Score with any model that takes `input_audio`; as with a local model, a bad answer is not requested again."""

    def __init__(
        self,
        settings: ChatSettings,
        cache_dir: str | Path,
        *,
        reasoning: bool = True,
        prompt: JudgingPrompt | None = None,
    ):
        self.prompt = prompt or JudgingPrompt()
        self.settings = settings
        self.cache_dir = cache_dir
        self.reasoning = reasoning
        # By temperature and seed; a client knows what the endpoint refuses.
        self._clients: dict[tuple[float, int], TextClient] = {}

    def judge(
        self,
        recordings: Sequence[Any],
        *,
        num_samples: int = 1,
        temperature: float = 0.0,
        expected: bool = False,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> list[Judgement]:
        """Score as [`WavRewardJudge.judge`]; the settings replace `max_new_tokens` and a temperature of 0."""
        if expected:
            raise ValueError("an endpoint returns no distribution over scores; omit expected.")
        if num_samples > 1 and self.settings.seed is None:
            raise ValueError(f"{num_samples} answers need a seed to differ; set seed for this judge.")
        clients = [self._make_client(temperature, seed + number) for number in range(num_samples)]
        jobs = [(recording, client) for recording in recordings for client in clients]
        ask = partial(self.prompt.make_conversation, reasoning=self.reasoning)
        found = clients[0].map(partial(_ask, ask=ask), jobs, failures=())
        answers: list[Any] = list(found)
        if answers and all(answer.problem for answer in answers) and not clients[0].has_answers():
            raise EndpointError(f"none of {len(answers)} questions got an answer; the first: {answers[0].problem}")
        return [
            self._make_judgement(answers[start : start + num_samples]) for start in range(0, len(answers), num_samples)
        ]

    def _make_client(self, temperature: float, seed: int) -> TextClient:
        changes: dict[str, Any] = {"temperature": temperature} if temperature else {}
        if self.settings.seed is not None:
            changes["seed"] = self.settings.seed + seed
        client = TextClient(replace(self.settings, **changes), self.cache_dir)
        return self._clients.setdefault((temperature, seed), client)

    def _make_judgement(self, answers: Sequence[_Answer]) -> Judgement:
        return Judgement.from_texts(
            [answer.text for answer in answers],
            reasoning=self.reasoning,
            num_tokens=sum(answer.num_tokens for answer in answers),
            seconds=sum(answer.seconds for answer in answers),
            num_cut=sum(answer.is_cut for answer in answers),
            problem=next((answer.problem for answer in answers if answer.problem), None),
            changed_parameters=answers[0].changed_parameters,
        )


class _Answer(NamedTuple):
    text: str  # Empty without a reply.
    num_tokens: int
    seconds: float
    is_cut: bool = False
    problem: str | None = None
    changed_parameters: Mapping[str, str | None] = MappingProxyType({})


def _ask(job: tuple[Any, TextClient], *, ask: Callable[[Any], Messages]) -> _Answer:
    recording, client = job
    messages = [_for_endpoint(message) for message in ask(recording)]
    start = time.perf_counter()
    try:
        found = client.ask(messages, lambda answer: (str(answer["text"]), bool(answer["is_cut"])), attempts=1)
    except ChatError as error:
        logger.warning("no answer: %s", error)
        seconds = time.perf_counter() - start
        return _Answer("", error.spent.completion_tokens, seconds, problem=str(error))
    text, is_cut = found.value
    seconds, changed = time.perf_counter() - start, client.usage.get("changed_parameters", {})
    return _Answer(text, found.spent.completion_tokens, seconds, is_cut, changed_parameters=changed)


def _for_endpoint(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = [make_audio_content(part["audio"]) if part["type"] == "audio" else part for part in message["content"]]
    return {**message, "content": parts}
