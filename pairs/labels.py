"""Read the labels of pairs, which the metric and the tables need, without the audio, and draw pairs by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.common.files import hash_json
from sdiareward.esdr_accuracy.pairwise import NO_SUBSET, SUBSETS

from .schema import ID_COLUMNS, SIDES


if TYPE_CHECKING:
    import datasets

# Missing labels are derived or None.
_LABELS = ("pair_id", "criterion", "subset", "source", "synthesizer", "group_id")
_SUBSET_COLUMNS = ("subset", "category", "source")
ORIGIN_COLUMNS = (*_SUBSET_COLUMNS, "group_id", "synthesizer")
_ORIGINS = ("synthesizer", "source", "license")
# Column of hashes that `loading` made before it placed the paths: those that it found depend on where the table is.
WRITTEN_ID = "written_id"
# Key of the `run.json` of a trained model.
TRAINED_ON = "trained_on"
SUBSET_OF_SOURCE = {"youtube": "wild", "meld": "semi_wild", "dailytalk": "scripted"}


def name_criterion(criterion: str | None) -> str:
    return criterion or "joint"


def describe_pairs(pairs: datasets.Dataset) -> list[dict[str, Any]]:
    """Return the labels of each pair, without reading its audio.

    No label is required. The id is `pair_id`, `id` or a hash of the sides; the criterion is `"joint"` by default; the
    subset comes from `subset`, `category` or `source`, as in the released SDiaReward form, else `"all"`.
    """
    columns = [name for name in (*_LABELS, "id", "category") if name in pairs.column_names]
    # Where each row has an id, its sides are not read.
    if not any(name in columns and not {None, ""} & set(pairs[name]) for name in ID_COLUMNS):
        columns += [name for name in (WRITTEN_ID, *SIDES) if name in pairs.column_names]
    labels = [_describe(row, index) for index, row in enumerate(pairs.select_columns(columns))]
    seen: dict[str, int] = {}
    for index, label in enumerate(labels):
        first = seen.setdefault(label["pair_id"], index)
        if first != index:
            raise ValueError(f"rows {first} and {index} have the same pair_id {label['pair_id']!r}; drop one of them.")
    return labels


def find_id(row: Mapping[str, Any]) -> str | None:
    """Return the id of a pair as text; None if it has none."""
    return next((text for name in (*ID_COLUMNS, WRITTEN_ID) if (text := _as_text(row.get(name)))), None)


def hash_sides(row: Mapping[str, Any]) -> str:
    """Return the id of a pair without one: a hash of its sides as given, paths included."""
    return hash_json({side: row[side] for side in SIDES})[:16]


def describe_origins(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what `sample_rows` draws by."""
    return [
        {"subset": _find_subset(row), **{name: _as_text(row.get(name)) for name in ("group_id", "synthesizer")}}
        for row in rows
    ]


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)


def _find_subset(row: Mapping[str, Any]) -> str:
    """Return the subset that a row or its category or source names, else `NO_SUBSET`."""
    candidates = [_normalise(row.get(name)) for name in _SUBSET_COLUMNS]
    # Pairs about the conversation name it, whatever their source.
    if candidates[0] == NO_SUBSET:
        return NO_SUBSET
    candidates.append(SUBSET_OF_SOURCE.get(candidates[-1], ""))
    return next((name for name in candidates if name in SUBSETS), NO_SUBSET)


def _normalise(name: Any) -> str:
    return str(name or "").lower().replace("-", "_")


def _describe(row: Mapping[str, Any], index: int) -> dict[str, Any]:
    label = {name: row.get(name) for name in _LABELS}
    label["pair_id"] = find_id(row) or hash_sides(row)
    label["group_id"] = _as_text(label["group_id"])
    label["criterion"] = name_criterion(label["criterion"])
    if _normalise(row.get("subset")) not in ("", *SUBSETS, NO_SUBSET):
        raise ValueError(f"row {index}: subset is {row['subset']!r}; give one of {', '.join(SUBSETS)}, or omit it.")
    label["subset"] = _find_subset(row)
    return label


def split_synthesizers(synthesizer: str | None) -> set[str]:
    """Return the synthesizers of a pair: `hibari+flite` names one for each side."""
    return set(synthesizer.split("+")) if synthesizer else set()


def describe_trained_on(pairs: datasets.Dataset) -> dict[str, Any]:
    """Return what the `run.json` of a model records about its training pairs."""
    names = {name: sorted(set(pairs[name]) - {None, ""}) for name in _ORIGINS if name in pairs.column_names}
    criteria = sorted(set(map(name_criterion, pairs["criterion"]))) if "criterion" in pairs.column_names else ["joint"]
    return {"num_pairs": len(pairs), "criteria": criteria, **{f"{name}s": names.get(name) for name in _ORIGINS}}


def require_other_recordings(
    labels: Sequence[Mapping[str, Any]], train_labels: Sequence[Mapping[str, Any]], split: str, train_split: str
) -> None:
    """Raise if the training pairs share a pair or a recording with the pairs to measure on."""
    for name in ("pair_id", "group_id"):
        shared = ({label[name] for label in labels} & {label[name] for label in train_labels}) - {None}
        if shared:
            found = f"{train_split!r} and {split!r} share {len(shared)} {name}, such as {min(shared)!r}"
            remedy = "baselines need a training split of other recordings: give train_split, or turn them off"
            raise ValueError(f"{found}; {remedy}.")


def draw_rows(num_rows: int, count: int | None, seed: int) -> list[int]:
    """Return the numbers of at most `count` rows (None for all), in order."""
    return sorted(np.random.default_rng(seed).permutation(num_rows)[:count].tolist())


def sample_rows(labels: Sequence[Mapping[str, Any]], num_pairs: int, seed: int = 0) -> list[int]:
    """Draw pairs from the subsets in turn, within a subset from recordings, then synthesizers; 0 takes all.

    A larger sample of the same seed contains the smaller one, so that scores are reused.
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
