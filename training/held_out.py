"""Load the splits of a training run; hold out pairs for validation where a data set is a single file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sdiareward.common.user_errors import PairsError
from sdiareward.pairs.loading import list_ids, load_pairs, name_pairs
from sdiareward.pairs.sampling import draw_rows
from sdiareward.pairs.schema import ID_COLUMNS


if TYPE_CHECKING:
    import datasets

SPLITS = ("train", "validation")


def load_splits(
    dataset: str | Sequence[str],
    name: str | None = None,
    *,
    share: float,
    seed: int,
    audio_root: str | None = None,
    max_eval_samples: int | None = None,
) -> tuple[dict[str, datasets.Dataset], list[str]]:
    """Load pairs to train on and to validate on; `share` of a file's groups are held out. Also return notices."""
    names = [dataset] if isinstance(dataset, str) else list(dataset)
    loaded = [_load_one(each, name, share, seed, audio_root) for each in names]
    splits = _join(names, [found for found, _ in loaded])
    notices = [notice for _, notice in loaded if notice is not None]
    if len(names) > 1 and (notice := _leave_out_trained_groups(splits)):
        notices.append(notice)
    if max_eval_samples is not None:
        rows = draw_rows(len(splits["validation"]), max_eval_samples, seed)
        splits["validation"] = splits["validation"].select(rows)
    return splits, notices


def _load_one(
    dataset: str, name: str | None, share: float, seed: int, audio_root: str | None
) -> tuple[dict[str, datasets.Dataset], str | None]:
    if Path(dataset).is_file():
        pairs = load_pairs(dataset, SPLITS[0], name=name, audio_root=audio_root)
        return _hold_out(dataset, pairs, share, seed)
    splits = {split: load_pairs(dataset, split, name=name, audio_root=audio_root) for split in SPLITS}
    _require_disjoint(dataset, splits)
    return splits, None


def _join(names: Sequence[str], loaded: Sequence[dict[str, datasets.Dataset]]) -> dict[str, datasets.Dataset]:
    import datasets

    if len(loaded) == 1:
        return loaded[0]
    first: dict[str, str] = {}
    for dataset, splits in zip(names, loaded, strict=True):
        columns = {column for pairs in splits.values() for column in pairs.column_names}
        if not {*ID_COLUMNS} & columns:
            raise PairsError(f"{dataset}: has no column pair_id, which joins it to other data sets; add unique names.")
        for pair_id in {pair_id for pairs in splits.values() for pair_id in name_pairs(pairs)}:
            if first.setdefault(pair_id, dataset) != dataset:
                raise PairsError(
                    f"{first[pair_id]} and {dataset} share pairs, such as {pair_id}; a pair must not count twice, nor "
                    "be trained on and validated on: leave one of the data sets out."
                )
    try:
        return {split: datasets.concatenate_datasets([splits[split] for splits in loaded]) for split in SPLITS}
    except ValueError as error:
        raise PairsError(f"{' and '.join(names)}: the types of their columns differ: {error}") from error


def _leave_out_trained_groups(splits: dict[str, datasets.Dataset]) -> str | None:
    """Remove from validation the groups that another data set trains on; return a notice."""
    if not all("group_id" in pairs.column_names for pairs in splits.values()):
        return None
    trained, groups = set(splits["train"]["group_id"]) - {None}, splits["validation"]["group_id"]
    rows = [row for row, group in enumerate(groups) if group not in trained]
    if not rows:
        raise PairsError(
            f"every group of 'validation', such as {groups[0]}, is trained on by another of the data sets; leave one "
            "of them out, or split them by the same groups."
        )
    if len(rows) == len(groups):
        return None
    splits["validation"] = splits["validation"].select(rows)
    return (
        f"{len(groups) - len(rows)} of {len(groups)} pairs are left out of validation: another data set trains on "
        "their groups"
    )


def _require_disjoint(dataset: str, splits: dict[str, datasets.Dataset]) -> None:
    """Raise if a pair is in both splits; pairs without any id cannot be compared here."""
    train, validation = ({name for name in list_ids(splits[split]) if name} for split in SPLITS)
    if shared := train & validation:
        raise PairsError(
            f"{dataset}: 'train' and 'validation' share {len(shared)} pairs, such as {min(shared)}; validation needs "
            "pairs that are not trained on: remove them from one of the splits."
        )


def _hold_out(
    dataset: str, pairs: datasets.Dataset, share: float, seed: int
) -> tuple[dict[str, datasets.Dataset], str | None]:
    """Hold out complete groups, so that no recording is in both splits; a pair without `group_id` is its own group."""
    known = pairs["group_id"] if "group_id" in pairs.column_names else [None] * len(pairs)
    groups = [f"row {row}" if group is None else f"group {group}" for row, group in enumerate(known)]
    names = sorted(set(groups))
    if len(names) < 2:
        raise PairsError(
            f"{dataset}: holds {len(pairs)} pairs of {len(names)} groups; two groups are needed, one of them to "
            "validate on: add pairs, or give a folder with the splits train and validation."
        )
    count = min(math.ceil(share * len(names)), len(names) - 1)
    drawn = set(np.random.default_rng(seed).permutation(names)[:count].tolist())
    rows: dict[str, list[int]] = {split: [] for split in SPLITS}
    for row, group in enumerate(groups):
        rows[SPLITS[group in drawn]].append(row)
    splits = {split: pairs.select(found) for split, found in rows.items()}
    notice = (
        f"{dataset} is one split: {len(rows['validation'])} of its {len(pairs)} pairs are held out for validation "
        "(--validation_share)"
    )
    return splits, notice
