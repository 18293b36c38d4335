"""Draw the pairs of an audit, spread evenly over subsets, recordings and synthesizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.perturbations.decoded_pairs import decode_pairs


if TYPE_CHECKING:
    import datasets

# Decoded pairs in memory: neighbours are scored together.
_KEPT_PAIRS = 16


def sample_rows(labels: Sequence[Mapping[str, Any]], num_pairs: int, seed: int = 0) -> list[int]:
    """Draw pairs: from the subsets in turn, within a subset from the recordings, then from the synthesizers in turn.

    A larger sample of the same seed contains the smaller one, whose scores are reused.

    Args:
        labels (`Sequence[Mapping]`): Labels of each pair; see `labels.describe_pairs`.
        num_pairs (`int`): The largest number of pairs; 0 for all.
        seed (`int`, *optional*, defaults to 0): Seed of the draw.

    Returns:
        `list[int]`: Rows in the order in which they were drawn.

    Example:
        >>> groups = ["a", "a", "a", "b"]
        >>> labels = [{"subset": "wild", "group_id": group, "synthesizer": "flite"} for group in groups]
        >>> sorted(labels[row]["group_id"] for row in sample_rows(labels, 2))
        ['a', 'b']
    """
    import pandas as pd

    # A pair of unknown origin is its own group.
    groups = [label["group_id"] or f"row {row}" for row, label in enumerate(labels)]
    frame = pd.DataFrame({name: [label[name] for label in labels] for name in ("subset", "synthesizer")})
    frame = frame.assign(group=groups).iloc[np.random.default_rng(seed).permutation(len(labels))]
    # The nth pair of its group, and among these the nth of its synthesizer.
    frame["round"] = frame.groupby(["subset", "group"]).cumcount()
    frame["turn"] = frame.groupby(["subset", "round", "synthesizer"], dropna=False).cumcount()
    frame = frame.sort_values(["round", "turn"], kind="stable")
    frame["position"] = frame.groupby("subset").cumcount()
    drawn = frame.sort_values(["position", "subset"]).index.tolist()
    return drawn[:num_pairs] if num_pairs else drawn


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

    def encoded(self) -> datasets.Dataset:
        """Return the pairs of the sample with encoded audio."""
        return self._pairs.select(self._rows)

    def keep(self, pair_ids: Iterable[str]) -> PairSample:
        """Return the pairs with one of these ids, in the sample's order."""
        wanted = set(pair_ids)
        rows = [row for row, label in zip(self._rows, self.labels, strict=True) if label["pair_id"] in wanted]
        return PairSample(self._pairs, self._all_labels, rows)
