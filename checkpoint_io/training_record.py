"""The training data and settings of a checkpoint, stage by stage, from its `run.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import hash_json, read_json_object, write_file
from sdiareward.common.hub import fetch_snapshot
from sdiareward.pairs.content import digest_shared
from sdiareward.pairs.labels import TRAINED_ON, describe_trained_on
from sdiareward.pairs.loading import list_ids
from sdiareward.pairs.schema import ID_COLUMNS

from .files import ADAPTER_CONFIG
from .models import find_checkpoint


if TYPE_CHECKING:
    import datasets

RECORD = "run.json"
# Hashes of the training pairs; they identify equal pairs and reveal nothing else.
PAIRS_RECORD = "training_pairs.json"
_HASH_CHARACTERS = 16
_HASHED = ("pair_id", "group_id", "side", "prompt", "recording")
# Column of a data set whose pairs are already hashed.
_COLUMN = "_shared"
# Key of the record for all stages but the last, oldest first.
EARLIER = "earlier_stages"
# Fields of an earlier stage.
_KEPT = ("git_revision", "arguments", TRAINED_ON)
_ORIGINS = ("synthesizers", "sources", "licenses")


def read_stages(name_or_path: str | Path) -> list[dict[str, Any]]:
    """Return the training stages of a checkpoint, oldest first."""
    path = _locate(name_or_path, RECORD)
    if path is None:
        return []
    stages = list_stages(read_json_object(path, "train again"))
    return [{name: stage[name] for name in _KEPT if name in stage} for stage in stages]


def _locate(name_or_path: str | Path, name: str) -> Path | None:
    found = find_checkpoint(name_or_path)
    folder = Path(found) if Path(found).is_dir() else fetch_snapshot(found, [name])
    # Training saves adapters and checkpoints in subfolders.
    is_part = (folder / ADAPTER_CONFIG).is_file() or (folder / "trainer_state.json").is_file()
    return find_record(folder, name, beside=is_part)


def find_record(folder: Path, name: str = RECORD, *, beside: bool) -> Path | None:
    """Return the record of this name in a folder, or with `beside` also in its parent."""
    places = (folder, folder.resolve().parent) if beside else (folder,)
    return next((place / name for place in places if (place / name).is_file()), None)


def list_stages(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*run.get(EARLIER, []), run]


def describe_heard(
    pairs: datasets.Dataset, begins_from: Iterable[str | Path | None], *, is_trained: bool = False
) -> dict[str, Any]:
    """Return `trained_on` and `earlier_stages` of a training's `run.json`, each stage once."""
    earlier: list[dict[str, Any]] = []
    for name in begins_from:
        earlier += [stage for stage in (read_stages(name) if name else ()) if stage not in earlier]
    if is_trained and not earlier:
        earlier.append({})
    return {TRAINED_ON: describe_trained_on(pairs), EARLIER: earlier}


def describe_stages(stages: Sequence[Mapping[str, Any]]) -> dict[str, list[str] | None]:
    """Return `synthesizers`, `sources` and `licenses` of all stages, in order; None if a stage lacks one."""
    records = [stage.get(TRAINED_ON) for stage in stages]
    found: dict[str, list[str] | None] = {}
    for name in _ORIGINS:
        known = [record[name] for record in records if isinstance(record, Mapping) and record.get(name) is not None]
        is_whole = bool(stages) and len(known) == len(stages)
        found[name] = sorted({value for values in known for value in values}) if is_whole else None
    return found


def hash_pairs(pairs: datasets.Dataset) -> list[dict[str, list[str]]]:
    """Return hashes of everything that a pair can share with others: id, group, sides, prompts and recordings."""
    if _COLUMN in pairs.column_names:
        return list(map(json.loads, pairs[_COLUMN]))
    ids = list_ids(pairs, ID_COLUMNS)
    groups = pairs["group_id"] if "group_id" in pairs.column_names else [None] * len(pairs)
    found = ({"pair_id": [i], "group_id": [g], **digest_shared(p)} for i, g, p in zip(ids, groups, pairs, strict=True))
    return [
        {
            name: [hash_json([name, str(value)])[:_HASH_CHARACTERS] for value in values if value is not None]
            for name, values in shared.items()
        }
        for shared in found
    ]


def keep_hashes(pairs: datasets.Dataset) -> datasets.Dataset:
    """Add a column of hashes to pairs, so that `hash_pairs` need not read them again."""
    return pairs.add_column(_COLUMN, list(map(json.dumps, hash_pairs(pairs))))


def write_pairs_record(
    folder: Path, pairs: datasets.Dataset, begins_from: Iterable[str | Path | None], *, is_trained: bool
) -> None:
    """Write the hashes of all training pairs of a model, including the pairs of earlier stages."""
    before = [read_pairs_record(name) for name in begins_from if name]
    # The last one is trained further; its record includes all earlier stages.
    is_whole = not is_trained or bool(before and before[-1] and before[-1]["is_whole"])
    records = [*filter(None, before), *hash_pairs(pairs)]
    # Sorted, so that the order of the pairs is not revealed.
    hashes = {name: sorted({each for found in records for each in found[name]}) for name in _HASHED}
    write_file(folder / PAIRS_RECORD, json.dumps({"is_whole": is_whole, **hashes}) + "\n")


def read_pairs_record(name_or_path: str | Path) -> dict[str, Any] | None:
    path = _locate(name_or_path, PAIRS_RECORD)
    if path is None:
        return None
    found = read_json_object(path, "train again")
    if not all(isinstance(found.get(name), list) for name in _HASHED) or "is_whole" not in found:
        raise ValueError(f"{path}: lacks the lists {', '.join(_HASHED)} or is_whole; train again.")
    return found
