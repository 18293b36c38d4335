"""What a checkpoint was trained on and with, stage by stage, from the `run.json` beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sdiareward.common.files import read_json_object
from sdiareward.pairs.labels import TRAINED_ON

from .builtin import find_checkpoint
from .files import ADAPTER_CONFIG
from .hub_files import fetch_snapshot


RECORD = "run.json"
# Key of the record: the stages before the last, the oldest first.
EARLIER = "earlier_stages"
# Of an earlier stage.
_KEPT = ("git_revision", "arguments", TRAINED_ON)
_ORIGINS = ("synthesizers", "sources", "licenses")


def read_stages(name_or_path: str | Path) -> list[dict[str, Any]]:
    """Return the trainings that a checkpoint comes from, the oldest first.

    Args:
        name_or_path (`str` or `Path`): Checkpoint or adapters: folder, Hub id, `"nano"` or `"small"`. The record of
            adapters may lie beside their folder, where a training leaves it.

    Returns:
        `list[dict]`: `git_revision`, `arguments` and `trained_on` of each, as far as they are known; empty without a
            record.

    Raises:
        ModelNotFoundError: See `hub_files.fetch_snapshot`.
        ValueError: The record holds no JSON object, or stages that are none.
    """
    found = find_checkpoint(name_or_path)
    folder = Path(found) if Path(found).is_dir() else fetch_snapshot(found, [RECORD])
    path = _find_record(folder)
    if path is None:
        return []
    last = read_json_object(path, "train again")
    earlier = last.get(EARLIER, [])
    if not isinstance(earlier, list) or not all(isinstance(stage, dict) for stage in earlier):
        raise ValueError(f"{path}: its {EARLIER} is no list of objects; train again.")
    return [{name: stage[name] for name in _KEPT if name in stage} for stage in [*earlier, last]]


def _find_record(folder: Path) -> Path | None:
    # A training leaves its adapters in a folder of its own.
    places = [folder, folder.resolve().parent] if (folder / ADAPTER_CONFIG).is_file() else [folder]
    return next((place / RECORD for place in places if (place / RECORD).is_file()), None)


def list_earlier_stages(names_or_paths: Iterable[str | Path | None]) -> list[dict[str, Any]]:
    """Return the stages of everything that a training begins from, each once; see `read_stages`."""
    found: list[dict[str, Any]] = []
    for name in names_or_paths:
        found += [stage for stage in (read_stages(name) if name else ()) if stage not in found]
    return found


def describe_stages(stages: Sequence[Mapping[str, Any]]) -> dict[str, list[str] | None]:
    """Return the `synthesizers`, `sources` and `licenses` of the pairs of all stages, in order.

    Args:
        stages (`Sequence[Mapping]`): From `read_stages`.

    Returns:
        `dict`: None under a name where there is no stage, or one does not tell.
    """
    records = [stage.get(TRAINED_ON) for stage in stages]
    found: dict[str, list[str] | None] = {}
    for name in _ORIGINS:
        known = [record[name] for record in records if isinstance(record, Mapping) and record.get(name) is not None]
        is_whole = bool(stages) and len(known) == len(stages)
        found[name] = sorted({value for values in known for value in values}) if is_whole else None
    return found
