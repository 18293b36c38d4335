"""Filter pairs: rules first (`check_rules`), then a judge that listens (`judge_pair`; appendix B.1).

A language model that takes audio compares the recording (version A) with its synthetic counterpart (version B) "within
an identical multi-turn context, focusing specifically on the quality of the final turn". We read this as two whole
dialogues with the same words, each in its own voice; the judge does not know their origin. "Samples are preserved only
if they achieve scores >= 3 in both `final_turn_content` and `dialog_context_coherence`": a sample is a pair, so by
default both of its sides must reach 3. Naturalness does not count: the pairs are to teach it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from sdiareward.audio_sdiareward import AudioError
from sdiareward.chat_sdiareward import MAX_TURNS, ROLES
from sdiareward.common.llm import ChatClient, ChatError, FailureLimit, require_share
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.messages import make_audio_content
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import CRITERIA, MAX_TURN_S, validate_row


DIMENSIONS = {
    "content": "final_turn_content",
    "naturalness": "final_turn_naturalness_prosody",
    "coherence": "dialog_context_coherence",
}
SIDES = {"A": "chosen", "B": "rejected"}
# The system prompt, and the request after both versions.
PROMPTS = ("filter", "filter_request")
_SOUND_TURNS = [{"role": role, "duration_s": 1.0} for role in ROLES]
Row = dict[str, Any]


@dataclass(frozen=True)
class Scores:
    """A judge's scores of one side, whole numbers from 1 to 5; higher is better."""

    content: int
    naturalness: int
    coherence: int


@dataclass(frozen=True)
class Quality:
    chosen: Scores
    rejected: Scores
    preference: str
    reason: str  # The prompt asks for at most 80 words; longer reasons are accepted.
    judge: str
    prompt_version: str

    def as_row(self) -> dict[str, Any]:
        """Return the column `quality`; preference and reason stay with the judge's answer on disk."""
        scores = {"chosen": asdict(self.chosen), "rejected": asdict(self.rejected)}
        return {**scores, "judge": self.judge, "prompt_version": self.prompt_version}


@dataclass(frozen=True)
class FilterSettings:
    min_score: int = 3
    dimensions: tuple[str, ...] = ("content", "coherence")  # Must reach `min_score`.
    sides: tuple[str, ...] = ("chosen", "rejected")  # Must reach `min_score`.
    criteria: tuple[str, ...] = ("modality",)  # Pairs that are judged.
    keep_unjudged: bool = False  # Keep a pair that the judge fails on, without `quality`.
    max_failed: float = 0.1  # Share of failures that stops the filter: a refused parameter fails on every pair.

    def __post_init__(self) -> None:
        require_share(self.max_failed)
        if self.min_score not in range(1, 6):
            raise ValueError(f"min_score is {self.min_score!r}; scores go from 1 to 5.")
        vocabularies = {"dimensions": tuple(DIMENSIONS), "sides": tuple(SIDES.values()), "criteria": CRITERIA}
        for name, allowed in vocabularies.items():
            if unknown := set(getattr(self, name)) - set(allowed):
                raise ValueError(f"{name} holds {sorted(unknown)}; it may hold {list(allowed)}.")


def check_rules(row: Mapping[str, Any]) -> Skipped | None:
    """Return why phase 1 skips a pair, `invalid_row` if no rule on turns explains it; None if it is kept."""
    try:
        validate_row(row)
    except ValueError as error:
        return Skipped(_name(row), _find_broken_rule(row), str(error))
    return None


def judge_pair(row: Mapping[str, Any], client: ChatClient, prompts: PromptSet | None = None) -> Quality:
    prompts = prompts or PromptSet()
    system, request = map(prompts.fill, PROMPTS)
    content: list[dict[str, Any]] = []
    for version, side in SIDES.items():
        content.append({"type": "text", "text": f"Version {version}:"})
        content += make_spoken_turns(row[side], f"{_name(row)}, {side}")
    content.append({"type": "text", "text": request})
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system},
        {"role": "user", "content": content},
    ]
    return client.ask_json(
        messages, partial(_read_quality, judge=client.settings.model, prompt_version=prompts.compute_version(*PROMPTS))
    )


def make_spoken_turns(
    turns: Sequence[Mapping[str, Any]], name: str, *, with_words: bool = False
) -> list[dict[str, Any]]:
    """Return turns as parts of a message: role, then recording. Without the words the judge has to listen."""
    parts: list[dict[str, Any]] = []
    for position, turn in enumerate(turns):
        label = "last turn" if position == len(turns) - 1 else f"turn {position + 1}"
        words = f" {turn['text']}" if with_words else ""
        parts.append({"type": "text", "text": f"{label}, {turn['role']}:{words}"})
        parts.append(make_audio_content(turn["audio"], name=f"{name} turn {position}"))
    return parts


