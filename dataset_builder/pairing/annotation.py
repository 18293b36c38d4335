"""Label dialogues by Table 5 if their source has no labels: an annotating judge listens (appendix B.1).

The paper's judge annotates the recordings from YouTube, "establishing emotion as the primary category and specific
paralinguistic features (e.g., laughter, filled pauses) as the secondary dimension". Labels of MELD and DailyTalk are
trusted: only a missing label is asked for. All pairs of one recording cost one question: the client keeps answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sdiareward.audio_sdiareward import AudioError
from sdiareward.common.llm import ChatClient, ChatError, FailureLimit
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import TAXONOMY, list_allowed_labels

from .filtering import Row, make_spoken_turns


PROMPTS = ("annotation", "annotation_request")
# What the primary and the secondary dimension of each source are (Table 5).
_DIMENSIONS = {
    "youtube": (
        "the emotion that carries the conversation",
        "the sound beside the words that is most noticeable. 'Filled Pauses' are sounds like um and uh, 'Listener "
        "Feedback' is a listener's mhm or yeah, 'No Feature' means that there is nothing of the kind",
    ),
    "meld": ("the sentiment of the conversation", "the emotion that carries the conversation"),
    "dailytalk": ("what the speakers do with what they say", "the emotion that carries the conversation"),
}
_LABELS = ("primary", "secondary")
_FAILED = "annotation_failed"
Turns = Sequence[Mapping[str, Any]]


def label_dialogue(
    source: str, turns: Turns, client: ChatClient, name: str, prompts: PromptSet | None = None
) -> dict[str, str]:
    prompts = prompts or PromptSet()
    words = dict(zip(_LABELS, _DIMENSIONS[source], strict=True))
    allowed = {f"{name}_labels": ", ".join(sorted(TAXONOMY[source][i])) for i, name in enumerate(_LABELS)}
    content = [*make_spoken_turns(turns, name), {"type": "text", "text": prompts.fill("annotation_request")}]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": prompts.fill("annotation", **words, **allowed)},
        {"role": "user", "content": content},
    ]
    return client.ask_json(messages, partial(_read_labels, source=source))


def annotate_rows(
    rows: Iterable[Row], client: ChatClient, prompts: PromptSet | None = None, *, max_failed: float = 0.1
) -> Iterator[Row | Skipped]:
    """Yield, in order, each pair with labels of Table 5, or why it has none; a source outside `TAXONOMY` passes."""
    annotate = partial(_annotate_row, client=client, prompts=prompts or PromptSet())
    limit = FailureLimit(max_failed, "the judge failed to label {} pairs", "filter.max_failed")
    for result in client.map(annotate, rows, failures=(), description="annotating"):
        # `failures` is empty: an exception would have been raised.
        assert not isinstance(result, Exception)
        row, is_asked = result
        if is_asked:
            limit.count(row.reason if isinstance(row, Skipped) and row.kind == _FAILED else None)
        yield row
    limit.require_few()


def _annotate_row(row: Row, *, client: ChatClient, prompts: PromptSet) -> tuple[Row | Skipped, bool]:
    """Return the pair with both labels, and whether the judge was asked; it hears the recording, the chosen side."""
    missing = [label for label, names in list_allowed_labels(row).items() if row[label] not in names]
    if not missing:
        return row, False
    name = f"{row['source']} pair {row['pair_id']}"
    try:
        given = label_dialogue(row["source"], row["chosen"], client, name, prompts)
    except AudioError as error:
        return Skipped(name, "unusable_audio", str(error)), False
    except ChatError as error:
        return Skipped(name, _FAILED, str(error)), True
    return {**row, **{label: given[label] for label in missing}}, True


def _read_labels(answer: Any, *, source: str) -> dict[str, str]:
    """Return the labels of an answer as Table 5 spells them; raise `ValueError` for others."""
    if not isinstance(answer, dict):
        raise ValueError("the answer must be a JSON object with 'primary' and 'secondary'.")
    labels = {}
    for label, names in zip(_LABELS, TAXONOMY[source], strict=True):
        spelling = {name.casefold(): name for name in names}
        given = str(answer.get(label)).strip().casefold()
        if given not in spelling:
            raise ValueError(f"{label!r} is {answer.get(label)!r}; it must be one of {sorted(names)}.")
        labels[label] = spelling[given]
    return labels
