"""The pairs of an audit, decoded on access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sdiareward.perturbations.decoded_pairs import decode_pairs


if TYPE_CHECKING:
    import datasets

# Decoded pairs in memory: neighbours are scored together.
_KEPT_PAIRS = 16


class PairSample(Sequence[Any]):
    """Rows of a data set of pairs, decoded on access; only a few are in memory at a time.

    Args:
        pairs (`datasets.Dataset`): Pairs, from `loading.load_pairs`.
        labels (`Sequence[Mapping]`): Labels of each; see `labels.describe_pairs`.
        rows (`Sequence[int]`): Rows of the sample.

    Attributes:
        labels (`list[Mapping]`): Labels of the sample's pairs.
    """

    def __init__(self, pairs: datasets.Dataset, labels: Sequence[Mapping[str, Any]], rows: Sequence[int]):
        self._pairs = pairs
        self._all_labels = labels
        self._rows = list(rows)
        self._decode = lru_cache(_KEPT_PAIRS)(lambda row: decode_pairs(pairs, [row])[0])
        self.labels = [labels[row] for row in rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return a pair, or the sample of a slice; raises the errors of `decoded_pairs.decode_pairs`."""
        if isinstance(index, slice):
            return PairSample(self._pairs, self._all_labels, self._rows[index])
        return self._decode(self._rows[index])

    def select_encoded(self) -> datasets.Dataset:
        """Return the pairs of the sample with encoded audio."""
        return self._pairs.select(self._rows)

    def keep(self, pair_ids: Iterable[str]) -> PairSample:
        """Return the pairs with one of these ids, in the sample's order."""
        wanted = set(pair_ids)
        rows = [row for row, label in zip(self._rows, self.labels, strict=True) if label["pair_id"] in wanted]
        return PairSample(self._pairs, self._all_labels, rows)
