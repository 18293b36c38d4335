"""Present pairs to a model in several ways, a few pairs at a time: a data set's recordings do not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..pairs import SIDES
from .material import AuditPair, Messages, RewardFunction, Turn, to_messages


# From a pair to its dialogues, by what the reward of each is kept as.
Presentation = Callable[[AuditPair], Mapping[str, Messages]]
# By presentation and `pair_id`: rewards by name, those of the two sides under `"chosen"` and `"rejected"`.
PresentedRewards = dict[str, dict[str, dict[str, float]]]
# Their recordings are in memory at once, each as often as there are presentations.
_CHUNK_PAIRS = 8
_LABELS = ("pair_id", "criterion", "subset", "source", "synthesizer", "group_id")


def label_of(pair: AuditPair) -> dict[str, Any]:
    """Return what `records.describe_pairs` says of a pair, from a pair in memory."""
    return {name: getattr(pair, name) for name in _LABELS}


def present_sides(
    change: Callable[[Turn], Turn] | None = None, *, audio: bool = True, text: bool = True
) -> Presentation:
    """Return the presentation of both sides with each turn changed.

    Args:
        change (`Callable`, *optional*): From a turn to another one; by default they stay as they are.
        audio (`bool`, *optional*, defaults to `True`): Give the recordings.
        text (`bool`, *optional*, defaults to `True`): Give the transcripts.
    """

    def present(pair: AuditPair) -> dict[str, Messages]:
        sides = {side: getattr(pair, side) for side in SIDES}
        changed = {side: turns if change is None else map(change, turns) for side, turns in sides.items()}
        return {side: to_messages(turns, audio=audio, text=text) for side, turns in changed.items()}

    return present


def score_presentations(
    pairs: Sequence[AuditPair], rewards: RewardFunction, presentations: Mapping[str, Presentation]
) -> PresentedRewards:
    """Compute the rewards of every dialogue of every presentation of each pair.

    Args:
        pairs (`Sequence[AuditPair]`): The pairs; taken from the sequence a few at a time, each once.
        rewards (`RewardFunction`): Computes; called once for a few pairs.
        presentations (`Mapping`): By name, what makes dialogues of a pair.

    Returns:
        `dict`: By presentation and `pair_id`: the reward of each dialogue by its name.
    """
    found: PresentedRewards = {name: {} for name in presentations}
    for start in range(0, len(pairs), _CHUNK_PAIRS):
        chunk = [pairs[index] for index in range(start, min(start + _CHUNK_PAIRS, len(pairs)))]
        built = [(name, pair, present(pair)) for pair in chunk for name, present in presentations.items()]
        dialogues = [dialogue for _, _, of_pair in built for dialogue in of_pair.values()]
        criteria = [pair.criterion for _, pair, of_pair in built for _ in of_pair]
        values = iter(rewards(dialogues, criteria) if dialogues else [])
        for name, pair, of_pair in built:
            found[name][pair.pair_id] = {key: float(next(values)) for key in of_pair}
    return found
