"""WavReward as a judge: listen to a question and its answer, think, and score the answer from 1 to 5."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .answers import MAX_ANSWER_TOKENS, SCORES, follows_format, parse_score
from .prompts import JudgingPrompt, choose_prompt


if TYPE_CHECKING:
    from ..thinker import Generation, Thinker

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
    def from_texts(
        cls,
        texts: Sequence[str],
        *,
        reasoning: bool,
        num_tokens: int,
        seconds: float,
        expected_score: float | None = None,
        problem: str | None = None,
        **more: Any,
    ) -> Judgement:
        """Make a judgement from at least one answer; with `reasoning` thoughts were requested."""
        scores = tuple(map(parse_score, texts))
        is_in_format = all(follows_format(text, reasoning) for text in texts)
        score, texts = vote(scores), tuple(texts)
        if score is None and problem is None:
            problem = f"no score in the answer that begins {texts[0][:_QUOTED_CHARACTERS]!r}."
        more["problem"] = problem
        return cls(score, expected_score, scores, texts, is_in_format, num_tokens, seconds, **more)


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
        return [self._make_judgement(found, mean) for found, mean in zip(answers, means, strict=True)]

    def _make_judgement(self, answers: Sequence[Generation], expected_score: float | None) -> Judgement:
        return Judgement.from_texts(
            [answer.text for answer in answers],
            reasoning=self.reasoning,
            num_tokens=sum(answer.num_tokens for answer in answers),
            seconds=sum(answer.seconds for answer in answers),
            expected_score=expected_score,
            num_cut=sum(answer.is_cut for answer in answers),
        )

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


def vote(scores: Sequence[int | None]) -> int | None:
    """Return the most frequent score, the lowest of equally frequent ones; `None` if there is none."""
    counts = Counter(score for score in scores if score is not None)
    return min(counts, key=lambda score: (-counts[score], score)) if counts else None


def _cut_at_score(text: str) -> str:
    """Return an answer up to its score; to an answer without one, append the tag that begins it."""
    before, tag, _ = text.rpartition(_SCORE_TAG)
    return before + tag if tag else text.removesuffix("</think>") + "</think>" * ("<think>" in text) + _SCORE_TAG
