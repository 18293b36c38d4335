"""Ask a model behind an endpoint for scores, in the very words that WavReward is asked in (Table 1, I)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sdiareward.llm.client import ChatClient, ChatError, ChatSettings, audio_content

from ..zero_shot.settings import EndpointSettings, choose_judge
from .answers import follows_format, parse_score
from .judge import Judgement, vote
from .prompts import JudgingPrompt


logger = logging.getLogger(__name__)


def choose_endpoint(
    name: str, judges_file: str | Path | None = None, overrides: Sequence[str] = ()
) -> EndpointSettings:
    """Read the settings of an endpoint from a file of judges; see `zero_shot.settings.choose_judge`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has no such judge, a setting cannot be used, or the judge is no endpoint.
    """
    settings = choose_judge(name, judges_file, overrides).settings
    if not isinstance(settings, EndpointSettings):
        raise ValueError(f"judge {name!r} has the backend {settings.backend!r}; an endpoint is needed here.")
    return settings


class TextClient(ChatClient):
    """Ask for plain text: a client whose every answer is JSON because it is put into some."""

    def _send(self, messages: Sequence[Mapping[str, Any]]) -> Any:
        reply = super()._send(messages)
        # An answer that was cut off is one without a score, as of a model in this process.
        return replace(reply, content=json.dumps({"text": reply.content}), is_cut=False)


class EndpointJudge:
    """Score spoken answers with any model that takes `input_audio`.

    Nothing is asked twice because of its form: an answer without a score counts as such, like that of a model in this
    process. So does a refusal, and a question that the endpoint gave no answer to.

    Args:
        settings (`ChatSettings`): Whom to ask; its `max_tokens` is the longest answer.
        cache_dir (`str` or `Path`): Where answers are kept.
        reasoning (`bool`, *optional*, defaults to `True`): Ask for thoughts before the score.
    """

    def __init__(self, settings: ChatSettings, cache_dir: str | Path, *, reasoning: bool = True):
        self.settings = settings
        self.cache_dir = cache_dir
        self.reasoning = reasoning

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
        """Score recordings.

        Args:
            recordings (`list`): Question, silence and answer each; anything `audio_sdiareward.read_audio` takes.
            num_samples (`int`, *optional*, defaults to 1): Answers to each recording, whose scores vote.
            temperature (`float`, *optional*, defaults to 0.0): 0 leaves it to the settings.
            expected (`bool`, *optional*, defaults to `False`): Not to be had.
            max_new_tokens (`int`, *optional*): Not used; the settings say it.
            seed (`int`, *optional*, defaults to 0): Of the sampling, where the endpoint heeds one.

        Raises:
            ValueError: The expected score is asked for, or several answers without a seed that tells them apart.
            EndpointError: The endpoint cannot be used at all.
        """
        if expected:
            raise ValueError("an endpoint tells no distribution over scores; leave expected out.")
        if num_samples > 1 and self.settings.seed is None:
            raise ValueError(f"{num_samples} answers need a seed that tells them apart; set seed for this judge.")
        clients = [self._client(temperature, seed + number) for number in range(num_samples)]
        jobs = [(recording, client) for recording in recordings for client in clients]
        found = clients[0].map(partial(_ask, reasoning=self.reasoning), jobs, failures=())
        answers: list[Any] = list(found)
        return [self._judgement(answers[start : start + num_samples]) for start in range(0, len(answers), num_samples)]

    def _client(self, temperature: float, seed: int) -> TextClient:
        changes: dict[str, Any] = {"temperature": temperature} if temperature else {}
        if self.settings.seed is not None:
            changes["seed"] = self.settings.seed + seed
        return TextClient(replace(self.settings, **changes), self.cache_dir)

    def _judgement(self, answers: Sequence[tuple[str, int, float]]) -> Judgement:
        texts = tuple(text for text, _, _ in answers)
        scores = tuple(map(parse_score, texts))
        return Judgement(
            score=vote(scores),
            expected_score=None,
            scores=scores,
            texts=texts,
            follows_format=all(follows_format(text, self.reasoning) for text in texts),
            num_tokens=sum(tokens for _, tokens, _ in answers),
            seconds=sum(seconds for _, _, seconds in answers),
        )


def _ask(job: tuple[Any, TextClient], *, reasoning: bool) -> tuple[str, int, float]:
    """Return an answer, its tokens and the time it took; the text is empty where there is none."""
    recording, client = job
    messages = [_for_endpoint(message) for message in JudgingPrompt().conversation(recording, reasoning=reasoning)]
    start = time.perf_counter()
    try:
        found = client.ask(messages, lambda answer: str(answer["text"]), attempts=1)
    except ChatError as error:
        logger.warning("no answer: %s", error)
        return "", error.spent.completion_tokens, time.perf_counter() - start
    return found.value, found.spent.completion_tokens, time.perf_counter() - start


def _for_endpoint(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its recordings as endpoints take them."""
    parts = [audio_content(part["audio"]) if part["type"] == "audio" else part for part in message["content"]]
    return {**message, "content": parts}
