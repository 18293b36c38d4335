"""Turn the two answers about a pair into one decision and one reward per side.

A judge hears A and B, and then B and A. Its preference counts only if it names the same side twice.

1. `verdict`: both answers prefer the same side.
2. `scores`: they disagree, and one side has the higher mean score over all dimensions and both answers.
3. `tie`: neither applies. The metric counts a tie as wrong, and reports ties separately.
4. `failed`: an answer is missing or has no verdict. The pair has no reward and counts as wrong: skipping it would
   favour a judge that refuses hard pairs.

A side's reward is its mean score, 1 to 5. The sign of the margin is the decision, its size the difference of the
scores. If a verdict contradicts the scores, or the scores are equal, the verdict decides the sign: both sides get the
mean of the two, `VERDICT_MARGIN` apart, which is less than any difference of mean scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sdiareward.pairs.schema import SIDES

from .questions import Answer


# Five dimensions and two answers: the smallest difference of mean scores is 0.1.
VERDICT_MARGIN = 0.05
RULES = ("verdict", "scores", "tie", "failed")


@dataclass(frozen=True)
class Decision:
    """The decision on a pair: the rewards, 1-5 or None if the pair failed, and one of `RULES`."""

    chosen: float | None
    rejected: float | None
    decided_by: str

    def as_record(self) -> dict[str, Any]:
        margin = None if self.chosen is None or self.rejected is None else self.chosen - self.rejected
        return {"chosen": self.chosen, "rejected": self.rejected, "margin": margin, "decided_by": self.decided_by}


FAILED = Decision(None, None, "failed")


def decide(answers: dict[str, Answer]) -> Decision:
    """Decide a pair from its answers by order, a key of `ORDERS`; a pair asked in one order has one."""
    if any(answer.verdict is None for answer in answers.values()):
        return FAILED
    chosen, rejected = (_average_scores(answers, side) for side in SIDES)
    preferred = {answer.find_preferred_side(order) for order, answer in answers.items()}
    if len(preferred) > 1:
        return Decision(chosen, rejected, "tie" if chosen == rejected else "scores")
    sign = 1 if preferred == {"chosen"} else -1
    if sign * (chosen - rejected) > 0:
        return Decision(chosen, rejected, "verdict")
    middle, half = (chosen + rejected) / 2, sign * VERDICT_MARGIN / 2
    return Decision(middle + half, middle - half, "verdict")


def _average_scores(answers: dict[str, Answer], side: str) -> float:
    totals = [answer.sum_scores(order, side) for order, answer in answers.items()]
    num_scores = sum(len(answer.verdict.scores) for answer in answers.values() if answer.verdict)
    return sum(totals) / num_scores
