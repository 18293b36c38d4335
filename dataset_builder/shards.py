"""The rows of a data set: made in parts, and kept in shards, `data/<criterion>/<split>-NNNNN-of-NNNNN.parquet`.

Neither side holds more than a few rows, however large the data set. Shards are written beside the old ones and take
their place only when all are complete. Pairs whose audio may not be published have shards of their own, the last of a
split, for `sdiareward push` sends whole shards.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from sdiareward.common.files import replace_atomically
from sdiareward.common.machine import count_fitting, open_ray, require_room
from sdiareward.common.parts import Engine, OnRay, PartFolder, Processes
from sdiareward.pairs.schema import SIDES, features, make_arrow_schema

from .licences import find_redistribution_block


if TYPE_CHECKING:
    import datasets

EngineName = Literal["datasets", "ray"]
# Takes the number of parts, copies (None: as many as there is room for), and GPUs of each.
ChooseEngine = Callable[[int, int | None, float], Engine]
SPLITS = ("train", "validation", "test")
COUNTED = ("criterion", "split", "subset", "source", "synthesizer")
_ROWS_PER_SHARD, _ROWS_PER_GROUP = 200, 20
# Neighbours often need the same speech, which a worker keeps; few enough that all workers end together.
_ITEMS_PER_PART, _MIN_PARTS, _MAX_PARTS = 16, 64, 4096
# A tenth is left for what Ray itself does.
_CPUS_PER_ACTOR = 0.9


@contextmanager
def open_engines(name: EngineName, num_workers: int) -> Iterator[ChooseEngine]:
    """Yield a function that returns an engine; Ray runs from the first one that has parts to the end."""
    with ExitStack() as stack:

        def choose(num_parts: int, num_copies: int | None = None, num_gpus: float = 0.0) -> Engine:
            if name == "datasets" or not num_parts:
                return Processes(num_workers)
            stack.enter_context(open_ray(num_workers))
            import ray

            require_room(num_copies or 1, "copies of a stage (concurrency)", num_gpus=num_gpus)
            found = ray.cluster_resources()
            room = min(found.get("CPU", 1.0), count_fitting("GPU", found.get("GPU", 0.0), num_gpus))
            return OnRay(min(num_copies or max(int(room), 1), num_parts), _CPUS_PER_ACTOR, num_gpus)

        yield choose


def open_row_parts(folder: Path, meta: Mapping[str, Any], columns: datasets.Features | None = None) -> PartFolder:
    """Open the parts of a data set with `columns`, by default those of a pair; an item has rows and JSON notes."""
    import pyarrow as pa

    row = pa.struct(list(make_arrow_schema(columns or features())))
    schema = pa.schema({"item": pa.string(), "rows": pa.list_(row), "notes": pa.string()})
    return PartFolder(folder, meta, schema, rows_per_group=1)


def choose_size(num_items: int) -> int:
    """Return the number of items in a part."""
    return max(1, -(-num_items // _MAX_PARTS), min(_ITEMS_PER_PART, num_items // _MIN_PARTS))


def write_shards(
    parts: PartFolder, splits: Mapping[str, str], output: Path, columns: datasets.Features | None = None
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Write the rows of the items of `splits`, in their order; return `ShardWriter.counts` and the notes."""
    notes = []
    with ShardWriter(output, columns) as writer:
        for found in parts.iter_ordered(splits):
            notes.append(json.loads(found["notes"]))
            for row in found["rows"]:
                writer.write(splits[found["item"]], row)
    return writer.counts, notes


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
    """Pairs, and hours of each side if they are given, by the columns of every report."""

    def __init__(self) -> None:
        self._tally: defaultdict[tuple[str, ...], Any] = defaultdict(Counter)

    def add(self, row: Mapping[str, Any], hours: Mapping[str, float]) -> None:
        found = self._tally[tuple(str(row.get(name)) for name in COUNTED)]
        found["pairs"] += 1
        for side, value in hours.items():
            found[f"{side}_h"] += value

    @property
    def counts(self) -> list[dict[str, Any]]:
        return [
            dict(zip(COUNTED, key, strict=True)) | {name: round(value, 4) for name, value in found.items()}
            for key, found in sorted(self._tally.items())
        ]


def count_pairs(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    tally = PairTally()
    for split, row in rows:
        tally.add({**row, "split": split}, {})
    return tally.counts


class ShardWriter:
    """Write rows into the shards of a folder; leaving the context without an error replaces the folder's shards."""

    def __init__(self, folder: Path, columns: datasets.Features | None = None):
        self.folder = folder
        self.counts: list[dict[str, Any]] = []
        self._schema = make_arrow_schema(columns or features())
        self._tally = PairTally()
        # By criterion, split, and whether the audio may not be published.
        self._pending: defaultdict[tuple[str, str, bool], list[dict[str, Any]]] = defaultdict(list)
        self._written: Counter[tuple[str, str, bool]] = Counter()
        self._writers: dict[tuple[str, str, bool], Any] = {}
        self._replacement = replace_atomically(folder / "data")

    def __enter__(self) -> Self:
        self._temporary = self._replacement.__enter__()
        self._temporary.mkdir(parents=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        for key in list(self._pending) if kind is None else ():
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
        self._replacement.__exit__(kind, *error)

    def write(self, split: str, row: Mapping[str, Any]) -> None:
        key = (row.get("criterion", ""), split, find_redistribution_block(row) is not None)
        if all(side in row for side in SIDES):
            hours = {side: sum(turn["duration_s"] for turn in row[side]) / 3600 for side in SIDES}
            self._tally.add({"split": split, **row}, hours)
        self._pending[key].append(dict(row))
        if len(self._pending[key]) == _ROWS_PER_GROUP:
            self._flush(key)

    def _flush(self, key: tuple[str, str, bool]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = self._pending.pop(key)
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