def filter_rows(
    rows: Iterable[Row],
    client: ChatClient | None,
    settings: FilterSettings | None = None,
    prompts: PromptSet | None = None,
) -> Iterator[Row | Skipped]:
    """Yield, in order, each kept pair with its `quality`, or why it is dropped; memory holds a few rows at a time.

    The client keeps the judge's answers: a run that is interrupted or has other settings asks no question twice.
    """
    if client is None:
        yield from (check_rules(row) or row for row in rows)
        return
    settings = settings or FilterSettings()
    examine = partial(_examine, client=client, settings=settings, prompts=prompts or PromptSet())
    limit = FailureLimit(settings.max_failed, "the judge failed on {} pairs", "filter.max_failed")
    for result in client.map(examine, rows, failures=(), description="judging"):
        # `failures` is empty: an exception would have been raised.
        assert not isinstance(result, Exception)
        if result.is_judged:
            limit.count(result.failure)
        yield result.outcome
    limit.require_few()


@dataclass(frozen=True)
class _Examined:
    outcome: Row | Skipped
    is_judged: bool = False
    failure: str | None = None


def _examine(row: Row, *, client: ChatClient, settings: FilterSettings, prompts: PromptSet) -> _Examined:
    if skip := check_rules(row):
        return _Examined(skip)
    if row["criterion"] not in settings.criteria:
        return _Examined(row)
    try:
        return _Examined(_judge(row, client, settings, prompts), is_judged=True)
    except ChatError as error:
        if settings.keep_unjudged:
            return _Examined(row, is_judged=True)
        return _Examined(Skipped(_name(row), "judge_failed", str(error)), is_judged=True, failure=str(error))


def _judge(row: Row, client: ChatClient, settings: FilterSettings, prompts: PromptSet) -> Row | Skipped:
    try:
        quality = judge_pair(row, client, prompts)
    except AudioError as error:
        return Skipped(_name(row), "unusable_audio", str(error))
    low = [
        f"{side} {dimension} {score}"
        for side in settings.sides
        for dimension in settings.dimensions
        if (score := getattr(getattr(quality, side), dimension)) < settings.min_score
    ]
    if low:
        reason = f"{quality.judge} gave {', '.join(low)}; at least {settings.min_score} is needed. {quality.reason}"
        return Skipped(_name(row), "low_quality", reason)
    return {**row, "quality": quality.as_row()}


def _read_quality(answer: Any, *, judge: str, prompt_version: str) -> Quality:
    """Check a judge's answer; raise `ValueError` with what the judge must correct."""
    if not isinstance(answer, dict) or not isinstance(answer.get("scores"), dict):
        raise ValueError("the answer must be a JSON object with 'scores', 'overall_preference' and 'reason'.")
    chosen, rejected = (Scores(**_read_scores(answer["scores"], version)) for version in SIDES)
    preference = str(answer.get("overall_preference")).strip().upper()
    if preference not in SIDES:
        raise ValueError(f"'overall_preference' is {answer.get('overall_preference')!r}; it must be 'A' or 'B'.")
    if not isinstance(answer.get("reason"), str):
        raise ValueError("'reason' must be a text.")
    return Quality(chosen, rejected, SIDES[preference], answer["reason"], judge, prompt_version)


def _read_scores(scores: Mapping[str, Any], version: str) -> dict[str, int]:
    found = {}
    for name, dimension in DIMENSIONS.items():
        by_version = scores.get(dimension)
        score = by_version.get(version) if isinstance(by_version, dict) else None
        if type(score) is not int or not 1 <= score <= 5:
            raise ValueError(f"{dimension!r} of version {version} is {score!r}; it must be a whole number, 1 to 5.")
        found[name] = score
    return found


def _find_broken_rule(row: Mapping[str, Any]) -> str:
    """Return the kind of the first rule on turns that the pair breaks, if it breaks no other."""
    try:
        validate_row({**row, "chosen": _SOUND_TURNS, "rejected": _SOUND_TURNS})
        return next(filter(None, (_find_broken_side(row[side]) for side in ("chosen", "rejected"))), "invalid_row")
    # A column is missing, or has a value of another kind.
    except (ValueError, TypeError, LookupError):
        return "invalid_row"


def _find_broken_side(turns: Any) -> str | None:
    if not turns or len(turns) % 2 or len(turns) > MAX_TURNS:
        return "turn_count"
    if [turn["role"] for turn in turns] != [*ROLES] * (len(turns) // 2):
        return "turn_order"
    return None if all(0 < turn["duration_s"] <= MAX_TURN_S for turn in turns) else "turn_duration"


def _name(row: Mapping[str, Any]) -> str:
    return f"{row.get('source')} pair {row.get('pair_id')}"
