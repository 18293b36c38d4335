"""Training pairs without recordings: parts of the written dialogues of a split against the same parts, broken.

A dialogue of recordings gives one pair of a kind when the data are built. Its words give many: any stretch of it is a
dialogue, with an answer of any other in the place of its last one. The words alone take a fraction of the tokens, so
that what an answer has to fit is learned from them, and the recordings are left to teach what is heard. Sources of
written dialogues (`dataset_builder.sources.WRITTEN_SOURCES`) give more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sdiareward.chat_sdiareward import list_items, turns_to_messages
from sdiareward.dataset_builder.episodes import Episode, Part, Turn
from sdiareward.dataset_builder.pairing.families import KINDS, OTHER_TRANSCRIPT, Pool
from sdiareward.dataset_builder.sources import read_written
from sdiareward.pairs.labels import name_criterion
from sdiareward.pairs.schema import JOINT, make_stable_seed


# Kinds of pairs whose rejected side has other words, by name; the others break the sound.
WRITTEN_KINDS = {
    kind: change
    for family in ("context", "fluency")
    for kind, change in KINDS[family].items()
    # The transcript is exchanged beside a recording.
    if kind != OTHER_TRANSCRIPT
}
# Dialogues that the words of a rejected side are taken from, other than those of the same group.
_NUM_DISTRACTORS = 8
_LABELS = ("subset", "source", "primary", "secondary", "language", "license", "group_id")


def make_written_pairs(
    pairs: Sequence[Mapping[str, Any]], names: Sequence[str], kinds: Sequence[str], seed: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the row that a pair comes from, and the pair: its name, its criterion and its two sides.

    The criterion is drawn from `joint` and those of the pairs that have the dialogue: an answer has to fit under each.

    Args:
        pairs (`datasets.Dataset`): Pairs from `loading.load_pairs`; the chosen side of each is a dialogue. A dialogue
            that stands in several pairs is used once.
        names (`list[str]`): Name of each pair.
        kinds (`list[str]`): Kinds of [`WRITTEN_KINDS`]; each gives one pair of each dialogue that it applies to.
        seed (`int`): Chooses the stretch of a dialogue and what replaces its answers.
    """
    dialogues, criteria = _list_dialogues(pairs, names)
    yield from _break(dialogues, criteria, kinds, seed)


def make_pairs_of_sources(sources: Sequence[str], kinds: Sequence[str], seed: int) -> Iterator[dict[str, Any]]:
    """Yield pairs of `joint` from the dialogues of written sources, with the labels of a row.

    Args:
        sources (`list[str]`): `NAME`, or `NAME=PATH`, of [`WRITTEN_SOURCES`].
        kinds (`list[str]`): As in `make_written_pairs`.
        seed (`int`): As in `make_written_pairs`.

    Raises:
        FileNotFoundError: A source is missing; the message tells how to get it.
    """
    for source in sources:
        name, _, path = source.partition("=")
        read = dict(enumerate(item for item in read_written(name, path or None) if isinstance(item, Episode)))
        for number, pair in _break(read, dict.fromkeys(read, [JOINT]), kinds, seed):
            labels = {label: getattr(read[number], label) for label in _LABELS}
            yield {**labels, **pair, "pair_id": f"{name} {pair['pair_id']}"}


def _break(
    dialogues: Mapping[int, Episode], criteria: Mapping[int, list[str]], kinds: Sequence[str], seed: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    pools: dict[str, list[Episode]] = {}
    for episode in dialogues.values():
        pools.setdefault(episode.source, []).append(episode)
    for row, episode in dialogues.items():
        for number, kind in enumerate(kinds, start=1):
            rng = np.random.default_rng(make_stable_seed(seed, episode.name, kind, number))
            pool = _draw_distractors(episode, pools[episode.source], rng)
            chosen = _cut(episode, rng)
            rejected = WRITTEN_KINDS[kind](chosen, pool, rng)
            if rejected is not None:
                sides = {"chosen": _to_messages(chosen), "rejected": _to_messages(rejected)}
                criterion = criteria[row][rng.integers(len(criteria[row]))]
                yield row, {"pair_id": f"{episode.name}, {kind} {number}", "criterion": criterion, **sides}


def remove_recordings(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with their texts alone; a turn without one has an empty content."""
    return [{**message, "content": _join_texts(message)} for message in turns_to_messages(turns)]


def _join_texts(message: Mapping[str, Any]) -> str:
    return "".join(item["text"] for item in list_items(message) if item["type"] == "text")


def _list_dialogues(
    pairs: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> tuple[dict[int, Episode], dict[int, list[str]]]:
    """Return the dialogues with an exchange in which every turn has words, and their criteria, by their first row."""
    found: dict[tuple[tuple[str, str], ...], int] = {}
    dialogues: dict[int, Episode] = {}
    criteria: dict[int, list[str]] = {}
    for row, name in enumerate(names):
        pair = pairs[row]
        turns = tuple((message["role"], message["content"]) for message in remove_recordings(pair["chosen"]))
        # A pair may have the answer alone, which nothing can fit.
        if sum(role != "system" for role, _ in turns) < 2 or not all(words for _, words in turns):
            continue
        first = found.setdefault(turns, row)
        if first == row:
            dialogues[row], criteria[row] = _make_episode(name, pair, turns), [JOINT]
        criteria[first] = sorted({*criteria[first], name_criterion(pair.get("criterion"))})
    return dialogues, criteria


def _make_episode(name: str, row: Mapping[str, Any], turns: Sequence[tuple[str, str]]) -> Episode:
    labels: dict[str, Any] = {label: "" if row.get(label) is None else str(row[label]) for label in _LABELS}
    group = labels.pop("group_id") or name
    spoken = tuple(Turn(role, (Part(words),)) for role, words in turns if role != "system")
    return Episode(name, group=group, turns=spoken, **labels)


def _draw_distractors(episode: Episode, pool: Sequence[Episode], rng: np.random.Generator) -> Pool:
    """Return some dialogues of the group and some of others, so that a dialogue is not always given the same words."""
    drawn = [pool[index] for index in rng.permutation(len(pool)).tolist()]
    near = [other for other in drawn if other.group == episode.group]
    far = [other for other in drawn if other.group != episode.group]
    return Pool([*near[: _NUM_DISTRACTORS // 2], *far[:_NUM_DISTRACTORS]])


def _cut(episode: Episode, rng: np.random.Generator) -> Episode:
    """Return a stretch of whole exchanges."""
    num_exchanges = len(episode.turns) // 2
    # Two draws of a length: the longer one, for an answer that has something to fit.
    length = int(rng.integers(1, num_exchanges + 1, size=2).max())
    start = int(rng.integers(num_exchanges - length + 1))
    return replace(episode, turns=episode.turns[2 * start : 2 * (start + length)])


def _to_messages(episode: Episode) -> list[dict[str, Any]]:
    return [{"role": turn.role, "content": turn.text} for turn in episode.turns]
