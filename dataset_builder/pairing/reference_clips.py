"""Choose the recordings that a voice is cloned from: the greedy heuristic of appendix B.1.

The paper says: "a greedy heuristic for reference audio selection to capture rich acoustic features, prioritizing clips
with a duration between 5 and 30 seconds and a word count under 60. Dialogue groups lacking viable prompts are pruned."
How we read it, for each role of a dialogue:

1. A turn of 5 to 30 s (both included) with fewer than 60 words is a clip. The longest is taken, for it carries most of
   the voice; of equally long ones the first.
2. Where no single turn will do, the role's turns are joined in their order, from the first on, until they last 5 s. A
   turn that would take the clip over 30 s or to 60 words begins a new one.
3. Where that fails too, the dialogue is pruned (`NoReference`), even if its other role has a clip.

The clip comes from the dialogue that is then spoken anew, as in the paper: its words are among those to be spoken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class NoReference(ValueError):  # noqa: N818 - it names what is missing
    """Raised for a dialogue in which some role has no usable reference; it is pruned."""


@dataclass(frozen=True)
class Clip:
    """What the heuristic looks at in a turn.

    Args:
        role (`str`): Who speaks.
        text (`str`): The words, separated by white space.
        duration_s (`float`): How long the recording lasts, in seconds.
    """

    role: str
    text: str
    duration_s: float

    @property
    def num_words(self) -> int:
        """Number of words."""
        return len(self.text.split())


@dataclass(frozen=True)
class ReferenceSettings:
    """Limits of a reference (appendix B.1).

    Args:
        min_s (`float`, *optional*, defaults to 5.0): Shortest reference, in seconds, itself allowed.
        max_s (`float`, *optional*, defaults to 30.0): Longest, itself allowed; pauses that a caller puts between
            joined turns are not counted.
        max_words (`int`, *optional*, defaults to 60): A reference has fewer words than this.

    Raises:
        ValueError: No clip could be within the limits.
    """

    min_s: float = 5.0
    max_s: float = 30.0
    max_words: int = 60

    def __post_init__(self) -> None:
        if not 0 <= self.min_s <= self.max_s:
            raise ValueError(f"references from {self.min_s} to {self.max_s} s: need 0 <= min_s <= max_s.")
        if self.max_words < 2:
            raise ValueError(f"references of fewer than {self.max_words} words: max_words must be at least 2.")

    def fits(self, duration_s: float, num_words: int) -> bool:
        """Tell whether a clip is within the upper limits; it may still be too short."""
        return duration_s <= self.max_s and num_words < self.max_words


def choose_references(turns: Sequence[Clip], settings: ReferenceSettings | None = None) -> dict[str, tuple[int, ...]]:
    """Choose the reference of each role of a dialogue; see the module for the rules.

    Args:
        turns (`Sequence[Clip]`): The turns of the dialogue, in order.
        settings (`ReferenceSettings`, *optional*): Limits; defaults to the paper's.

    Returns:
        `dict[str, tuple[int, ...]]`: By role, in the order in which they first speak: the positions of the turns
        whose recordings, one after another, are the reference.

    Raises:
        NoReference: A role has none; the message says what it has.

    Example:
        >>> turns = [Clip("user", "so, um, hello", 6.0), Clip("assistant", "hi", 3.0), Clip("assistant", "yes", 2.5)]
        >>> choose_references(turns)
        {'user': (0,), 'assistant': (1, 2)}
    """
    settings = settings or ReferenceSettings()
    chosen = {}
    for role in dict.fromkeys(turn.role for turn in turns):
        own = [position for position, turn in enumerate(turns) if turn.role == role]
        reference = _longest_turn(turns, own, settings) or _joined_turns(turns, own, settings)
        if not reference:
            raise NoReference(_describe(role, [turns[position] for position in own], settings))
        chosen[role] = reference
    return chosen


def _longest_turn(turns: Sequence[Clip], own: Sequence[int], settings: ReferenceSettings) -> tuple[int, ...]:
    """Return the longest single turn within the limits, or nothing."""
    usable = [
        position
        for position in own
        if turns[position].duration_s >= settings.min_s
        and settings.fits(turns[position].duration_s, turns[position].num_words)
    ]
    # `max` keeps the first of equals.
    return (max(usable, key=lambda position: turns[position].duration_s),) if usable else ()


def _joined_turns(turns: Sequence[Clip], own: Sequence[int], settings: ReferenceSettings) -> tuple[int, ...]:
    """Return the first turns that together reach the shortest duration within the limits, or nothing."""
    run: list[int] = []
    for position in own:
        turn = turns[position]
        if not settings.fits(turn.duration_s, turn.num_words):
            run = []
            continue
        joined = [turns[other] for other in (*run, position)]
        if not settings.fits(sum(t.duration_s for t in joined), sum(t.num_words for t in joined)):
            run = []
        run.append(position)
        if sum(turns[other].duration_s for other in run) >= settings.min_s:
            return tuple(run)
    return ()


def _describe(role: str, clips: Sequence[Clip], settings: ReferenceSettings) -> str:
    found = ", ".join(f"{clip.duration_s:.1f} s with {clip.num_words} words" for clip in clips)
    return (
        f"no reference for {role!r}: its turns last {found}; a voice is cloned from {settings.min_s:g} to "
        f"{settings.max_s:g} s with fewer than {settings.max_words} words."
    )
