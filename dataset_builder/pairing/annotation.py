"""Label dialogues by Table 5 if their source has no labels: an annotating judge listens (appendix B.1).

The paper's judge annotates the recordings from YouTube, "establishing emotion as the primary category and specific
paralinguistic features (e.g., laughter, filled pauses) as the secondary dimension". Labels of MELD and DailyTalk are
trusted: only a missing label is asked for. All pairs of one recording cost one question: the client keeps answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sdiareward.audio_sdiareward import AudioError
from sdiareward.common.llm import ChatClient, ChatError
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import TAXONOMY, list_allowed_labels

from .filtering import Row, ask_judge, make_spoken_turns, name_pair


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


def annotate_rows(
    rows: Iterable[Row], client: ChatClient, prompts: PromptSet | None = None, *, max_failed: float = 0.1
) -> Iterator[Row | Skipped]:
    """Yield, in order, each pair with labels of Table 5, or why it has none; a source outside `TAXONOMY` passes."""
    texts = prompts or PromptSet()

    def annotate(row: Row) -> tuple[Row | Skipped, bool]:
        missing = [label for label, names in list_allowed_labels(row).items() if row[label] not in names]
        if not missing:
            return row, False
        try:
            given = _ask_labels(row, client, texts)
        except AudioError as error:
            return Skipped(name_pair(row), "unusable_audio", str(error)), False
        except ChatError as error:
            return Skipped(name_pair(row), "annotation_failed", str(error)), True
        return {**row, **{label: given[label] for label in missing}}, True

    yield from ask_judge(rows, client, annotate, "annotating", "the judge failed to label {} pairs", max_failed)


def _ask_labels(row: Row, client: ChatClient, prompts: PromptSet) -> dict[str, str]:
    """Return both labels of a pair by the recording, its chosen side."""
    source = row["source"]
    words = dict(zip(_LABELS, _DIMENSIONS[source], strict=True))
    allowed = {f"{name}_labels": ", ".join(sorted(TAXONOMY[source][i])) for i, name in enumerate(_LABELS)}
    request = {"type": "text", "text": prompts.fill("annotation_request")}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": prompts.fill("annotation", **words, **allowed)},
        {"role": "user", "content": [*make_spoken_turns(row["chosen"], name_pair(row)), request]},
    ]

    def read_labels(answer: Any) -> dict[str, str]:
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

    return client.ask_json(messages, read_labels)
