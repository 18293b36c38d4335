"""Make one decision, and a reward a side, of the two answers about a pair.

A judge that hears A and B, and then B and A, has said which side is better only if it names the same side twice.

1. `verdict`: both answers prefer the same side.
2. `scores`: they do not, and the mean score, over all dimensions and both answers, is higher for one side.
3. `tie`: neither; the metric counts a tie as wrong, and counts it separately.
4. `failed`: an answer is missing or has no verdict; there is no reward then, and the pair counts as wrong. To leave it
   out would flatter a judge that declines where it is hard.

A side's reward is its mean score, 1 to 5, so the sign of the margin is the decision and its size the difference of the
scores. Where a verdict goes against the scores, or the scores are equal, the sign stays with the verdict: both sides
then get the mean of the two, `VERDICT_MARGIN` apart, which is less than any difference that scores can make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sdiareward.pairs.schema import SIDES

from .questions import ORDERS, Answer


# Five dimensions and two answers: the smallest difference of mean scores is 0.1.
VERDICT_MARGIN = 0.05
RULES = ("verdict", "scores", "tie", "failed")


@dataclass(frozen=True)
class Decision:
    """What two answers come to.

    Args:
        chosen, rejected (`float`, *optional*): Rewards, 1-5; both None if the pair failed.
        decided_by (`str`): One of `RULES`.
    """

    chosen: float | None
    rejected: float | None
    decided_by: str

    def as_record(self) -> dict[str, Any]:
        """Return the fields of a line of `scores.jsonl`."""
        margin = None if self.chosen is None or self.rejected is None else self.chosen - self.rejected
        return {"chosen": self.chosen, "rejected": self.rejected, "margin": margin, "decided_by": self.decided_by}


FAILED = Decision(None, None, "failed")


def decide(answers: dict[str, Answer]) -> Decision:
    """Decide a pair.

    Args:
        answers (`dict[str, Answer]`): The answer in each order, by the names of `ORDERS`.
    """
    if any(answer.verdict is None for answer in answers.values()):
        return FAILED
    chosen, rejected = (_mean_score(answers, side) for side in SIDES)
    preferred = {answers[order].preferred_side(order) for order in ORDERS}
    if len(preferred) > 1:
        return Decision(chosen, rejected, "tie" if chosen == rejected else "scores")
    sign = 1 if preferred == {"chosen"} else -1
    if sign * (chosen - rejected) > 0:
        return Decision(chosen, rejected, "verdict")
    middle, half = (chosen + rejected) / 2, sign * VERDICT_MARGIN / 2
    return Decision(middle + half, middle - half, "verdict")


def _mean_score(answers: dict[str, Answer], side: str) -> float:
    """Return a side's mean score over all dimensions and both answers."""
    totals = [answer.total(order, side) for order, answer in answers.items()]
    num_scores = sum(len(answer.verdict.scores) for answer in answers.values() if answer.verdict)
    return sum(totals) / num_scores
