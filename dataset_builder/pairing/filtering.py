"""Filter pairs: rules first (`check_rules`), then a judge that listens (appendix B.1).

A language model that takes audio compares the recording (version A) with its synthetic counterpart (version B) "within
an identical multi-turn context, focusing specifically on the quality of the final turn". We read this as two whole
dialogues with the same words, each in its own voice; the judge does not know their origin. "Samples are preserved only
if they achieve scores >= 3 in both `final_turn_content` and `dialog_context_coherence`": a sample is a pair, so by
default both of its sides must reach 3. Naturalness does not count: the pairs are to teach it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

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
_FAILED = ("judge_failed", "annotation_failed")
Row = dict[str, Any]
Score = Annotated[int, Field(strict=True, ge=1, le=5)]


class _Versions(BaseModel):
    A: Score
    B: Score


class _Scores(BaseModel):
    final_turn_content: _Versions
    final_turn_naturalness_prosody: _Versions
    dialog_context_coherence: _Versions


class Verdict(BaseModel):
    """The answer of the judge; the prompt asks for a reason of at most 80 words, and longer ones are accepted."""

    scores: _Scores
    overall_preference: Annotated[Literal["A", "B"], BeforeValidator(lambda text: str(text).strip().upper())]
    reason: str

    def read_scores(self) -> dict[str, dict[str, int]]:
        """Return the scores by side and dimension, as the column `quality` has them."""
        return {
            side: {name: getattr(getattr(self.scores, key), version) for name, key in DIMENSIONS.items()}
            for version, side in SIDES.items()
        }


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
        return Skipped(name_pair(row), _find_broken_rule(row), str(error))
    return None


def _find_broken_rule(row: Mapping[str, Any]) -> str:
    """Return the kind of the first rule on turns that the pair breaks, if it breaks no other."""
    try:
        validate_row({**row, "chosen": _SOUND_TURNS, "rejected": _SOUND_TURNS})
        for turns in (row["chosen"], row["rejected"]):
            if not turns or len(turns) % 2 or len(turns) > MAX_TURNS:
                return "turn_count"
            if [turn["role"] for turn in turns] != [*ROLES] * (len(turns) // 2):
                return "turn_order"
            if not all(0 < turn["duration_s"] <= MAX_TURN_S for turn in turns):
                return "turn_duration"
    # A column is missing, or has a value of another kind.
    except (ValueError, TypeError, LookupError):
        pass
    return "invalid_row"


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
    rules, texts = settings or FilterSettings(), prompts or PromptSet()

    def examine(row: Row) -> tuple[Row | Skipped, bool]:
        if skip := check_rules(row):
            return skip, False
        if row["criterion"] not in rules.criteria:
            return row, False
        outcome = _judge(row, client, rules, texts)
        has_failed = isinstance(outcome, Skipped) and outcome.kind in _FAILED
        return row if has_failed and rules.keep_unjudged else outcome, True

    yield from ask_judge(rows, client, examine, "judging", "the judge failed on {} pairs", rules.max_failed)


def ask_judge(
    rows: Iterable[Row],
    client: ChatClient,
    ask: Callable[[Row], tuple[Row | Skipped, bool]],
    description: str,
    failed: str,
    max_failed: float,
) -> Iterator[Row | Skipped]:
    """Yield what `ask` makes of each row, in order; it also returns whether the judge was asked.

    Too large a share of failures raises `EndpointError`.
    """
    limit = FailureLimit(max_failed, failed, "filter.max_failed")
    result: Any
    for result in client.map(ask, rows, failures=(), description=description):
        outcome, is_asked = result
        if is_asked:
            limit.count(outcome.reason if isinstance(outcome, Skipped) and outcome.kind in _FAILED else None)
        yield outcome
    limit.require_few()


def _judge(row: Row, client: ChatClient, settings: FilterSettings, prompts: PromptSet) -> Row | Skipped:
    name, content = name_pair(row), list[dict[str, Any]]()
    system, request = map(prompts.fill, PROMPTS)
    try:
        for version, side in SIDES.items():
            content.append({"type": "text", "text": f"Version {version}:"})
            content += make_spoken_turns(row[side], f"{name}, {side}")
        content.append({"type": "text", "text": request})
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": content}]
        verdict = client.ask_json(messages, Verdict.model_validate)
    except AudioError as error:
        return Skipped(name, "unusable_audio", str(error))
    except ChatError as error:
        return Skipped(name, "judge_failed", str(error))
    judge, scores = client.settings.model, verdict.read_scores()
    low = [
        f"{side} {dimension} {scores[side][dimension]}"
        for side in settings.sides
        for dimension in settings.dimensions
        if scores[side][dimension] < settings.min_score
    ]
    if low:
        reason = f"{judge} gave {', '.join(low)}; at least {settings.min_score} is needed. {verdict.reason}"
        return Skipped(name, "low_quality", reason)
    return {**row, "quality": {**scores, "judge": judge, "prompt_version": prompts.compute_version(*PROMPTS)}}


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


def name_pair(row: Mapping[str, Any]) -> str:
    return f"{row.get('source')} pair {row.get('pair_id')}"
