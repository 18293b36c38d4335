"""Make the public shards of a data set, without the rows whose audio may not be published.

A shard without such rows is sent unchanged. A shard with some of them, or with columns outside the data contract, is
rewritten row by row with the columns of the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.cards.licences import find_redistribution_block
from sdiareward.common.files import replace_atomically
from sdiareward.dataset_builder.shards import COUNTED, SPLITS, list_paths
from sdiareward.pairs.schema import CRITERIA, JOINT, SIDES, features, make_arrow_schema


if TYPE_CHECKING:
    import datasets
    import pyarrow.parquet as pq

_ROWS_PER_GROUP = 20
_LABELS = (*(name for name in COUNTED if name != "split"), "language", "license", "pair_id")
# The fields of a turn that are read to decide whether a row may be published.
_TURN_FIELDS = ("audio_ref", "duration_s")


@dataclass(frozen=True)
class Shard:
    path: Path
    criterion: str
    split: str
    num_rows: int
    num_bytes: int  # Before compression.

    @property
    def place(self) -> str:
        """Return its folder and name below the folder of a table."""
        return f"{self.criterion}/{self.path.name}"


def list_shards(folder: Path) -> list[Shard]:
    return [_read_shard(path) for path in list_paths(folder)]


def _read_shard(path: Path) -> Shard:
    criterion, split = path.parent.name, path.name.split("-")[0]
    if criterion not in (*CRITERIA, JOINT) or split not in SPLITS:
        raise ValueError(
            f"{path}: lies under criterion {criterion!r} and split {split!r}; the builder writes "
            f"{[*CRITERIA, JOINT]} and {list(SPLITS)}. Move it out of data/."
        )
    with open_shard(path) as file:
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        return Shard(path, criterion, split, file.metadata.num_rows, sum(group.total_byte_size for group in groups))


def open_shard(path: Path) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: not a Parquet file ({error}); build the data set again.") from error


def read_labels(shard: Shard) -> list[dict[str, Any]]:
    """Return the labels of each row and the hours of both sides; `why_withheld` is None if its audio may be sent."""
    rows = read_columns(shard.path, lambda path: path in _LABELS or _is_of_turn(path, _TURN_FIELDS))
    return [_label(row, shard.split) for row in rows]


def _is_of_turn(path: str, fields: tuple[str, ...]) -> bool:
    """Return whether a leaf, such as `chosen.list.element.audio_ref.list.element.uri`, is one of these fields."""
    side, *rest = path.split(".")
    return side in SIDES and not set(rest).isdisjoint(fields)


def _label(row: Mapping[str, Any], split: str) -> dict[str, Any]:
    label: dict[str, Any] = {name: row.get(name) for name in _LABELS} | {"split": split}
    for side in SIDES:
        label[f"{side}_h"] = sum(turn.get("duration_s") or 0.0 for turn in row.get(side) or ()) / 3600
    return label | {"why_withheld": find_redistribution_block(row)}


def read_columns(path: Path, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a shard with the wanted leaves of its columns; other leaves are not read."""
    with open_shard(path) as file:
        leaves = [file.schema.column(index).path for index in range(len(file.schema))]
        for batch in file.iter_batches(batch_size=_ROWS_PER_GROUP, columns=[leaf for leaf in leaves if wanted(leaf)]):
            yield from batch.to_pylist()


def publish_shard(shard: Shard, labels: list[dict[str, Any]], output: Path) -> Shard | None:
    """Return a shard with the rows that may be published, or None without such rows."""
    is_public = [label["why_withheld"] is None for label in labels]
    if not any(is_public):
        return None
    if all(is_public) and _follows_contract(shard.path):
        return shard
    target = output / shard.place
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _rewrite(shard.path, is_public, target)
    except _list_arrow_errors() as error:
        raise ValueError(f"{shard.path}: has columns of another type than a data set of pairs ({error}).") from error
    return _read_shard(target)


def has_columns(path: Path, columns: datasets.Features) -> bool:
    """Return whether a shard has exactly these columns, and nothing else is written about it."""
    agreed = make_arrow_schema(columns)
    with open_shard(path) as file:
        schema = file.schema_arrow
    return bool(schema.equals(agreed)) and schema.metadata == agreed.metadata


def _follows_contract(path: Path) -> bool:
    """Return whether a shard has exactly the columns of the contract, and no local folders in them."""
    if not has_columns(path, features()):
        return False
    rows = read_columns(path, lambda leaf: leaf.endswith(".audio.path"))
    names = (turn["audio"]["path"] for row in rows for side in SIDES for turn in row[side] if turn["audio"])
    return all(name is None or name == _strip_path(name) for name in names)


def _rewrite(source: Path, is_public: list[bool], target: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = make_arrow_schema(features())
    kept = iter(is_public)
    with (
        replace_atomically(target) as temporary,
        open_shard(source) as file,
        pq.ParquetWriter(temporary, schema) as writer,
    ):
        for batch in file.iter_batches(batch_size=_ROWS_PER_GROUP):
            rows = [_remove_folders(row) for row in batch.to_pylist() if next(kept)]
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _remove_folders(row: dict[str, Any]) -> dict[str, Any]:
    for side in SIDES:
        for turn in row[side]:
            if turn["audio"] and turn["audio"].get("path"):
                turn["audio"]["path"] = _strip_path(turn["audio"]["path"])
    return row


def _strip_path(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def _list_arrow_errors() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    return (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)
