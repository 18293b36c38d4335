"""WavReward as a judge: listen to a question and its answer, think, and score the answer from 1 to 5.

The model runs in this process, or is any model behind an endpoint that takes `input_audio` (Table 1, I).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.llm import ChatClient, ChatError, ChatSettings, EndpointError
from sdiareward.pairs.messages import make_audio_content

from .answers import MAX_ANSWER_TOKENS, SCORES, follows_format, parse_score
from .prompts import JudgingPrompt, choose_prompt


if TYPE_CHECKING:
    from ..thinker import Generation, Thinker

logger = logging.getLogger(__name__)
_SCORE_TAG = "<score>"
_QUOTED_CHARACTERS = 200


@dataclass(frozen=True)
class Judgement:
    """A judge's score of one recording; `expected_score` is None unless requested."""

    # 1-5, higher is better: the vote of all answers.
    score: int | None
    expected_score: float | None
    scores: tuple[int | None, ...]
    texts: tuple[str, ...]
    # Whether every answer does.
    follows_format: bool
    num_tokens: int
    seconds: float
    # Answers that ended at the token limit.
    num_cut: int = 0
    # Why there is no score, or no answer.
    problem: str | None = None
    # What an endpoint refused, see `ChatClient`.
    changed_parameters: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def from_answers(
        cls, answers: Sequence[Any], *, reasoning: bool, expected_score: float | None = None, **more: Any
    ) -> Judgement:
        """Make a judgement from at least one answer; with `reasoning` thoughts were requested."""
        texts = tuple(answer.text for answer in answers)
        scores = tuple(map(parse_score, texts))
        score = vote(scores)
        if score is None and more.get("problem") is None:
            more["problem"] = f"no score in the answer that begins {texts[0][:_QUOTED_CHARACTERS]!r}."
        return cls(
            score,
            expected_score,
            scores,
            texts,
            all(follows_format(text, reasoning) for text in texts),
            sum(answer.num_tokens for answer in answers),
            sum(answer.seconds for answer in answers),
            sum(answer.is_cut for answer in answers),
            **more,
        )


class WavRewardJudge:
    """Score spoken answers with a thinker, trained as WavReward or not."""

    def __init__(self, thinker: Thinker, *, reasoning: bool = True, prompt: JudgingPrompt | None = None):
        self.thinker = thinker
        self.reasoning = reasoning
        self.prompt = prompt or JudgingPrompt()

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        reasoning: bool = True,
        dtype: str | None = None,
        device: str | None = None,
        batch_size: int = 8,
        prompt_file: str | Path | None = None,
    ) -> WavRewardJudge:
        """Load a judge with the prompt that it was trained with, or that of a file."""
        from ..thinker import Thinker

        thinker = Thinker.from_pretrained(path, dtype=dtype, device=device, batch_size=batch_size)
        return cls(thinker, reasoning=reasoning, prompt=choose_prompt(path, prompt_file))

    def judge(
        self,
        recordings: Sequence[Any],
        *,
        num_samples: int = 1,
        expected: bool = False,
        max_new_tokens: int = MAX_ANSWER_TOKENS,
        **sampling: Any,
    ) -> list[Judgement]:
        """Score recordings of question, silence and answer, the first 60 s of each; `num_samples` answers vote."""
        conversations = [
            self.prompt.make_conversation(recording, reasoning=self.reasoning) for recording in recordings
        ]
        sampling |= {"num_return_sequences": num_samples, "max_new_tokens": max_new_tokens}
        answers = self.thinker.generate(conversations, **sampling)
        means = self._compute_expected_scores(conversations, answers) if expected else [None] * len(answers)
        return [
            Judgement.from_answers(found, reasoning=self.reasoning, expected_score=mean)
            for found, mean in zip(answers, means, strict=True)
        ]

    def _compute_expected_scores(
        self, conversations: Sequence[Any], answers: Sequence[Sequence[Generation]]
    ) -> list[float | None]:
        """Return the mean of 1-5 under the distribution after each answer's thoughts, averaged over its answers."""
        rows = [(index, _cut_at_score(answer.text)) for index, found in enumerate(answers) for answer in found]
        probabilities = self.thinker.compute_next_token_probabilities(
            [conversations[index] for index, _ in rows], [text for _, text in rows], [str(score) for score in SCORES]
        )
        by_recording: list[list[float]] = [[] for _ in conversations]
        for (index, _), row in zip(rows, probabilities.tolist(), strict=True):
            by_recording[index].append(sum(score * share for score, share in zip(SCORES, row, strict=True)))
        return [sum(means) / len(means) for means in by_recording]


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
        self._clients: dict[tuple[float, int], ChatClient] = {}

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
        answers: list[Any] = list(clients[0].map(self._ask, jobs, failures=()))
        if answers and all(answer.problem for answer in answers) and not clients[0].has_answers():
            raise EndpointError(f"none of {len(answers)} questions got an answer; the first: {answers[0].problem}")
        return [
            Judgement.from_answers(
                found,
                reasoning=self.reasoning,
                problem=next((answer.problem for answer in found if answer.problem), None),
                changed_parameters=found[0].changed_parameters,
            )
            for found in (answers[start : start + num_samples] for start in range(0, len(answers), num_samples))
        ]

    def _make_client(self, temperature: float, seed: int) -> ChatClient:
        changes: dict[str, Any] = {"temperature": temperature} if temperature else {}
        if self.settings.seed is not None:
            changes["seed"] = self.settings.seed + seed
        client = ChatClient(replace(self.settings, **changes), self.cache_dir)
        return self._clients.setdefault((temperature, seed), client)

    def _ask(self, job: tuple[Any, ChatClient]) -> _EndpointAnswer:
        recording, client = job
        messages: list[dict[str, Any]] = []
        for message in self.prompt.make_conversation(recording, reasoning=self.reasoning):
            parts = message["content"]
            parts = [make_audio_content(part["audio"]) if part["type"] == "audio" else part for part in parts]
            messages.append({**message, "content": parts})
        start = time.perf_counter()
        try:
            # An answer that was cut off has no score, as from a model in this process.
            found = client.ask(messages, lambda text, is_cut: is_cut, attempts=1)
        except ChatError as error:
            logger.warning("no answer: %s", error)
            seconds = time.perf_counter() - start
            return _EndpointAnswer("", error.spent.completion_tokens, seconds, problem=str(error))
        seconds, changed = time.perf_counter() - start, client.usage.get("changed_parameters", {})
        return _EndpointAnswer(found.text, found.spent.completion_tokens, seconds, found.value, None, changed)


@dataclass(frozen=True)
class _EndpointAnswer:
    text: str  # Empty without a reply.
    num_tokens: int
    seconds: float
    is_cut: bool = False
    problem: str | None = None
    changed_parameters: Mapping[str, str | None] = field(default_factory=dict)


def vote(scores: Sequence[int | None]) -> int | None:
    """Return the most frequent score, the lowest of equally frequent ones; `None` if there is none."""
    counts = Counter(score for score in scores if score is not None)
    return min(counts, key=lambda score: (-counts[score], score)) if counts else None


def _cut_at_score(text: str) -> str:
    """Return an answer up to its score; to an answer without one, append the tag that begins it."""
    before, tag, _ = text.rpartition(_SCORE_TAG)
    return before + tag if tag else text.removesuffix("</think>") + "</think>" * ("<think>" in text) + _SCORE_TAG
