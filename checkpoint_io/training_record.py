"""What a checkpoint was trained on and with, stage by stage, from the `run.json` beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import read_json_object
from sdiareward.pairs.labels import TRAINED_ON, describe_trained_on

from .builtin import find_checkpoint
from .files import ADAPTER_CONFIG
from .hub_files import fetch_snapshot


if TYPE_CHECKING:
    import datasets

RECORD = "run.json"
# Key of the record: the stages before the last, the oldest first.
EARLIER = "earlier_stages"
# Of an earlier stage.
_KEPT = ("git_revision", "arguments", TRAINED_ON)
_ORIGINS = ("synthesizers", "sources", "licenses")


def read_stages(name_or_path: str | Path) -> list[dict[str, Any]]:
    """Return the trainings that a checkpoint comes from, the oldest first."""
    found = find_checkpoint(name_or_path)
    folder = Path(found) if Path(found).is_dir() else fetch_snapshot(found, [RECORD])
    # A training leaves its adapters in a folder of its own.
    path = find_record(folder, beside=(folder / ADAPTER_CONFIG).is_file())
    if path is None:
        return []
    stages = list_stages(read_json_object(path, "train again"), str(path))
    return [{name: stage[name] for name in _KEPT if name in stage} for stage in stages]


def find_record(folder: Path, *, beside: bool) -> Path | None:
    """Return the `run.json` in a folder, or with `beside` also the one in its parent."""
    places = (folder, folder.resolve().parent) if beside else (folder,)
    return next((place / RECORD for place in places if (place / RECORD).is_file()), None)


def list_stages(run: Mapping[str, Any], name: str = RECORD) -> list[Mapping[str, Any]]:
    earlier = run.get(EARLIER, [])
    if not isinstance(earlier, list) or not all(isinstance(stage, Mapping) for stage in earlier):
        raise ValueError(f"{name}: its {EARLIER} is no list of objects; train again.")
    return [*earlier, run]


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
    """Return `synthesizers`, `sources` and `licenses` of all stages, in order; None where a stage lacks one."""
    records = [stage.get(TRAINED_ON) for stage in stages]
    found: dict[str, list[str] | None] = {}
    for name in _ORIGINS:
        known = [record[name] for record in records if isinstance(record, Mapping) and record.get(name) is not None]
        is_whole = bool(stages) and len(known) == len(stages)
        found[name] = sorted({value for values in known for value in values}) if is_whole else None
    return found
