"""Cut dialogues that come as single utterances into episodes (section B.1, for sources with their own metadata).

Consecutive utterances of one speaker are one turn with several parts. An episode is the longest stretch of two
alternating speakers: it ends before a third speaker, at a missing utterance (its neighbours do not answer each other),
and after 16 turns. If the number of turns is odd, the last one begins the next stretch, or is skipped if none follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from sdiareward.chat_sdiareward import MAX_TURNS, ROLES
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Part, Turn
from sdiareward.pairs.schema import UNKNOWN


class Utterance(NamedTuple):
    """A line of a dialogue; a jump in `number` marks a missing utterance."""

    number: int
    speaker: str
    part: Part
    primary: str = UNKNOWN
    secondary: str = UNKNOWN


class Stretch(NamedTuple):
    """The turns of an episode, with the number of its first utterance and the labels of its last.

    The last utterance decides because it ends the turn that the paper judges (section B.1, phase 2).
    """

    first: int
    turns: tuple[Turn, ...]
    primary: str
    secondary: str


def cut_dialogue(utterances: Sequence[Utterance], item: str) -> Iterator[Stretch | Skipped]:
    """Yield the episodes of a dialogue, and a `Skipped` for every turn without an episode."""
    for run in _split_unbroken(utterances):
        turns = [list(members) for _, members in groupby(run, key=lambda utterance: utterance.speaker)]
        start = 0
        while start < len(turns):
            length = _num_alternating(turns[start:])
            if length:
                yield _make_stretch(turns[start : start + length])
            else:
                first = turns[start][0]
                reason = f"{first.part.text!r} has no neighbour left to make an exchange with."
                yield Skipped(f"{item} utterance {first.number}", "no_answer", reason)
            start += max(length, 1)


def _split_unbroken(utterances: Sequence[Utterance]) -> Iterator[list[Utterance]]:
    """Split where the numbering jumps."""
    # Along an unbroken run, number and position grow together.
    for _, run in groupby(enumerate(utterances), key=lambda pair: pair[1].number - pair[0]):
        yield [utterance for _, utterance in run]


def _num_alternating(turns: Sequence[Sequence[Utterance]]) -> int:
    """Count the leading turns of the first two speakers: even, at most 16, 0 for a single turn."""
    pair = {turn[0].speaker for turn in turns[:2]}
    length = next((n for n, turn in enumerate(turns) if turn[0].speaker not in pair), len(turns))
    return min(length - length % 2, MAX_TURNS)


def _make_stretch(turns: Sequence[Sequence[Utterance]]) -> Stretch:
    last = turns[-1][-1]
    return Stretch(
        first=turns[0][0].number,
        turns=tuple(
            Turn(ROLES[position % 2], tuple(utterance.part for utterance in turn))
            for position, turn in enumerate(turns)
        ),
        primary=last.primary,
        secondary=last.secondary,
    )
