"""Parse a judge's answers about two versions (figures 12 and 13), and decide the pair.

The deciding parts must be present and exact. A score of 7, a missing dimension or an unknown one makes the answer
invalid, and the judge is asked again. Unambiguous errors of form are repaired and counted: prose around the JSON, "4"
for 4, scores by version instead of by dimension, a missing reason.

A judge hears A and B, then B and A. Its preference counts only if it prefers the same side twice.

1. `verdict`: both answers prefer the same side.
2. `scores`: they disagree, and one side has the higher mean score over all dimensions and both answers.
3. `tie`: neither applies. The metric counts a tie as wrong, and reports ties separately.
4. `failed`: an answer is missing or has no verdict. The pair has no reward and counts as wrong, because skipping it
   would favour judges that refuse hard pairs.

A side's reward is its mean score, 1 to 5. The sign of the margin is the decision; its size is the difference of the
scores. If a verdict contradicts the scores, or the scores are equal, the verdict decides the sign: both sides get
their common mean, `VERDICT_MARGIN` apart, which is less than any difference of mean scores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, create_model

from sdiareward.common.llm import TokenUsage, parse_answer
from sdiareward.common.settings import explain_error
from sdiareward.dataset_builder.pairing.filtering import DIMENSIONS as MODALITY_DIMENSIONS
from sdiareward.pairs.schema import SIDES


DIMENSIONS: dict[str, tuple[str, ...]] = {
    "modality": tuple(MODALITY_DIMENSIONS.values()),
    "colloquialness": (
        *("lexical_informality", "syntactic_simplicity", "disfluencies", "pragmatic_naturalness", "prosody"),
    ),
}
# The system prompt, and the request after both versions.
PROMPTS = {criterion: (f"judge_{criterion}", f"judge_{criterion}_request") for criterion in DIMENSIONS}
VERSIONS = ("A", "B")
# The side that is version A.
ORDERS = {"chosen_first": SIDES, "rejected_first": SIDES[::-1]}
# Five dimensions and two answers: the smallest difference of mean scores is 0.1.
VERDICT_MARGIN = 0.05
RULES = ("verdict", "scores", "tie", "failed")
# Unusable: no valid verdict after all attempts; unanswered: no reply; unheard: unreadable audio, not sent.
Status = Literal["usable", "refused", "unusable", "unanswered", "unheard"]
_PREFERENCE = re.compile(r"(?:version\s+)?[\"']?([AB])[\"']?\.?", re.IGNORECASE)
# Typical beginnings of refusals. The same words later in an answer are not a refusal.
_REFUSAL = re.compile(
    r"(?:i['’]?m |i am )?(?:really |very |so )?(?:sorry|afraid)\b|"
    r"(?:unfortunately,? )?(?:i (?:can['’]?t|cannot|won['’]?t|will not|do not have)|i['’]?m (?:unable|not able)|"
    r"i am (?:unable|not able))\b|as an? (?:ai|text|language)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Verdict:
    """A judge's verdict on two versions."""

    preference: str
    scores: Mapping[str, tuple[int, int]]  # Scores of A and B per dimension, 1-5; higher is better.
    reason: str = ""
    repairs: tuple[str, ...] = ()

    def sum_scores(self, version: str) -> int:
        return sum(both[VERSIONS.index(version)] for both in self.scores.values())

    @property
    def is_contradictory(self) -> bool:
        """Whether the preferred version has lower scores."""
        other = VERSIONS[1 - VERSIONS.index(self.preference)]
        return self.sum_scores(self.preference) < self.sum_scores(other)


@dataclass(frozen=True)
class Answer:
    """The answer to a question."""

    verdict: Verdict | None
    text: str = ""
    status: Status = "usable"
    problem: str | None = None
    spent: TokenUsage = field(default_factory=TokenUsage)
    audio_s: float = 0.0
    columns: Mapping[str, Any] = field(default_factory=dict)  # Scores from a judge of single sides.

    def find_preferred_side(self, order: str) -> str | None:
        """Return the preferred side, `"chosen"` or `"rejected"`; None without a verdict."""
        return None if self.verdict is None else ORDERS[order][VERSIONS.index(self.verdict.preference)]

    def describe_verdict(self, order: str) -> dict[str, Any]:
        """Return the columns of `answers.jsonl` for the summary."""
        verdict, preferred = self.verdict, self.find_preferred_side(order)
        repairs = [] if verdict is None else list(verdict.repairs)
        contradictory = verdict is not None and verdict.is_contradictory
        return {"repairs": repairs, "preferred": preferred, "contradictory": contradictory}


def make_decision(chosen: float | None, rejected: float | None, decided_by: str) -> dict[str, Any]:
    """Return the record of a pair: the rewards, 1-5 or None if the pair failed, their margin, and one of `RULES`."""
    margin = None if chosen is None or rejected is None else chosen - rejected
    return {"chosen": chosen, "rejected": rejected, "decided_by": decided_by, "margin": margin}


