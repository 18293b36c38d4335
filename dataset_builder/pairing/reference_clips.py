"""Choose the recordings that a voice is cloned from: the greedy heuristic of appendix B.1.

The paper: "a greedy heuristic for reference audio selection to capture rich acoustic features, prioritizing clips with
a duration between 5 and 30 seconds and a word count under 60. Dialogue groups lacking viable prompts are pruned."
Our reading, for each role of a dialogue:

1. A turn of 5 to 30 s (both included) with fewer than 60 words is a clip. The longest has most of the voice and is
   taken; of equally long turns the first.
2. If no turn qualifies, the role's turns are joined from the first on until they last 5 s. A turn that would take the
   clip over 30 s or to 60 words begins a new one.
3. Otherwise the dialogue is pruned (`NoReference`), even if its other role has a clip.

As in the paper, the clip is from the dialogue that is synthesised: its words are among those to be spoken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


MIN_S, MAX_S = 5.0, 30.0
# A reference has fewer.
MAX_WORDS = 60


class NoReference(ValueError):  # noqa: N818 - it names what is missing
    """Raised for a dialogue in which some role has no usable reference; it is pruned."""


@dataclass(frozen=True)
class Clip:
    role: str
    text: str
    duration_s: float

    @property
    def num_words(self) -> int:
        return len(self.text.split())


def choose_references(turns: Sequence[Clip]) -> dict[str, tuple[int, ...]]:
    """Return by role the positions of the turns that are joined to its reference."""
    chosen = {}
    for role in dict.fromkeys(turn.role for turn in turns):
        own = [position for position, turn in enumerate(turns) if turn.role == role]
        reference = _find_longest_turn(turns, own) or _join_turns(turns, own)
        if not reference:
            found = ", ".join(f"{turns[i].duration_s:.1f} s with {turns[i].num_words} words" for i in own)
            raise NoReference(
                f"no reference for {role!r}: its turns last {found}; a voice is cloned from {MIN_S:g} to {MAX_S:g} s "
                f"with fewer than {MAX_WORDS} words."
            )
        chosen[role] = reference
    return chosen


def _find_longest_turn(turns: Sequence[Clip], own: Sequence[int]) -> tuple[int, ...]:
    usable = [i for i in own if turns[i].duration_s >= MIN_S and _fits([turns[i]])]
    # `max` keeps the first of equals.
    return (max(usable, key=lambda position: turns[position].duration_s),) if usable else ()


def _join_turns(turns: Sequence[Clip], own: Sequence[int]) -> tuple[int, ...]:
    run: list[int] = []
    for position in own:
        if not _fits([turns[position]]):
            run = []
            continue
        if not _fits([turns[other] for other in (*run, position)]):
            run = []
        run.append(position)
        if sum(turns[other].duration_s for other in run) >= MIN_S:
            return tuple(run)
    return ()


def _fits(clips: Sequence[Clip]) -> bool:
    """Check the upper limits only: the clips may still be too short."""
    return sum(clip.duration_s for clip in clips) <= MAX_S and sum(clip.num_words for clip in clips) < MAX_WORDS
