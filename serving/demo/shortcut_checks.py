"""Measure the change of a reward under a few perturbations.

A few recordings show whether a perturbation can change the order, not how often: that needs an audit of a data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.perturbations.registry import PERTURBATIONS, apply, change_recordings


CHECKS = ("gain", "leading_silence", "noise", "telephone_band", "polarity")
BOTH, FIRST, SECOND = "both", "A alone", "B alone"


@dataclass(frozen=True)
class Check:
    title: str
    shifts: tuple[float, ...]  # Change of the reward, per dialogue.
    margins: dict[str, float]  # With both, the first or the second dialogue perturbed; empty for one.
    flips: tuple[str, ...]  # Keys of `margins` where the order is lost.


def change_dialogue(messages: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return a perturbed copy of a dialogue, of default severity, with a seed per recording."""
    return change_recordings(messages, lambda number, array: apply(name, array, SAMPLING_RATE, seed=number))


def compare(rewards: Sequence[float], changed: Mapping[str, Sequence[float]]) -> list[Check]:
    return [_compare(PERTURBATIONS[name].format_title(), rewards, new) for name, new in changed.items()]


def _compare(title: str, rewards: Sequence[float], changed: Sequence[float]) -> Check:
    shifts = tuple(new - old for old, new in zip(rewards, changed, strict=True))
    if len(rewards) == 1:
        return Check(title, shifts, {}, ())
    (first, second), (new_first, new_second) = rewards, changed
    margins = {BOTH: new_first - new_second, FIRST: new_first - second, SECOND: first - new_second}
    # Equal rewards have no order to lose.
    sign = np.sign(first - second)
    return Check(title, shifts, margins, tuple(place for place in margins if sign and np.sign(margins[place]) != sign))


def write_verdict(rewards: Sequence[float], checks: Sequence[Check]) -> str:
    if len(rewards) == 1:
        worst = max(checks, key=lambda check: abs(check.shifts[0]))
        return (
            f"The reward of {rewards[0]:+.2f} moves most under '{worst.title}': by {worst.shifts[0]:+.2f}. None of "
            "these changes touches the conversation; a reward that followed it alone would stay where it is."
        )
    margin = rewards[0] - rewards[1]
    moves = [(abs(new - margin), place, check.title) for check in checks for place, new in check.margins.items()]
    size, place, title = max(moves)
    most = f"The margin of {margin:+.2f} moves most, by {size:.2f}, under '{title}' on {place}."
    flipped = [f"'{check.title}' ({', '.join(check.flips)})" for check in checks if check.flips]
    if margin == 0:
        return f"The two have the same reward, so there is no order to lose. {most}"
    if flipped:
        return f"The order does not hold: it is lost under {'; '.join(flipped)}. {most}"
    return f"The order holds under all {len(checks)} changes, on both dialogues and on either one alone. {most}"
