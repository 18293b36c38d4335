"""The training rewards of WavReward (section 3.1), as TRL reward functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .judge import follows_format, parse_score


FORMAT_REWARD = 5.0
ACCURACY_REWARD = 10.0
EXACT_REWARD = 5.0
MAX_DIFFERENCE = 4
# The paper does not give sigma. With 1, a score off by two (one level) earns 1.4 of 10 and a score off by four almost
# nothing: the levels stay separate, and 4 for a 5 is still better than 3.
DEFAULT_SIGMA = 1.0
Completion = str | Sequence[Mapping[str, Any]]
RewardFunction = Callable[..., list[float]]


def accuracy_reward(predicted: int | None, gold: float, sigma: float = DEFAULT_SIGMA) -> float:
    """Return `R_a` (equation 3): `10 exp(-(p - g)^2 / (2 sigma^2))`, 0 without a score or beyond a difference of 4."""
    if predicted is None or abs(predicted - gold) > MAX_DIFFERENCE:
        return 0.0
    return ACCURACY_REWARD * math.exp(-((predicted - gold) ** 2) / (2 * sigma**2))


def make_reward_functions(
    *, reasoning: bool = True, accuracy: str = "nonlinear", sigma: float = DEFAULT_SIGMA
) -> list[RewardFunction]:
    """Make the functions that `GRPOTrainer` sums; `R_f`, for the format, only with `reasoning` (section 4.4)."""
    if accuracy not in ("nonlinear", "exact"):
        raise ValueError(f"accuracy is {accuracy!r}; it must be 'nonlinear' or 'exact'.")
    if not sigma > 0:
        raise ValueError(f"sigma is {sigma}; it must be more than 0.")

    def format_of_answer(completions: Sequence[Completion], **_: Any) -> list[float]:
        return [FORMAT_REWARD if follows_format(read_text(each)) else 0.0 for each in completions]

    def accuracy_of_score(completions: Sequence[Completion], score: Sequence[float], **_: Any) -> list[float]:
        predicted = [parse_score(read_text(each)) for each in completions]
        if accuracy == "exact":
            # The ablation `w/o nonlinear reward` (section 4.4).
            return [EXACT_REWARD * (found == gold) for found, gold in zip(predicted, score, strict=True)]
        return [accuracy_reward(found, gold, sigma) for found, gold in zip(predicted, score, strict=True)]

    return [format_of_answer, accuracy_of_score] if reasoning else [accuracy_of_score]


def read_text(completion: Completion) -> str:
    """Return the text of a completion, which TRL passes as a string or messages."""
    if isinstance(completion, str):
        return completion
    content = completion[-1]["content"]
    return content if isinstance(content, str) else "".join(item.get("text") or "" for item in content)
