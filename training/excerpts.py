"""Parts of dialogues to learn from: whole exchanges in which the two sides of a pair differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def draw_excerpt(chosen: Sequence[Any], rejected: Sequence[Any], rng: np.random.Generator) -> list[int] | None:
    """Return the numbers of the turns of some consecutive exchanges, and of the system prompt if there is one.

    At least one exchange is left out, and the sides differ in one that is kept. None where the sides have one
    exchange, differ in their roles, or are the same.

    What differs is told by the words and by what was recorded or spoken (`audio_ref`): of one recording the two sides
    have other bytes, since each has been through a channel of its own. Sides that differ in the sound alone differ
    wherever the bytes do.

    Args:
        chosen (`list`): Turns with a role, as mappings or objects; turns that are equal in both sides are the same.
        rejected (`list`): Turns of the other side.
        rng (`np.random.Generator`): Draws how many exchanges, and where they begin.
    """
    roles = [_read_role(turn) for turn in chosen]
    first = roles.count("system")
    num_exchanges = (len(roles) - first) // 2
    if num_exchanges < 2 or roles != [_read_role(turn) for turn in rejected]:
        return None
    differing = {(number - first) // 2 for number in _find_differing(chosen, rejected) if number >= first}
    if not differing:
        return None
    length = int(rng.integers(1, num_exchanges))
    starts = [
        start for start in range(num_exchanges - length + 1) if differing.intersection(range(start, start + length))
    ]
    start = first + 2 * starts[int(rng.integers(len(starts)))]
    return [*range(first), *range(start, start + 2 * length)]


def _find_differing(chosen: Sequence[Any], rejected: Sequence[Any]) -> list[int]:
    sides = list(zip(chosen, rejected, strict=True))
    told = [number for number, (one, other) in enumerate(sides) if _read_origin(one) != _read_origin(other)]
    return told or [number for number, (one, other) in enumerate(sides) if one != other]


def _read_origin(turn: Any) -> Any:
    """Return the words of a turn and what its sound was made of; the turn itself where that is not told."""
    references = turn.get("audio_ref") if isinstance(turn, Mapping) else None
    if not references or not all(reference.get("uri") for reference in references):
        return turn
    return turn.get("text"), references


def _read_role(turn: Any) -> str:
    return str(turn["role"] if isinstance(turn, Mapping) else turn.role)
