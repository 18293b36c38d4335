"""Filter pairs: rules first (`check_rules`), then a judge that listens (appendix B.1); and let it add missing labels.

A language model that takes audio compares the recording (version A) with its synthetic counterpart (version B) "within
an identical multi-turn context, focusing specifically on the quality of the final turn". We read this as two whole
dialogues with the same words, each in its own voice; the judge does not know their origin. "Samples are preserved only
if they achieve scores >= 3 in both `final_turn_content` and `dialog_context_coherence`": a sample is a pair, so by
default both of its sides must reach 3. Naturalness does not count: the pairs are to teach it.

The paper's judge also annotates the recordings from YouTube, "establishing emotion as the primary category and
specific paralinguistic features (e.g., laughter, filled pauses) as the secondary dimension". Labels of MELD and
DailyTalk are trusted: only a missing label is asked for. All pairs of one recording cost one question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic.dataclasses
from pydantic import BaseModel, BeforeValidator, Field

from sdiareward.audio_sdiareward import AudioError
from sdiareward.chat_sdiareward import MAX_TURNS, ROLES
from sdiareward.common.errors import Skipped
from sdiareward.common.llm import ChatClient, ChatError, FailureLimit
from sdiareward.pairs.messages import make_audio_content
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import MAX_TURN_S, list_allowed_labels, validate_row


DIMENSIONS = {
    "content": "final_turn_content",
    "naturalness": "final_turn_naturalness_prosody",
    "coherence": "dialog_context_coherence",
}
SIDES = {"A": "chosen", "B": "rejected"}
# The system prompt, and the request after both versions or the recording.
PROMPTS = ("filter", "filter_request")
ANNOTATION_PROMPTS = ("annotation", "annotation_request")
# What the primary and the secondary dimension of each source are (Table 5).
_MEANINGS = {
    "youtube": {
        "primary": "the emotion that carries the conversation",
        "secondary": "the sound beside the words that is most noticeable. 'Filled Pauses' are sounds like um and uh, "
        "'Listener Feedback' is a listener's mhm or yeah, 'No Feature' means that there is nothing of the kind",
    },
    "meld": {
        "primary": "the sentiment of the conversation",
        "secondary": "the emotion that carries the conversation",
    },
    "dailytalk": {
        "primary": "what the speakers do with what they say",
        "secondary": "the emotion that carries the conversation",
    },
}
_SOUND_TURNS = [{"role": role, "duration_s": 1.0} for role in ROLES]
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


@pydantic.dataclasses.dataclass(config={"extra": "forbid"}, frozen=True)
class FilterSettings:
    min_score: Annotated[int, Field(ge=1, le=5)] = 3
    # Dimensions and sides that must reach `min_score`.
    dimensions: tuple[Literal["content", "naturalness", "coherence"], ...] = ("content", "coherence")
    sides: tuple[Literal["chosen", "rejected"], ...] = ("chosen", "rejected")
    criteria: tuple[Literal["modality", "colloquialness"], ...] = ("modality",)  # Pairs that are judged.
    keep_unjudged: bool = False  # Keep a pair that the judge fails on, without `quality`.
    # Share of failures that stops the filter: a refused parameter fails on every pair.
    max_failed: Annotated[float, Field(ge=0, le=1)] = 0.1


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
        return (_judge(row, client, rules, texts), True) if row["criterion"] in rules.criteria else (row, False)

    words = ("judge_failed", "judging", "the judge failed on {} pairs")
    yield from _ask_judge(rows, client, examine, words, rules.max_failed, keep_failed=rules.keep_unjudged)


def annotate_rows(
    rows: Iterable[Row], client: ChatClient, prompts: PromptSet | None = None, *, max_failed: float = 0.1
) -> Iterator[Row | Skipped]:
    """Yield, in order, each pair with labels of Table 5, or why it has none; a source outside `TAXONOMY` passes."""
    texts = prompts or PromptSet()

    def annotate(row: Row) -> tuple[Row | Skipped, bool]:
        missing = [label for label, names in list_allowed_labels(row).items() if row[label] not in names]
        given = _ask_labels(row, client, texts) if missing else {}
        return {**row, **{label: given[label] for label in missing}}, bool(missing)

    words = ("annotation_failed", "annotating", "the judge failed to label {} pairs")
    yield from _ask_judge(rows, client, annotate, words, max_failed)


def _ask_judge(
    rows: Iterable[Row],
    client: ChatClient,
    ask: Callable[[Row], tuple[Row | Skipped, bool]],
    words: tuple[str, str, str],
    max_failed: float,
    *,
    keep_failed: bool = False,
) -> Iterator[Row | Skipped]:
    """Yield what `ask` makes of each row, in order; it also returns whether the judge was asked.

    `words` are the kind of a failed row, the label of the progress bar, and what the `EndpointError` says that too
    large a share of failures raises.
    """
    kind, description, failed = words
    limit = FailureLimit(max_failed, failed, "filter.max_failed")

    def examine(row: Row) -> tuple[Row | Skipped, bool]:
        try:
            return ask(row)
        except AudioError as error:
            return Skipped(name_pair(row), "unusable_audio", str(error)), False
        except ChatError as error:
            return row if keep_failed else Skipped(name_pair(row), kind, str(error)), True

    found: Any
    for found in client.map(examine, rows, failures=(), description=description):
        outcome, is_asked = found
        if is_asked:
            limit.count(outcome.reason if isinstance(outcome, Skipped) and outcome.kind == kind else None)
        yield outcome
    limit.require_few()


def _judge(row: Row, client: ChatClient, settings: FilterSettings, prompts: PromptSet) -> Row | Skipped:
    name, content = name_pair(row), list[dict[str, Any]]()
    system, request = map(prompts.fill, PROMPTS)
    for version, side in SIDES.items():
        content.append({"type": "text", "text": f"Version {version}:"})
        content += make_spoken_turns(row[side], f"{name}, {side}")
    content.append({"type": "text", "text": request})
    verdict = client.ask_json(_make_messages(system, content), Verdict.model_validate)
    found = verdict.scores.model_dump()
    scores = {side: {name: found[key][version] for name, key in DIMENSIONS.items()} for version, side in SIDES.items()}
    judge, least = client.settings.model, settings.min_score
    counted = [(side, dimension) for side in settings.sides for dimension in settings.dimensions]
    if low := [f"{side} {name} {scores[side][name]}" for side, name in counted if scores[side][name] < least]:
        reason = f"{judge} gave {', '.join(low)}; at least {least} is needed. {verdict.reason}"
        return Skipped(name_pair(row), "low_quality", reason)
    return {**row, "quality": {**scores, "judge": judge, "prompt_version": prompts.compute_version(*PROMPTS)}}


def _ask_labels(row: Row, client: ChatClient, prompts: PromptSet) -> dict[str, str]:
    """Return both labels of a pair by the recording, its chosen side."""
    meanings, names = _MEANINGS[row["source"]], list_allowed_labels(row)
    listed = {f"{label}_labels": ", ".join(sorted(allowed)) for label, allowed in names.items()}
    system, request = prompts.fill("annotation", **meanings, **listed), prompts.fill("annotation_request")
    content = [*make_spoken_turns(row["chosen"], name_pair(row)), {"type": "text", "text": request}]

    def read_labels(answer: Any) -> dict[str, str]:
        """Return the labels of an answer as Table 5 spells them; raise `ValueError` for others."""
        if not isinstance(answer, dict):
            raise ValueError("the answer must be a JSON object with 'primary' and 'secondary'.")
        labels = {}
        for label, allowed in names.items():
            spelling = {name.casefold(): name for name in allowed}
            given = str(answer.get(label)).strip().casefold()
            if given not in spelling:
                raise ValueError(f"{label!r} is {answer.get(label)!r}; it must be one of {sorted(allowed)}.")
            labels[label] = spelling[given]
        return labels

    return client.ask_json(_make_messages(system, content), read_labels)


def _make_messages(system: str, content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": content}]


def make_spoken_turns(turns: Sequence[Mapping[str, Any]], name: str, *, with_words: bool = False) -> list[Row]:
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
