"""Score pairs with a judge that compares both sides, or with one that scores each side by itself.

Both judges implement `scoring.engine.PairScorer`. They append two lines per pair to `answers.jsonl` before the pair's
line is written to `scores.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.common.files import JsonLines
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.messages import GAP_S, join_turns
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.engine import UNREADABLE, Outcome

from ..settings import MAX_TURN_S
from .backends import AUDIO_ERRORS
from .decisions import FAILED, Decision, decide
from .questions import Backend, Orders, Question, choose_orders, find_criterion, read_turns


if TYPE_CHECKING:
    import datasets

    from ..wavreward.judge import Judgement, WavRewardJudge

ANSWERS_FILE = "answers.jsonl"
# WavReward was made for one question and its answer, so the last two turns always stay.
_MIN_TURNS = 2
Labels = Sequence[Mapping[str, Any]]
Scored = Iterator[tuple[int, Outcome]]


class PairwiseJudge:
    """Compare both sides of a pair, in both orders or one; see `decisions`. The run's folder records the answers."""

    def __init__(
        self,
        backend: Backend,
        folder: Path,
        max_turn_s: float = MAX_TURN_S,
        prompts: PromptSet | None = None,
        *,
        orders: Orders = "both",
        transcripts: bool = False,
    ):
        self.backend = backend
        self.prompts = prompts or PromptSet()
        self.record = JsonLines(folder / ANSWERS_FILE)
        self.max_turn_s = max_turn_s
        self.orders, self.transcripts = orders, transcripts
        self.audio_s = 0.0

    def score_rows(self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]) -> Scored:
        """Yield each decided row; a pair whose audio cannot be read is skipped."""
        by_row = {row: self._make_questions(pairs, labels[row], row) for row in rows}
        # Removes an incomplete last line of a killed run.
        self.record.read()
        answers = self.backend.answer([question for asked in by_row.values() for question in asked])
        for row, asked in by_row.items():
            found = {question.order: next(answers) for question in asked}
            self.record.append([found[question.order].as_record(question) for question in asked])
            if unheard := [answer.problem for answer in found.values() if answer.status == "unheard"]:
                yield row, Skipped(labels[row]["pair_id"], UNREADABLE, str(unheard[0]))
                continue
            # Both questions hold the same audio, which counts once, as for a reward model.
            self.audio_s += max(answer.audio_s for answer in found.values())
            yield row, decide(found).as_record()

    def _make_questions(self, pairs: datasets.Dataset, label: Mapping[str, Any], row: int) -> list[Question]:
        how = (find_criterion(label), lambda: pairs[row], self.max_turn_s, self.prompts, self.transcripts)
        return [Question(label["pair_id"], order, *how) for order in choose_orders(label["pair_id"], self.orders)]

    def usage(self) -> dict[str, Any]:
        return self.backend.usage()


class PointwiseJudge:
    """Score each side by itself with WavReward, its turns joined with silence; the side with the higher score wins."""

    def __init__(
        self, judge: WavRewardJudge, folder: Path, options: Mapping[str, Any], max_turn_s: float = MAX_TURN_S
    ):
        self.judge = judge
        self.record = JsonLines(folder / ANSWERS_FILE)
        self.options = dict(options)
        self.max_turn_s = max_turn_s
        self.audio_s = 0.0

    def score_rows(self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]) -> Scored:
        self.record.read()
        size = max(1, self.judge.thinker.batch_size // len(SIDES))
        for start in range(0, len(rows), size):
            reasons: dict[int, str] = {}
            for row, found in self._score_batch(pairs, rows[start : start + size], reasons):
                self.record.append([_record(labels[row], side, found[side]) for side in SIDES])
                yield row, _compare(found).as_record()
            yield from ((row, Skipped(labels[row]["pair_id"], UNREADABLE, text)) for row, text in reasons.items())

    def _score_batch(
        self, pairs: datasets.Dataset, rows: Sequence[int], reasons: dict[int, str]
    ) -> Iterator[tuple[int, dict[str, Judgement]]]:
        recordings: dict[int, list[np.ndarray]] = {}
        for row in rows:
            pair = pairs[row]
            try:
                recordings[row] = [self._join(pair[side], side) for side in SIDES]
            except AUDIO_ERRORS as error:
                reasons[row] = str(error)
        both = [recording for sides in recordings.values() for recording in sides]
        self.audio_s += sum(recording.size for recording in both) / SAMPLING_RATE
        judgements = iter(self.judge.judge(both, **self.options) if both else ())
        for row in recordings:
            yield row, {side: next(judgements) for side in SIDES}

    def _join(self, turns: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
        """Return one side as a recording; too long, it loses its first turns, because the last answer is scored."""
        limit = round(self.judge.thinker.processor.max_turn_s * SAMPLING_RATE)
        clips = [turn["audio"] for turn in read_turns(turns, name, self.max_turn_s)]
        gap = round(GAP_S * SAMPLING_RATE)
        while len(clips) > _MIN_TURNS and sum(clip.size + gap for clip in clips) - gap > limit:
            clips.pop(0)
        return join_turns(clips)[-limit:]

    def usage(self) -> dict[str, Any]:
        """Return nothing: the answers hold all usage."""
        return {}


def _compare(found: Mapping[str, Judgement]) -> Decision:
    rewards = [_choose_reward(found[side]) for side in SIDES]
    if any(reward is None for reward in rewards):
        return FAILED
    return Decision(rewards[0], rewards[1], "tie" if rewards[0] == rewards[1] else "scores")


def _choose_reward(judgement: Judgement) -> float | None:
    return judgement.score if judgement.expected_score is None else judgement.expected_score


def _record(label: Mapping[str, Any], side: str, judgement: Judgement) -> dict[str, Any]:
    return {
        "pair_id": label["pair_id"],
        "side": side,
        "answer": "\n\n".join(judgement.texts),
        "score": judgement.score,
        "expected_score": judgement.expected_score,
        "scores": list(judgement.scores),
        "follows_format": judgement.follows_format,
        "num_replies": len(judgement.texts),
        "prompt_tokens": 0,
        "completion_tokens": judgement.num_tokens,
        "num_cut": judgement.num_cut,
        "problem": judgement.problem,
    }
