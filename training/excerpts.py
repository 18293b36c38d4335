"""Parts of dialogues to learn from: whole exchanges in which the two sides of a pair differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def draw_excerpt(chosen: Sequence[Any], rejected: Sequence[Any], rng: np.random.Generator) -> list[int] | None:
    """Return the numbers of the turns of some consecutive exchanges, and of the system prompt if there is one.

    At least one exchange is left out. None where the sides have one exchange or differ in their roles, and where the
    sides are the same in the exchanges that were drawn.

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
    length = int(rng.integers(1, num_exchanges))
    start = first + 2 * int(rng.integers(num_exchanges - length + 1))
    kept = [*range(first), *range(start, start + 2 * length)]
    return kept if any(chosen[number] != rejected[number] for number in kept) else None


def _read_role(turn: Any) -> str:
    return str(turn["role"] if isinstance(turn, Mapping) else turn.role)
