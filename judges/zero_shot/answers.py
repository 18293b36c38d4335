"""Parse a judge's answers about two versions (figures 12 and 13), and decide a pair by them.

The parts that decide must be present and exact. A score of 7, a missing dimension or an unknown one makes the answer
invalid, and the judge is asked again. Errors of form with a clear meaning are repaired and counted: prose around the
JSON, "4" for 4, scores by version instead of by dimension, a missing reason.

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

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sdiareward.common.llm import TokenUsage, parse_json
from sdiareward.dataset_builder.pairing.filtering import DIMENSIONS as MODALITY_DIMENSIONS
from sdiareward.pairs.schema import SIDES


DIMENSIONS: dict[str, tuple[str, ...]] = {
    "modality": tuple(MODALITY_DIMENSIONS.values()),
    "colloquialness": (
        "lexical_informality",
        "syntactic_simplicity",
        "disfluencies",
        "pragmatic_naturalness",
        "prosody",
    ),
}
# System prompt, and the request that follows both versions.
PROMPTS = {criterion: (f"judge_{criterion}", f"judge_{criterion}_request") for criterion in DIMENSIONS}
VERSIONS = ("A", "B")
# Which side is version A.
ORDERS = {"chosen_first": SIDES, "rejected_first": SIDES[::-1]}
Orders = Literal["both", "one"]
# Five dimensions and two answers: the smallest difference of mean scores is 0.1.
VERDICT_MARGIN = 0.05
RULES = ("verdict", "scores", "tie", "failed")
# Unusable: no valid verdict after all attempts; unanswered: no reply; unheard: unreadable audio, not sent.
Status = Literal["usable", "refused", "unusable", "unanswered", "unheard"]
_KEYS = ("scores", "overall_preference", "reason")
_PREFERENCE = re.compile(r"(?:version\s+)?[\"']?([AB])[\"']?\.?", re.IGNORECASE)
# How models begin a refusal. The same words inside a longer answer are not a refusal.
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
    # Of A and of B in each dimension, 1-5; higher is better.
    scores: Mapping[str, tuple[int, int]]
    reason: str = ""
    repairs: tuple[str, ...] = ()

    def sum_scores(self, version: str) -> int:
        return sum(both[VERSIONS.index(version)] for both in self.scores.values())

    @property
    def is_contradictory(self) -> bool:
        """Whether the version that is preferred has the lower scores."""
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

    def find_preferred_side(self, order: str) -> str | None:
        """Return the side that the judge prefers, `"chosen"` or `"rejected"`; None without a verdict."""
        return None if self.verdict is None else ORDERS[order][VERSIONS.index(self.verdict.preference)]


@dataclass(frozen=True)
class Decision:
    """The decision on a pair: the rewards, 1-5 or None if the pair failed, and one of `RULES`."""

    chosen: float | None
    rejected: float | None
    decided_by: str

    def as_record(self) -> dict[str, Any]:
        margin = None if self.chosen is None or self.rejected is None else self.chosen - self.rejected
        return {**asdict(self), "margin": margin}


FAILED = Decision(None, None, "failed")


def decide(answers: Mapping[str, Answer]) -> Decision:
    """Decide a pair from its answers by order, a key of `ORDERS`; a pair asked in one order has one."""
    verdicts = {order: answer.verdict for order, answer in answers.items() if answer.verdict is not None}
    if len(verdicts) < len(answers):
        return FAILED
    num_scores = sum(len(verdict.scores) for verdict in verdicts.values())
    chosen, rejected = (
        sum(verdict.sum_scores(VERSIONS[ORDERS[order].index(side)]) for order, verdict in verdicts.items())
        / num_scores
        for side in SIDES
    )
    preferred = {answer.find_preferred_side(order) for order, answer in answers.items()}
    if len(preferred) > 1:
        return Decision(chosen, rejected, "tie" if chosen == rejected else "scores")
    sign = 1 if preferred == {"chosen"} else -1
    if sign * (chosen - rejected) > 0:
        return Decision(chosen, rejected, "verdict")
    middle, half = (chosen + rejected) / 2, sign * VERDICT_MARGIN / 2
    return Decision(middle + half, middle - half, "verdict")


def make_failed_answer(problem: str, text: str | None, spent: TokenUsage, audio_s: float = 0.0) -> Answer:
    """Make an answer without a verdict; `text` is None if there was no reply."""
    status: Status = "unanswered" if text is None else "refused" if is_refusal(text) else "unusable"
    return Answer(None, text or "", status, problem, spent, audio_s)


def read_text(text: str, criterion: str, *, is_cut: bool = False) -> Verdict:
    """Parse the text of an answer; `is_cut` if it ended at the token limit."""
    return read_verdict(parse_json(text, is_cut=is_cut), criterion, text=text)


def read_verdict(answer: Any, criterion: str, *, text: str = "") -> Verdict:
    """Check a judge's JSON; the judge is sent the text of the `ValueError` to correct its answer."""
    answer = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    if not isinstance(answer, dict) or not isinstance(answer.get("scores"), dict):
        raise ValueError("the answer must be a JSON object with 'scores', 'overall_preference' and 'reason'.")
    _check_keys(answer, _KEYS, "the answer", optional=("reason",))
    repairs = ["text around the JSON"] if text and not _is_object(text) else []
    by_dimension = answer["scores"]
    if set(by_dimension) == set(VERSIONS):
        by_dimension = _group_by_dimension(by_dimension)
        repairs.append("scores by version")
    _check_keys(by_dimension, DIMENSIONS[criterion], "'scores'")
    scores = {name: _read_scores(by_dimension[name], name, repairs) for name in DIMENSIONS[criterion]}
    preference = _read_preference(answer["overall_preference"], repairs)
    reason = answer.get("reason")
    if not isinstance(reason, str):
        repairs.append("no reason")
    return Verdict(preference, scores, reason if isinstance(reason, str) else "", tuple(dict.fromkeys(repairs)))


