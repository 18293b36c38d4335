"""Outcomes of scored dialogues and pairs: a record of rewards and of what was heard, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sdiareward.audio_sdiareward import Heard
from sdiareward.common.errors import Skipped


if TYPE_CHECKING:
    import datasets

Record = dict[str, Any]
Outcome = Record | Skipped
Labels = Sequence[Mapping[str, Any]]
UNREADABLE, NOT_FINITE = "unreadable", "not_finite"


class PairScorer(Protocol):
    """Something that scores pairs: a reward model or a judge."""

    @property
    def audio_s(self) -> float:
        """Seconds of audio heard so far."""
        ...

    def score_rows(
        self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield each row as it is done, with `chosen`, `rejected`, `margin` and whatever else its line is to hold."""
        ...

    def usage(self) -> dict[str, Any]:
        """Return what else is worth keeping of this session."""
        ...


def complete_items(
    results: Iterable[tuple[int, float]], failures: Mapping[int, str], names: Sequence[str], items: Sequence[Any]
) -> Iterator[tuple[int, list[float] | Skipped]]:
    """Yield the position of an item when all its dialogues have rewards; `names` are those of the dialogues."""
    yield from complete_groups(results, len(names))
    reasons: dict[int, list[str]] = {}
    for index, reason in sorted(failures.items()):
        position, number = divmod(index, len(names))
        reasons.setdefault(position, []).append(f"{names[number]}: {reason}")
    for position, texts in reasons.items():
        yield position, Skipped(str(items[position]), UNREADABLE, " ".join(texts))


def describe_heard(names: Sequence[str], heard: Sequence[Heard]) -> dict[str, Any]:
    """Return what the model heard of the dialogues of an item together, with the names of silent turns."""
    prefixes = [f"{name} " for name in names] if len(names) > 1 else [""]
    return {
        "given_s": sum(each.given_s for each in heard),
        "heard_s": sum(each.heard_s for each in heard),
        "num_recordings": sum(each.num_recordings for each in heard),
        "num_cut": sum(len(each.cut_turns) for each in heard),
        "silent_turns": [
            f"{prefix}turn {turn}" for prefix, each in zip(prefixes, heard, strict=True) for turn in each.silent_turns
        ],
    }


def check_finite(item: Any, rewards: Sequence[float]) -> Skipped | None:
    """Return why rewards cannot be used; None if all are finite."""
    if all(map(math.isfinite, rewards)):
        return None
    found = ", ".join(map(str, rewards))
    return Skipped(str(item), NOT_FINITE, f"the rewards are {found}; score with the dtype float32.")


def complete_groups(results: Iterable[tuple[int, float]], size: int) -> Iterator[tuple[int, list[float]]]:
    """Yield complete groups of results; index `i` is number `i % size` of group `i // size`."""
    waiting: dict[int, dict[int, float]] = {}
    for index, value in results:
        group, member = divmod(index, size)
        values = waiting.setdefault(group, {})
        values[member] = value
        if len(values) == size:
            del waiting[group]
            yield group, [values[member] for member in range(size)]
