"""Read preference pairs without decoding: our own Parquet, the released SDiaReward form, or custom files.

`messages.turns_to_messages` converts all of them to the messages of `SDiaRewardProcessor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.errors import PairsError, PairsNotFoundError

from .labels import WRITTEN_ID, find_id
from .own_forms import unify_sides
from .path_sandbox import iter_paths, list_audio_roots, require_inside
from .rows import find_tables, leave_audio_encoded, load_tables
from .schema import ID_COLUMNS, SIDES


if TYPE_CHECKING:
    import datasets


def choose_split(path: str | Path, split: str | None) -> str | None:
    """Return the split to measure on, by default `"test"`; a file, or one saved split, has no splits."""
    if not Path(path).is_file() and not (Path(path) / "state.json").is_file():
        return split or "test"
    if split is not None:
        raise PairsError(f"{path}: is a single split, which has no other name; omit --split {split}.")
    return None


def name_data(dataset: str, split: str | None) -> str:
    """Return how a title names the pairs."""
    return dataset if split is None else f"{dataset}, split {split}"


def load_pairs(
    path: str | Path, split: str | None, *, name: str | None = None, audio_root: str | Path | None = None
) -> datasets.Dataset:
    """Load one split of preference pairs, paths absolute, with audio left encoded: torchcodec is not needed."""
    try:
        return _load_pairs(path, find_tables(path, split, name), audio_root)
    except (FileNotFoundError, ValueError) as error:
        kind = PairsNotFoundError if isinstance(error, FileNotFoundError) else PairsError
        message = " ".join(str(error).split())
        raise kind(message if message.startswith(str(path)) else f"{path}: {message}") from error


def _load_pairs(path: str | Path, found: Any, audio_root: str | Path | None) -> datasets.Dataset:
    pairs = load_tables(found)
    missing = [side for side in SIDES if side not in pairs.column_names]
    if missing:
        raise ValueError(f"has columns {pairs.column_names}; a data set of pairs needs {list(SIDES)}.")
    encoded = leave_audio_encoded(pairs.features)
    # A cast copies the recordings.
    pairs = unify_sides(pairs if encoded == pairs.features else pairs.cast(encoded), path, audio_root)
    roots = list_audio_roots(path, audio_root)
    for recording in iter_paths(pairs, SIDES):
        require_inside(recording, roots)
    return pairs


def name_pairs(pairs: datasets.Dataset) -> list[str]:
    """Return the `pair_id` or `id` of each pair, or its row number without either."""
    return [name or f"row {row}" for row, name in enumerate(list_ids(pairs, ID_COLUMNS))]


def list_ids(pairs: datasets.Dataset, names: Sequence[str] = (*ID_COLUMNS, WRITTEN_ID)) -> list[str | None]:
    """Return the id of each pair as `labels.find_id` does, from these columns."""
    columns = [name for name in names if name in pairs.column_names]
    rows = zip(*(pairs[name] for name in columns), strict=True)
    return [find_id(dict(zip(columns, row, strict=True))) for row in rows] if columns else [None] * len(pairs)
