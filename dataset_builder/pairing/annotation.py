"""Label dialogues by Table 5 where their source does not say: an annotating judge listens (appendix B.1).

The paper has its judge annotate the recordings from YouTube, "establishing emotion as the primary category and
specific paralinguistic features (e.g., laughter, filled pauses) as the secondary dimension". MELD and DailyTalk come
with their labels, which are trusted: a label that Table 5 allows is never changed, only one that is missing is asked
for.

Episodes are labelled before pairs are made of them (`annotate_episodes`), so that a recording costs one question
however many synthesizers it is paired with; `annotate_rows` labels pairs that are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import AudioError
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, ScriptPair
from sdiareward.llm.client import ChatClient, ChatError
from sdiareward.pairs.schema import TAXONOMY

from .. import prompts
from .filtering import Row, spoken_turns
from .pairing import read_part


PROMPT_VERSION = prompts.prompt_version(prompts.ANNOTATE, prompts.ANNOTATE_REQUEST)
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
Turns = Sequence[Mapping[str, Any]]


def label_dialogue(source: str, turns: Turns, client: ChatClient, name: str) -> dict[str, str]:
    """Return the labels that the annotating judge gives a dialogue.

    Args:
        source (`str`): A source of `TAXONOMY`; decides which labels there are.
        turns (`Sequence[Mapping]`): Turns with `role` and `audio`, in any form that `read_audio` takes.
        client (`ChatClient`): Asks a model that takes audio.
        name (`str`): What to call the dialogue in an error.

    Returns:
        `dict`: `primary` and `secondary`, as Table 5 spells them.

    Raises:
        AudioError: A turn cannot be decoded.
        ChatError: The judge gave no usable answer.
        EndpointError: The judge cannot be reached at all.
    """
    words = dict(zip(_LABELS, _DIMENSIONS[source], strict=True))
    allowed = {f"{name}_labels": ", ".join(sorted(TAXONOMY[source][i])) for i, name in enumerate(_LABELS)}
    content = [*spoken_turns(turns, name), {"type": "text", "text": prompts.ANNOTATE_REQUEST}]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": prompts.ANNOTATE.substitute(words | allowed)},
        {"role": "user", "content": content},
    ]
    return client.ask_json(messages, partial(_read_labels, source=source))


def annotate_rows(rows: Iterable[Row], client: ChatClient) -> Iterator[Row | Skipped]:
    """Yield, in order, each pair with labels of Table 5, or why it has none (`annotation_failed`).

    A pair of a source outside `TAXONOMY`, or with labels that Table 5 allows, passes as it is. The chosen side is
    heard: that is the recording.

    Args:
        rows (`Iterable[dict]`): Pairs with their audio encoded.
        client (`ChatClient`): Asks a model that takes audio.

    Raises:
        EndpointError: The judge cannot be reached at all.
    """
    return _map(partial(_annotate_row, client=client), rows, client)


def annotate_episodes(
    episodes: Iterable[Episode | ScriptPair], client: ChatClient
) -> Iterator[Episode | ScriptPair | Skipped]:
    """Yield, in order, each episode with labels of Table 5, or why it has none; see `annotate_rows`.

    Args:
        episodes (`Iterable[Episode | ScriptPair]`): As the sources give them; scripts pass as they are.
        client (`ChatClient`): Asks a model that takes audio.

    Raises:
        EndpointError: The judge cannot be reached at all.
    """
    return _map(partial(_annotate_episode, client=client), episodes, client)


def _map(annotate: Any, items: Iterable[Any], client: ChatClient) -> Iterator[Any]:
    yield from client.map(annotate, items, failures=(), description="annotating")


def _annotate_row(row: Row, *, client: ChatClient) -> Row | Skipped:
    name = f"{row['source']} pair {row['pair_id']}"
    labels = _complete_labels(row["source"], row["primary"], row["secondary"], lambda: row["chosen"], client, name)
    return labels if isinstance(labels, Skipped) else {**row, **labels}


def _annotate_episode(item: Episode | ScriptPair, *, client: ChatClient) -> Episode | ScriptPair | Skipped:
    if isinstance(item, ScriptPair):
        return item
    name = f"{item.source} {item.name}"
    turns = partial(_read_turns, item, name)
    labels = _complete_labels(item.source, item.primary, item.secondary, turns, client, name)
    if isinstance(labels, Skipped):
        return labels
    return replace(item, primary=labels["primary"], secondary=labels["secondary"])


def _complete_labels(
    source: str, primary: str, secondary: str, turns: Callable[[], Turns], client: ChatClient, name: str
) -> dict[str, str] | Skipped:
    """Return both labels, those that Table 5 does not allow replaced by the judge's; or why there are none."""
    known = {"primary": primary, "secondary": secondary}
    allowed = zip(_LABELS, TAXONOMY.get(source, ()), strict=False)
    missing = [label for label, names in allowed if known[label] not in names]
    if not missing:
        return known
    try:
        given = label_dialogue(source, turns(), client, name)
    except FileNotFoundError as error:
        return Skipped(name, "missing_audio", str(error))
    except AudioError as error:
        return Skipped(name, "unusable_audio", str(error))
    except ChatError as error:
        return Skipped(name, "annotation_failed", str(error))
    return known | {label: given[label] for label in missing}


def _read_turns(episode: Episode, name: str) -> list[dict[str, Any]]:
    """Read the recordings of an episode, the parts of a turn one after another."""
    turns = []
    for position, turn in enumerate(episode.turns):
        parts = [read_part(part, f"{name}, turn {position}") for part in turn.parts]
        turns.append({"role": turn.role, "audio": np.concatenate(parts)})
    return turns


def _read_labels(answer: Any, *, source: str) -> dict[str, str]:
    """Check an annotator's answer; spelling is Table 5's whatever the case of the answer."""
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
