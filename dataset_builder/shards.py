"""The Parquet shards of a data set folder, `data/<criterion>/<split>-NNNNN-of-NNNNN.parquet`: read and write by row.

Neither side holds more than a few rows, however large the data set. Shards are written beside the old ones and take
their place only when all are complete. Pairs whose audio may not be published have shards of their own, the last of a
split, for `sdiareward push` sends whole shards.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sdiareward.common.files import replace_atomically
from sdiareward.pairs.schema import SIDES, features, make_arrow_schema

from .licences import find_redistribution_block


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

SPLITS = ("train", "validation", "test")
_ROWS_PER_SHARD = 200
_ROWS_PER_GROUP = 20
COUNTED = ("criterion", "split", "subset", "source", "synthesizer")


def list_paths(folder: Path) -> list[Path]:
    paths = sorted((folder / "data").rglob("*-of-*.parquet"))
    if not paths:
        raise FileNotFoundError(f"{folder}: holds no data/<criterion>/<split>-*.parquet; build the data set first.")
    return paths


def read_rows(folder: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield `(split, row)` of every pair; without turn columns in `columns` no audio is read."""
    for path in list_paths(folder):
        yield from read_shard(path, columns)


def read_shard(path: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow.parquet as pq

    split = path.name.split("-")[0]
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS_PER_GROUP, columns=columns):
            yield from ((split, row) for row in batch.to_pylist())


class PairTally:
    """Pairs, and hours of each side, by criterion, split, subset, source and synthesizer."""

    def __init__(self) -> None:
        self._tally: dict[tuple[str, ...], dict[str, float]] = {}

    def add(self, row: Mapping[str, Any], hours: Mapping[str, float]) -> None:
        found = self._tally.setdefault(tuple(str(row[name]) for name in COUNTED), {"pairs": 0})
        found["pairs"] += 1
        for side in SIDES:
            found[f"{side}_h"] = found.get(f"{side}_h", 0.0) + hours[side]

    @property
    def counts(self) -> list[dict[str, Any]]:
        return [
            dict(zip(COUNTED, key, strict=True)) | {name: round(value, 4) for name, value in found.items()}
            for key, found in sorted(self._tally.items())
        ]


def count_pairs(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Count pairs by the columns of every report: criterion, split, subset, source and synthesizer."""
    keys = Counter(tuple(str({**row, "split": split}.get(name)) for name in COUNTED) for split, row in rows)
    return [dict(zip(COUNTED, key, strict=True)) | {"pairs": count} for key, count in sorted(keys.items())]


class ShardWriter:
    """Write rows into the shards of a folder; leaving the context without an error replaces the folder's shards."""

    def __init__(self, folder: Path, columns: datasets.Features | None = None):
        self.folder = folder
        self.counts: list[dict[str, Any]] = []
        self._schema: pa.Schema = make_arrow_schema(columns or features())
        self._tally = PairTally()
        # By criterion, split, and whether the audio may not be published.
        self._pending: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
        self._written: Counter[tuple[str, str, bool]] = Counter()
        self._writers: dict[tuple[str, str, bool], Any] = {}
        self._replacement = replace_atomically(folder / "data")

    def __enter__(self) -> Self:
        self._temporary = self._replacement.__enter__()
        self._temporary.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            for key in self._pending:
                self._flush(key)
        for writer in self._writers.values():
            writer.close()
        if kind is None:
            for criterion, split in {key[:2] for key in self._written}:
                paths = sorted((self._temporary / criterion).glob(f"{split}-*"))
                for index, path in enumerate(paths):
                    path.rename(path.with_name(f"{split}-{index:05d}-of-{len(paths):05d}.parquet"))
            shutil.rmtree(self.folder / "data", ignore_errors=True)
            self.counts = self._tally.counts
        self._replacement.__exit__(kind, error, trace)

    def write(self, split: str, row: Mapping[str, Any]) -> None:
        key = (row.get("criterion", ""), split, find_redistribution_block(row) is not None)
        if all(side in row for side in SIDES):
            hours = {side: sum(turn["duration_s"] for turn in row[side]) / 3600 for side in SIDES}
            self._tally.add({"split": split, **row}, hours)
        self._pending.setdefault(key, []).append(dict(row))
        if len(self._pending[key]) == _ROWS_PER_GROUP:
            self._flush(key)

    def _flush(self, key: tuple[str, str, bool]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows, self._pending[key] = self._pending[key], []
        if not rows:
            return
        number, place = divmod(self._written[key], _ROWS_PER_SHARD)
        if place == 0:
            if key in self._writers:
                self._writers[key].close()
            criterion, split, is_withheld = key
            path = self._temporary / criterion / f"{split}-{is_withheld:d}-{number:05d}"
            path.parent.mkdir(exist_ok=True)
            self._writers[key] = pq.ParquetWriter(path, self._schema)
        self._writers[key].write_table(pa.Table.from_pylist(rows, schema=self._schema))
        self._written[key] += len(rows)
