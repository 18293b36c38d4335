"""Outcomes of scored dialogues and pairs: rewards and what was heard, or why there are none; tolerances of rewards.

Rounding depends on the order of sums. Differences grow with depth, width and the size of rewards, and with the steps
of the backbone's dtype: 1e-7 of a number in float32, 1e-3 in float16, 8e-3 in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sdiareward.audio_sdiareward import Heard
from sdiareward.common.errors import Skipped


if TYPE_CHECKING:
    import datasets

Record = dict[str, Any]
Outcome = Record | Skipped
Result = TypeVar("Result")
Labels = Sequence[Mapping[str, Any]]
UNREADABLE = "unreadable"
# The same weights, computed in another way: alone or in a batch, padded or packed, with another attention, with a
# shared prefix, from cached features. Of two dtypes the coarser one counts.
SAME_REWARD: dict[str, float] = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 0.1}
# Weights written to disk and read back, in float32: the products are the same, their place in memory is not.
SAVED_FLOAT32 = 1e-6


def scale_tolerance(tolerance: float, rewards: Iterable[float]) -> float:
    """Scale a tolerance for rewards of at most 1 to larger rewards, which have larger steps."""
    return tolerance * max([1.0, *map(abs, rewards)])


class PairScorer(Protocol):
    """Something that scores pairs: a reward model or a judge."""

    @property
    def audio_s(self) -> float:
        """Seconds of audio heard so far."""

    def score_rows(
        self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield each row as it is done, with `chosen`, `rejected`, `margin` and whatever else its line is to hold."""

    def usage(self) -> dict[str, Any]:
        """Return what else is worth keeping of this session."""


def complete_items(
    results: Iterable[tuple[int, Result]], failures: Mapping[int, str], names: Sequence[str], items: Sequence[Any]
) -> Iterator[tuple[int, list[Result] | Skipped]]:
    """Yield the position of each item when all its dialogues have results, then the positions of the others.

    Dialogue `i` has the name `names[i % len(names)]` and is of item `i // len(names)`.
    """
    waiting: dict[int, dict[int, Result]] = {}
    for index, result in results:
        position, number = divmod(index, len(names))
        found = waiting.setdefault(position, {})
        found[number] = result
        if len(found) == len(names):
            del waiting[position]
            yield position, [found[number] for number in range(len(names))]
    reasons: dict[int, list[str]] = {}
    for index, reason in sorted(failures.items()):
        position, number = divmod(index, len(names))
        reasons.setdefault(position, []).append(f"{names[number]}: {reason}")
    for position, texts in reasons.items():
        yield position, Skipped(str(items[position]), UNREADABLE, " ".join(texts))


def describe_heard(names: Sequence[str], heard: Sequence[Heard]) -> dict[str, Any]:
    """Return what the model heard of the dialogues of an item together, with the names of silent turns."""
    prefixes = [f"{name} " for name in names] if len(names) > 1 else [""]
    silent = zip(prefixes, heard, strict=True)
    return {
        "given_s": sum(each.given_s for each in heard),
        "heard_s": sum(each.heard_s for each in heard),
        "num_recordings": sum(each.num_recordings for each in heard),
        "num_cut": sum(len(each.cut_turns) for each in heard),
        "silent_turns": [f"{prefix}turn {turn}" for prefix, each in silent for turn in each.silent_turns],
    }
