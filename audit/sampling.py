"""Draw the pairs of an audit: as many of each subset as there are, spread over recordings and synthesizers."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.perturbations.decoded_pairs import AuditPair, decode_pairs


if TYPE_CHECKING:
    import datasets

# Decoded at a time: what is worked on together is next to one another.
_KEPT_PAIRS = 16


def sample_rows(labels: Sequence[Mapping[str, Any]], num_pairs: int, seed: int = 0) -> list[int]:
    """Draw pairs: the subsets in turn, within a subset the recordings in turn, among those the synthesizers in turn.

    A larger sample of the same seed holds the smaller one, so that nothing of it has to be scored again.

    Args:
        labels (`Sequence[Mapping]`): Labels of each pair; see `labels.describe_pairs`.
        num_pairs (`int`): How many at most; 0 for all.
        seed (`int`, *optional*, defaults to 0): Of the draw.

    Returns:
        `list[int]`: Rows in the order in which they were drawn.

    Example:
        >>> groups = ["a", "a", "a", "b"]
        >>> labels = [{"subset": "wild", "group_id": group, "synthesizer": "flite"} for group in groups]
        >>> sorted(labels[row]["group_id"] for row in sample_rows(labels, 2))
        ['a', 'b']
    """
    by_subset: dict[str, list[int]] = {}
    for row in np.random.default_rng(seed).permutation(len(labels)).tolist():
        by_subset.setdefault(labels[row]["subset"], []).append(row)
    spread = {subset: _spread(labels, rows) for subset, rows in sorted(by_subset.items())}
    position = {row: number for rows in spread.values() for number, row in enumerate(rows)}
    # The first of each subset, then the second of each; a subset that is used up leaves its turn to the others.
    drawn = sorted((row for rows in spread.values() for row in rows), key=lambda row: position[row])
    return drawn[:num_pairs] if num_pairs else drawn


def _spread(labels: Sequence[Mapping[str, Any]], rows: Sequence[int]) -> list[int]:
    """Order the pairs of a subset so that any beginning is spread over recordings, then over synthesizers."""
    of_group = _occurrences(labels[row]["group_id"] or f"row {row}" for row in rows)
    rounds = dict(zip(rows, of_group, strict=True))
    of_synthesizer = _occurrences((rounds[row], labels[row]["synthesizer"]) for row in rows)
    turns = dict(zip(rows, of_synthesizer, strict=True))
    return sorted(rows, key=lambda row: (rounds[row], turns[row]))


def _occurrences(values: Iterable[Hashable]) -> list[int]:
    """Return how often each value came before."""
    seen: Counter[Hashable] = Counter()
    found = []
    for value in values:
        found.append(seen[value])
        seen[value] += 1
    return found


class PairSample(Sequence[Any]):
    """Some pairs of a data set, decoded when they are asked for; only a few are in memory at a time.

    Args:
        pairs (`datasets.Dataset`): Pairs as `loading.load_pairs` gives them.
        labels (`Sequence[Mapping]`): Labels of each; see `labels.describe_pairs`.
        rows (`Sequence[int]`): Which of them.

    Attributes:
        labels (`list[Mapping]`): The labels of the pairs of the sample, in its order.
    """

    def __init__(self, pairs: datasets.Dataset, labels: Sequence[Mapping[str, Any]], rows: Sequence[int]):
        self._pairs = pairs
        self._all_labels = labels
        self._rows = list(rows)
        self._decoded: OrderedDict[int, AuditPair] = OrderedDict()
        self.labels = [labels[row] for row in rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return a pair, or the sample of a slice of them; raises what `decoded_pairs.decode_pairs` raises."""
        if isinstance(index, slice):
            return PairSample(self._pairs, self._all_labels, self._rows[index])
        row = self._rows[index]
        if row not in self._decoded:
            (self._decoded[row],) = decode_pairs(self._pairs, [row])
            if len(self._decoded) > _KEPT_PAIRS:
                self._decoded.popitem(last=False)
        return self._decoded[row]

    def encoded(self) -> datasets.Dataset:
        """Return the pairs of the sample with their audio left encoded."""
        return self._pairs.select(self._rows)

    def keep(self, pair_ids: Iterable[str]) -> PairSample:
        """Return the sample of those pairs that have one of these ids, in its order."""
        wanted = set(pair_ids)
        rows = [row for row, label in zip(self._rows, self.labels, strict=True) if label["pair_id"] in wanted]
        return PairSample(self._pairs, self._all_labels, rows)
