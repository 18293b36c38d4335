"""Filter pairs by rules (`check_rules`), then by a judge that listens (appendix B.1) and can add missing labels.

An audio language model compares the recording (version A) with its synthetic counterpart (version B) "within an
identical multi-turn context, focusing specifically on the quality of the final turn". We read this as two whole
dialogues with the same words, each in its own voices; the judge does not know their origin. "Samples are preserved
only if they achieve scores >= 3 in both `final_turn_content` and `dialog_context_coherence`": a sample is a pair, so
by default both sides must reach 3. Naturalness does not count, because the pairs are meant to teach it.

The paper's judge also annotates the recordings from YouTube, "establishing emotion as the primary category and
specific paralinguistic features (e.g., laughter, filled pauses) as the secondary dimension". Labels of MELD and
DailyTalk are trusted; the judge adds only missing labels. All pairs of a recording share one question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic.dataclasses
from pydantic import BaseModel, BeforeValidator, Field

from sdiareward.audio_sdiareward import AudioError
from sdiareward.common.errors import Skipped
from sdiareward.common.files import require_other_folder
from sdiareward.common.llm import ChatClient, ChatError, ChatSettings, FailureLimit
from sdiareward.pairs.messages import make_audio_content
from sdiareward.pairs.prompts import PromptSet, read_prompt_file
from sdiareward.pairs.schema import list_allowed_labels, validate_row

from ..reports.data_card import read_report, summarise_skipped, write_report
from ..shards import count_pairs, read_rows, write_rows


DIMENSIONS = {
    "content": "final_turn_content",
    "naturalness": "final_turn_naturalness_prosody",
    "coherence": "dialog_context_coherence",
}
SIDES = {"A": "chosen", "B": "rejected"}
# The system prompt, and the request that follows both versions or the recording.
PROMPTS = ("filter", "filter_request")
ANNOTATION_PROMPTS = ("annotation", "annotation_request")
_EMOTION = "the emotion that carries the conversation"
_SOUND = (
    "the sound beside the words that is most noticeable. 'Filled Pauses' are sounds like um and uh, "
    "'Listener Feedback' is a listener's mhm or yeah, 'No Feature' means that there is nothing of the kind"
)
# The meaning of the primary and secondary dimension of each source (Table 5).
_MEANINGS = {
    "youtube": {"primary": _EMOTION, "secondary": _SOUND},
    "meld": {"primary": "the sentiment of the conversation", "secondary": _EMOTION},
    "dailytalk": {"primary": "what the speakers do with what they say", "secondary": _EMOTION},
}
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
    # A larger share of failures stops the filter; a refused parameter fails on every pair.
    max_failed: Annotated[float, Field(ge=0, le=1)] = 0.1


@dataclass(kw_only=True)
class FilterConfig:
    folder: str
    output_dir: str
    judge: ChatSettings | None = None  # Without a judge only the rules apply.
    filter: FilterSettings = dataclasses.field(default_factory=FilterSettings)
    annotate: bool = False  # Let the judge add labels of Table 5 that the source lacks.
    prompt_file: str | None = None  # Replaces judge prompts of configs/prompts.yaml.
    cache_dir: str | None = None  # For the judge's answers; OUTPUT_DIR-answers by default.

    def __post_init__(self) -> None:
        require_other_folder(self.folder, self.output_dir)
        if self.annotate and self.judge is None:
            raise ValueError("annotate needs a judge; set its endpoint and model under judge.")


def filter_folder(config: FilterConfig, *, is_dry: bool = False) -> dict[str, Any]:
    """Write the kept pairs and return the report; a dry run only counts pairs kept by the rules."""
    client = None
    if config.judge and not is_dry:
        client = ChatClient(config.judge, config.cache_dir or f"{config.output_dir.rstrip('/')}-answers")
    prompts, skipped, used = read_prompt_file(config.prompt_file), list[Skipped](), {"filter": PROMPTS}
    read = ({**row, "split": split} for split, row in read_rows(Path(config.folder)))
    rows: Iterable[Row | Skipped] = filter_rows(read, client, config.filter, prompts)
    if client and config.annotate:
        rows = annotate_rows(rows, client, prompts, max_failed=config.filter.max_failed)
        used["annotation"] = ANNOTATION_PROMPTS

    def keep() -> Iterator[tuple[str, Row]]:
        for row in rows:
            if isinstance(row, Skipped):
                skipped.append(row)
            else:
                yield row["split"], row

    if is_dry:
        return {"pairs": count_pairs(keep()), **summarise_skipped(skipped)}
    counts = write_rows(Path(config.output_dir), keep())
    before = read_report(Path(config.folder))
    versions = {name: prompts.compute_version(*names) for name, names in used.items()} if client else None
    judge = {"judge": client.settings.model if client else None, "prompt_versions": versions}
    written = {**before.get("config", {}), "filter": {**asdict(config.filter), **judge}}
    more = {"filtered_from": before.get("build_id"), **({"judge_usage": client.usage} if client else {})}
    more |= {"joined": before["joined"]} if "joined" in before else {}
    return write_report(Path(config.output_dir), counts, skipped, written, **more)


def check_rules(row: Mapping[str, Any]) -> Skipped | None:
    """Return why phase 1 skips a pair (`invalid_row` unless a rule on turns explains it); None if it is kept."""
    try:
        validate_row(row)
    except ValueError as error:
        return Skipped(name_pair(row), getattr(error, "rule", "invalid_row"), str(error))
    return None


def filter_rows(
    rows: Iterable[Row],
    client: ChatClient | None,
    settings: FilterSettings | None = None,
    prompts: PromptSet | None = None,
) -> Iterator[Row | Skipped]:
    """Yield, in order, each kept pair with its `quality`, or why it is dropped; memory holds a few rows at a time.

    The client caches the judge's answers: an interrupted or changed run asks no question twice.
    """
    rules, texts = settings or FilterSettings(), prompts or PromptSet()
    checked = (check_rules(row) or row for row in rows)
    if client is None:
        return checked

    def ask(row: Row) -> Row | Skipped:
        return _judge(row, client, rules, texts) if row["criterion"] == "modality" else row

    limit = FailureLimit(rules.max_failed, "the judge failed on {} pairs", "filter.max_failed")
    return _ask_judge(checked, client, ask, limit, "judge_failed", "judging")


def annotate_rows(
    rows: Iterable[Row | Skipped], client: ChatClient, prompts: PromptSet | None = None, *, max_failed: float = 0.1
) -> Iterator[Row | Skipped]:
    """Yield, in order, each pair with labels of Table 5, or why it has none; sources outside `TAXONOMY` pass."""
    texts = prompts or PromptSet()

    def ask(row: Row) -> Row | Skipped:
        missing = [label for label, names in list_allowed_labels(row).items() if row[label] not in names]
        return {**row, **_ask_labels(row, missing, client, texts)} if missing else row

    limit = FailureLimit(max_failed, "the judge failed to label {} pairs", "filter.max_failed")
    return _ask_judge(rows, client, ask, limit, "annotation_failed", "annotating")


def _ask_judge(
    rows: Iterable[Row | Skipped],
    client: ChatClient,
    ask: Callable[[Row], Row | Skipped],
    limit: FailureLimit,
    kind: str,
    description: str,
) -> Iterator[Row | Skipped]:
    """Yield the results of `ask` in order, or the row if there is nothing to ask; failures have this `kind`."""

    def examine(row: Row | Skipped) -> tuple[Row | Skipped, bool]:
        """Also return whether the judge was asked."""
        if isinstance(row, Skipped):
            return row, False
        try:
            return (asked := ask(row)), asked is not row
        except AudioError as error:
            return Skipped(name_pair(row), "unusable_audio", str(error)), False
        except ChatError as error:
            return Skipped(name_pair(row), kind, str(error)), True

    for outcome, is_asked in client.map(examine, rows, description):
        if is_asked:
            limit.count(outcome.reason if isinstance(outcome, Skipped) and outcome.kind == kind else None)
        yield outcome
    limit.require_few()


def _judge(row: Row, client: ChatClient, settings: FilterSettings, prompts: PromptSet) -> Row | Skipped:
    name, content = name_pair(row), list[dict[str, Any]]()
    for version, side in SIDES.items():
        content.append({"type": "text", "text": f"Version {version}:"})
        content += make_spoken_turns(row[side], f"{name}, {side}")
    system, request = map(prompts.fill, PROMPTS)
    verdict = client.ask_json(_make_messages(system, content, request), Verdict.model_validate)
    found = verdict.scores.model_dump()
    scores = {side: {name: found[key][version] for name, key in DIMENSIONS.items()} for version, side in SIDES.items()}
    judge, least = client.settings.model, settings.min_score
    counted = [(side, dimension) for side in settings.sides for dimension in settings.dimensions]
    if low := [f"{side} {name} {scores[side][name]}" for side, name in counted if scores[side][name] < least]:
        return Skipped(name, "low_quality", f"{judge} gave {', '.join(low)}; the minimum is {least}. {verdict.reason}")
    return {**row, "quality": {**scores, "judge": judge, "prompt_version": prompts.compute_version(*PROMPTS)}}


def _ask_labels(row: Row, missing: Sequence[str], client: ChatClient, prompts: PromptSet) -> dict[str, str]:
    """Ask for the missing labels of a pair by its recording, the chosen side."""
    meanings, names = _MEANINGS[row["source"]], list_allowed_labels(row)
    listed = {f"{label}_labels": ", ".join(sorted(allowed)) for label, allowed in names.items()}
    system, request = prompts.fill("annotation", **meanings, **listed), prompts.fill("annotation_request")
    content = make_spoken_turns(row["chosen"], name_pair(row))

    def read_labels(answer: Any) -> dict[str, str]:
        """Return the labels of an answer, spelled as in Table 5; raise `ValueError` for others."""
        if not isinstance(answer, dict):
            raise ValueError("the answer must be a JSON object with 'primary' and 'secondary'.")
        labels = {}
        for label, allowed in names.items():
            given = str(answer.get(label)).strip().casefold()
            if not (found := [name for name in allowed if name.casefold() == given]):
                raise ValueError(f"{label!r} is {answer.get(label)!r}; it must be one of {sorted(allowed)}.")
            labels[label] = found[0]
        return labels

    given = client.ask_json(_make_messages(system, content, request), read_labels)
    return {label: given[label] for label in missing}


def _make_messages(system: str, content: list[dict[str, Any]], request: str) -> list[dict[str, Any]]:
    asked = [*content, {"type": "text", "text": request}]
    return [{"role": "system", "content": system}, {"role": "user", "content": asked}]


def make_spoken_turns(turns: Sequence[Mapping[str, Any]], name: str, *, with_words: bool = False) -> list[Row]:
    """Return turns as message parts: role, then recording. Words are omitted so that the judge must listen."""
    parts: list[dict[str, Any]] = []
    for position, turn in enumerate(turns):
        label = "last turn" if position == len(turns) - 1 else f"turn {position + 1}"
        words = f" {turn['text']}" if with_words else ""
        parts.append({"type": "text", "text": f"{label}, {turn['role']}:{words}"})
        parts.append(make_audio_content(turn["audio"], name=f"{name} turn {position}"))
    return parts


def name_pair(row: Mapping[str, Any]) -> str:
    return f"{row.get('source')} pair {row.get('pair_id')}"
