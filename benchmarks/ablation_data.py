"""The pairs of an ablation: all of a data set, or an equal share of every subset of every split.

A share takes one pair of each group (recording), then a second of each, and so on, with groups and pairs in the order
of a hash of their ids. It covers as many recordings as possible, needs no seed, is the same on every machine, and a
smaller share is a subset of a larger one. Splits are by group, so no recording leaks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs


if TYPE_CHECKING:
    import datasets

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Study:
    """The training, validation and test pairs of an ablation.

    Args:
        pairs (`dict[str, datasets.Dataset]`): Pairs by split.
        labels (`dict[str, list[dict]]`): Labels of each by split, from `labels.describe_pairs`.
    """

    pairs: dict[str, datasets.Dataset]
    labels: dict[str, list[dict[str, Any]]]

    def __len__(self) -> int:
        return sum(map(len, self.labels.values()))

    def take(self, limit: int | None) -> Study:
        """Return about `limit` pairs of all splits together; all of them if there are fewer.

        Args:
            limit (`int`, *optional*): Number of pairs; None for all. Shares are rounded, and are at least one pair.
        """
        if limit is None or limit >= len(self):
            return self
        rows = {split: choose_rows(labels, limit / len(self)) for split, labels in self.labels.items()}
        return Study(
            {split: pairs.select(rows[split]) for split, pairs in self.pairs.items()},
            {split: [labels[row] for row in rows[split]] for split, labels in self.labels.items()},
        )

    def fingerprints(self) -> dict[str, str]:
        """Return a hash of each split."""
        return {split: fingerprint_pairs(labels, self.pairs[split]) for split, labels in self.labels.items()}

    def count_pairs(self) -> dict[str, dict[str, dict[str, int]]]:
        """Count the pairs and groups by split and subset."""
        return {split: _count(labels) for split, labels in self.labels.items()}

    def write(self, folder: Path) -> Path:
        """Write the pairs as a data set for `loading.load_pairs`, unless the folder holds them already."""
        name = hashlib.sha256("".join(self.fingerprints().values()).encode()).hexdigest()[:12]
        target = folder / name
        if not target.exists():
            unfinished = folder / f".{name}.tmp"
            unfinished.mkdir(parents=True, exist_ok=True)
            for split, pairs in self.pairs.items():
                pairs.to_parquet(unfinished / f"{split}-00000-of-00001.parquet")
            unfinished.rename(target)
        return target


def load_study(dataset: str, name: str | None = None) -> Study:
    """Load all splits of a data set of pairs.

    Args:
        dataset (`str`): As `loading.load_pairs` takes it.
        name (`str`, *optional*): Its configuration.

    Raises:
        ValueError: Two splits share a group.
    """
    pairs = {split: load_pairs(dataset, split, name=name) for split in SPLITS}
    study = Study(pairs, {split: describe_pairs(rows) for split, rows in pairs.items()})
    seen: dict[str, str] = {}
    for split, labels in study.labels.items():
        for group in {_group(label) for label in labels}:
            if group in seen:
                raise ValueError(
                    f"{dataset}: group {group!r} is in {seen[group]!r} and in {split!r}; what is measured must stem "
                    "from other recordings than what is trained on: build the splits by group."
                )
            seen[group] = split
    return study


def choose_rows(labels: Sequence[Mapping[str, Any]], share: float) -> list[int]:
    """Choose a share of the pairs of every subset, at least one, from as many groups as possible.

    Args:
        labels (`Sequence[Mapping]`): `subset`, `group_id` and `pair_id` of each pair.
        share (`float`): Part of the pairs, 0-1.

    Returns:
        `list[int]`: Rows, in ascending order.
    """
    chosen: list[int] = []
    for subset in sorted({label["subset"] for label in labels}):
        groups: dict[str, list[int]] = {}
        for row, label in enumerate(labels):
            if label["subset"] == subset:
                groups.setdefault(_group(label), []).append(row)
        ordered = [
            sorted(groups[group], key=lambda row: _digest(labels[row]["pair_id"]))
            for group in sorted(groups, key=_digest)
        ]
        in_turn = [row for turn in zip_longest(*ordered) for row in turn if row is not None]
        chosen += in_turn[: max(1, round(share * len(in_turn)))]
    return sorted(chosen)


def _digest(text: Any) -> bytes:
    return hashlib.sha256(str(text).encode()).digest()


def _group(label: Mapping[str, Any]) -> str:
    return str(label["group_id"] or label["pair_id"])


def _count(labels: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    counts = {}
    for subset in sorted({label["subset"] for label in labels}):
        members = [label for label in labels if label["subset"] == subset]
        counts[subset] = {"pairs": len(members), "groups": len({_group(label) for label in members})}
    return counts