def decide(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Decide a pair from its answers by order (a key of `ORDERS`); there may be only one order."""
    verdicts = {order: answer.verdict for order, answer in answers.items() if answer.verdict is not None}
    if len(verdicts) < len(answers):
        return make_decision(None, None, "failed")
    num_scores = sum(len(verdict.scores) for verdict in verdicts.values())
    version = {(order, side): VERSIONS[sides.index(side)] for order, sides in ORDERS.items() for side in SIDES}
    sums = [sum(each.sum_scores(version[order, side]) for order, each in verdicts.items()) for side in SIDES]
    chosen, rejected = (each / num_scores for each in sums)
    preferred = {answer.find_preferred_side(order) for order, answer in answers.items()}
    if len(preferred) > 1:
        return make_decision(chosen, rejected, "tie" if chosen == rejected else "scores")
    sign = 1 if preferred == {"chosen"} else -1
    if sign * (chosen - rejected) <= 0:
        middle, half = (chosen + rejected) / 2, sign * VERDICT_MARGIN / 2
        chosen, rejected = middle + half, middle - half
    return make_decision(chosen, rejected, "verdict")


def make_failed_answer(problem: str, text: str | None, spent: TokenUsage, audio_s: float = 0.0) -> Answer:
    """Make an answer without a verdict; `text` is None if there was no reply."""
    status: Status = "unanswered" if text is None else "refused" if is_refusal(text) else "unusable"
    return Answer(None, text or "", status, problem, spent, audio_s)


def is_refusal(text: str) -> bool:
    """Return whether an answer without a verdict begins like a refusal."""
    return bool(_REFUSAL.match(text.strip()))


def read_text(text: str, criterion: str, *, is_cut: bool = False) -> Verdict:
    """Parse an answer, which may be cut at the token limit; the `ValueError` for an invalid one is for the judge."""
    given, repairs = parse_answer(text, is_cut), ["text around the JSON"]
    with suppress(ValueError):
        repairs = [] if isinstance(json.loads(text), dict) else repairs
    given = given[0] if isinstance(given, list) and len(given) == 1 else given
    try:
        found = _make_form(criterion).model_validate(given, context=repairs)
    except ValueError as error:
        raise ValueError(explain_error(error)) from error
    scores = {name: (both["A"], both["B"]) for name, both in found.scores.model_dump().items()}
    return Verdict(found.overall_preference, scores, found.reason, tuple(dict.fromkeys(repairs)))


def _read_score(given: Any, info: ValidationInfo[list[str]]) -> Any:
    is_quoted = isinstance(given, str) and re.fullmatch(r"\s*\d+\s*", given)
    if is_quoted or (isinstance(given, float) and given.is_integer()):
        info.context.append("a score that was not of integer type")
        return int(given)
    return given


def _read_preference(given: Any, info: ValidationInfo[list[str]]) -> Any:
    match = _PREFERENCE.fullmatch(given.strip()) if isinstance(given, str) else None
    if match and match[1].upper() != given:
        info.context.append("a preference in other words")
    return match[1].upper() if match else given


def _read_reason(given: Any, info: ValidationInfo[list[str]]) -> str:
    if not isinstance(given, str):
        info.context.append("no reason")
    return given if isinstance(given, str) else ""


def _group_by_dimension(given: Any, info: ValidationInfo[list[str]]) -> Any:
    """Return scores by dimension that a judge gave by version."""
    sides: list[Any] = list(given.values()) if isinstance(given, dict) and set(given) == set(VERSIONS) else [None]
    if not all(isinstance(side, dict) for side in sides):
        return given
    info.context.append("scores by version")
    names = dict.fromkeys(name for side in sides for name in side)
    return {name: {each: given[each][name] for each in VERSIONS if name in given[each]} for name in names}


class _Versions(BaseModel, extra="forbid"):
    A: Annotated[int, Field(strict=True, ge=1, le=5), BeforeValidator(_read_score)]
    B: Annotated[int, Field(strict=True, ge=1, le=5), BeforeValidator(_read_score)]


@cache
def _make_form(criterion: str) -> Any:
    """Return the model of an answer; its validation notes repairs in its context."""
    make: Any = create_model
    forbid = ConfigDict(extra="forbid")
    scores = make("Scores", __config__=forbid, **dict.fromkeys(DIMENSIONS[criterion], (_Versions, ...)))
    return make(
        "Form",
        __config__=forbid,
        scores=(Annotated[scores, BeforeValidator(_group_by_dimension)], ...),
        overall_preference=(Annotated[Literal[VERSIONS], BeforeValidator(_read_preference)], ...),
        reason=(Annotated[str, BeforeValidator(_read_reason)], Field(None, validate_default=True)),
    )
