"""Load the pairs of a training run; hold out a share of them for validation, or keep all for cross-validation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.checkpoint_io.training_record import hash_pairs, keep_hashes
from sdiareward.common.errors import PairsError, SplitNotFoundError
from sdiareward.pairs.content import join_units
from sdiareward.pairs.labels import draw_rows
from sdiareward.pairs.loading import list_ids, load_pairs, name_pairs
from sdiareward.pairs.schema import ID_COLUMNS


if TYPE_CHECKING:
    import datasets

    from .arguments import SDiaRewardScriptArguments

SPLITS = ("train", "validation")
# Criterion -> what a pair under it compares.
CRITERIA = {
    "modality": "pairs of voices that say the same words",
    "colloquialness": "pairs of wordings in the same voice",
    "joint": "pairs that differ in both",
}
_SHARED = {"group_id": "group", "prompt": "prompt", "recording": "recording", "side": "side"}
_OF_MOST = ("prompt", "recording")
Key = tuple[str, str]


def load_splits(
    args: SDiaRewardScriptArguments, seed: int = 0, num_folds: int | None = None
) -> tuple[dict[str, datasets.Dataset], list[str]]:
    """Load pairs to train on and to validate on, with folds all to train on. Also return notices.

    Without a split to validate on, a share of the groups is held out.
    """
    names = [str(args.dataset_name), *args.more_datasets]
    loaded = [_load_one(name, args, seed, num_folds) for name in names]
    splits = _join(names, [found for found, _ in loaded])
    notices = [notice for _, notice in loaded if notice is not None]
    if num_folds:
        _, common = name_units(splits["train"], num_folds)
        if common:
            notices.append(f"groups share no prompt and no recording, except what most have{common}")
        return splits, notices
    if len(names) > 1 and (notice := _remove_shared(splits)):
        notices.append(notice)
    if args.max_eval_samples is not None:
        rows = draw_rows(len(splits["validation"]), args.max_eval_samples, seed)
        splits["validation"] = splits["validation"].select(rows)
    return splits, notices


def _load_one(
    dataset: str, args: SDiaRewardScriptArguments, seed: int, num_folds: int | None
) -> tuple[dict[str, datasets.Dataset], str | None]:
    pairs = _load_split(dataset, args.dataset_train_split, args)
    if num_folds:
        what = f"{dataset}: cross-validation is over the {len(pairs)} pairs of {args.dataset_train_split!r} only"
        return {"train": pairs}, None if Path(dataset).is_file() else what
    if Path(dataset).is_file():
        return _hold_out(dataset, "is one split", pairs, args.validation_share, seed)
    try:
        splits = {"train": pairs, "validation": _load_split(dataset, args.dataset_test_split, args)}
    except SplitNotFoundError:
        if args.dataset_test_split != SPLITS[1]:
            raise
        return _hold_out(dataset, "has no split 'validation'", pairs, args.validation_share, seed)
    train, validation = ({pair_id for pair_id in list_ids(splits[split]) if pair_id} for split in SPLITS)
    # Pairs without any id cannot be compared here.
    if both := train & validation:
        found = f"{dataset}: 'train' and 'validation' share {len(both)} pairs, such as {min(both)}"
        raise PairsError(f"{found}; remove them from one of the splits.")
    what = "share a group, prompt or recording with 'train', so they are not new to the model"
    shared, count = len(find_shared(splits)), len(splits["validation"])
    return splits, f"{dataset}: {shared} of {count} pairs of 'validation' {what}" if shared else None


def _load_split(dataset: str, split: str | None, args: SDiaRewardScriptArguments) -> datasets.Dataset:
    """Load pairs with their hashes, under the criterion of the arguments or of the data."""
    places: dict[str, Any] = {"name": args.dataset_config, "audio_root": args.audio_root}
    pairs = load_pairs(dataset, split, criterion=args.criterion, **places)
    if "criterion" not in pairs.column_names:
        choices = "; ".join(f"--criterion {name}: {what}" for name, what in CRITERIA.items())
        raise PairsError(f"{dataset}: has no column criterion, by which to choose the prompt; give one of {choices}.")
    return keep_hashes(pairs)


def name_units(pairs: datasets.Dataset, num_folds: int) -> tuple[list[str], str]:
    """Return the unit of each pair, and what most pairs share nevertheless; raise for fewer units than folds."""
    shared = _list_shared(pairs)
    firsts, common = _find_units(shared)
    most_shared = _describe_most_shared(shared)
    if (count := len(set(firsts))) < num_folds:
        found = f"folds is {num_folds}, but the {len(pairs)} pairs are of {count} groups{most_shared}"
        raise PairsError(f"{found}; give a smaller number, or add pairs that share no prompt and no recording.")
    return [f"row {row}" for row in firsts], most_shared if common else ""


def find_shared(splits: Mapping[str, Any], common: Collection[Key] = ()) -> list[int]:
    """Return the rows of validation that share a group, prompt or recording, not a `common` one, with training."""
    train, validation = (_list_shared(splits[split]) for split in SPLITS)
    trained = set().union(*train).difference(common)
    return [row for row, keys in enumerate(validation) if not trained.isdisjoint(keys)]


def count_units(splits: Mapping[str, Any]) -> int:
    """Return the number of units of the pairs of validation, by what they share with any pair."""
    train, validation = (_list_shared(splits[split]) for split in SPLITS)
    return len(set(_find_units(train + validation)[0][len(train) :]))


def _list_shared(pairs: datasets.Dataset) -> list[set[Key]]:
    return [{(name, value) for name in _SHARED for value in hashes[name]} for hashes in hash_pairs(pairs)]


def _find_units(shared: Sequence[set[Key]]) -> tuple[list[int], set[Key]]:
    """Return the first pair of each pair's unit, and the keys that are ignored because they would join all pairs.

    A prompt or recording that most pairs have, such as a greeting, cannot be held out.
    """
    units = [*join_units(dict(enumerate(shared))).values()]
    if any(units):
        return units, set()
    counts = Counter(chain.from_iterable(shared))
    common = {key for key, count in counts.items() if key[0] in _OF_MOST and count > len(shared) / 2}
    return [*join_units({row: keys - common for row, keys in enumerate(shared)}).values()], common


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
                both = f"{first[pair_id]} and {dataset} share pairs, such as {pair_id}"
                raise PairsError(f"{both}; a pair must not count twice: remove it from one, or omit one.")
    try:
        return {split: datasets.concatenate_datasets([splits[split] for splits in loaded]) for split in loaded[0]}
    except ValueError as error:
        raise PairsError(f"{' and '.join(names)}: the types of their columns differ: {error}") from error


def _remove_shared(splits: dict[str, datasets.Dataset]) -> str | None:
    """Remove from validation the pairs that share something with training; return a notice."""
    validation = splits["validation"]
    every = [keys for split in SPLITS for keys in _list_shared(splits[split])]
    if not (shared := find_shared(splits, _find_units(every)[1])):
        return None
    what = "share a group, prompt or recording with pairs that another of the data sets trains on"
    if len(shared) == len(validation):
        found = f"all pairs of 'validation', such as {name_pairs(validation)[0]}, {what}"
        raise PairsError(f"{found}; omit one of them, or split them by the same groups.")
    splits["validation"] = validation.select(sorted(set(range(len(validation))) - set(shared)))
    return f"{len(shared)} of {len(validation)} pairs are removed from validation: they {what}"


def _hold_out(
    dataset: str, why: str, pairs: datasets.Dataset, share: float, seed: int
) -> tuple[dict[str, datasets.Dataset], str | None]:
    """Hold out whole units: the pairs that share a group, a prompt or a recording, directly or through others."""
    shared = _list_shared(pairs)
    known = pairs["group_id"] if "group_id" in pairs.column_names else [None] * len(pairs)
    groups = [f"row {row}" if group is None else f"group {group}" for row, group in enumerate(known)]
    # By the name of its first group, so that the draw is by group where nothing else is shared.
    firsts, common = _find_units(shared)
    units = [groups[row] for row in firsts]
    sizes = Counter(units)
    if len(sizes) < 2:
        found = f"{dataset}: holds {len(pairs)} pairs of {len(sizes)} groups{_describe_most_shared(shared)}"
        needed = "two groups that share nothing are needed, one of them to validate on"
        raise PairsError(f"{found}; {needed}: add pairs, or give a folder of two splits.")
    count = min(math.ceil(share * len(sizes)), len(sizes) - 1)
    # No unit that has most pairs: training would have few.
    names = [n for n in np.random.default_rng(seed).permutation(sorted(sizes)).tolist() if sizes[n] <= len(pairs) / 2]
    is_drawn = [unit in names[:count] for unit in units]
    rows = {split: [row for row, drawn in enumerate(is_drawn) if SPLITS[drawn] == split] for split in SPLITS}
    notice = (
        f"{dataset} {why}: {len(rows['validation'])} of its {len(pairs)} training pairs are held out for validation "
        f"(--validation_share), whole groups of {len(sizes)} that share no prompt and no recording"
        f"{f', except what most have{_describe_most_shared(shared)}' if common else ''}"
    )
    return {split: pairs.select(found) for split, found in rows.items()}, notice


def _describe_most_shared(shared: Sequence[set[Key]]) -> str:
    """Return what joins the most pairs, with the first two of them."""
    counts = Counter(key for keys in shared for key in sorted(keys)).items()
    key, count = max(counts, key=lambda item: item[1], default=(("", ""), 0))
    rows = [str(row) for row, keys in enumerate(shared) if key in keys]
    return f": {count} have the same {_SHARED[key[0]]}, such as rows {' and '.join(rows[:2])}" if count > 1 else ""