def is_refusal(text: str) -> bool:
    """Return whether an answer without a verdict begins like a refusal."""
    return bool(_REFUSAL.match(text.strip()))


def _check_keys(
    found: Mapping[str, Any], required: tuple[str, ...], where: str, optional: tuple[str, ...] = ()
) -> None:
    if missing := [name for name in required if name not in found and name not in optional]:
        raise ValueError(f"{where} lacks {missing}; it must have {list(required)}.")
    if unknown := [name for name in found if name not in required]:
        raise ValueError(f"{where} has {unknown}, which nobody asked for; it must have {list(required)} alone.")


def _group_by_dimension(by_version: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    if not all(isinstance(of_version, dict) for of_version in by_version.values()):
        raise ValueError("'scores' must hold the dimensions, each with a score of A and one of B.")
    names = dict.fromkeys(name for version in VERSIONS for name in by_version[version])
    return {
        name: {version: by_version[version][name] for version in VERSIONS if name in by_version[version]}
        for name in names
    }


def _read_scores(by_version: Any, dimension: str, repairs: list[str]) -> tuple[int, int]:
    if not isinstance(by_version, dict):
        raise ValueError(f"{dimension!r} is {by_version!r}; it must hold a score of A and one of B.")
    _check_keys(by_version, VERSIONS, f"{dimension!r}")
    first, second = (_read_score(by_version[version], dimension, version, repairs) for version in VERSIONS)
    return first, second


def _read_score(value: Any, dimension: str, version: str, repairs: list[str]) -> int:
    is_quoted = isinstance(value, str) and re.fullmatch(r"\s*\d+\s*", value)
    is_whole = isinstance(value, float) and value.is_integer()
    score = int(value) if is_quoted or is_whole else value
    if type(score) is not int or not 1 <= score <= 5:
        raise ValueError(f"{dimension!r} of version {version} is {value!r}; it must be a whole number, 1 to 5.")
    if type(value) is not int:
        repairs.append("a score that was no whole number by its type")
    return score


def _read_preference(value: Any, repairs: list[str]) -> str:
    match = _PREFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"'overall_preference' is {value!r}; it must be 'A' or 'B'.")
    preference = match[1].upper()
    if value != preference:
        repairs.append("a preference in other words")
    return preference


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
