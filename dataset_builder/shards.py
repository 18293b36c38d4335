"""The rows of a data set: made in parts, stored in shards, `data/<criterion>/<split>-NNNNN-of-NNNNN.parquet`.

Memory holds only a few rows, however large the data set. New shards are written beside the old ones and replace them
when all are complete. Pairs whose audio may not be published are in separate shards, the last of a split, because
`sdiareward push` uploads whole shards.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sdiareward.common.files import replace_atomically
from sdiareward.common.machine import count_fitting, open_ray, require_room
from sdiareward.common.parts import Engine, Make, OnRay, PartFolder, Processes, Rows, run_parts
from sdiareward.pairs.schema import SIDES, features, make_arrow_schema

from .licences import find_redistribution_block


if TYPE_CHECKING:
    import datasets

EngineName = Literal["datasets", "ray"]
# From the number of parts, copies (None: as many as fit), and GPUs per copy to an engine.
ChooseEngine = Callable[[int, int | None, float], Engine]
# From an item to its rows and its notes (JSON values); must pickle.
MakeItem = Callable[..., tuple[Rows, dict[str, Any]]]
SPLITS = ("train", "validation", "test")
COUNTED = ("criterion", "split", "subset", "source", "synthesizer")
_HOURS = tuple(f"{side}_h" for side in SIDES)
_ROWS_PER_SHARD, _ROWS_PER_GROUP = 200, 20
# Neighbours often share speech, which a worker caches; few enough that all workers end together.
_ITEMS_PER_PART, _MIN_PARTS, _MAX_PARTS = 16, 64, 4096
# A tenth remains for Ray itself.
_CPUS_PER_ACTOR = 0.9


@contextmanager
def open_engines(name: EngineName, num_workers: int) -> Iterator[ChooseEngine]:
    """Yield a function that returns an engine; Ray starts with the first engine that has parts."""
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


def make_parts(
    folder: Path,
    items: Mapping[str, tuple[Any, ...]],
    make: MakeItem,
    has_changed: Callable[[str, Any], bool] | None = None,
    *,
    num_workers: int,
    engine: EngineName = "datasets",
    columns: datasets.Features | None = None,
    unit: str = "pair",
) -> PartFolder:
    """Make the rows of items without rows or whose notes `has_changed`; a part has rows and notes as JSON."""
    import pyarrow as pa

    row = pa.struct(list(make_arrow_schema(columns or features())))
    schema = pa.schema({"item": pa.string(), "rows": pa.list_(row), "notes": pa.string()})
    parts = PartFolder(folder, {}, schema, rows_per_group=1)

    def have_changed(rows: Rows) -> Iterator[bool]:
        for found in rows:
            yield has_changed is not None and has_changed(found["item"], json.loads(found["notes"]))

    pending = [(name, items[name]) for name in parts.find_pending(items, have_changed, "notes")]
    size = max(1, -(-len(pending) // _MAX_PARTS), min(_ITEMS_PER_PART, len(pending) // _MIN_PARTS))
    with open_engines(engine, num_workers) as choose:
        run = choose(-(-len(pending) // size), None, 0.0)
        run_parts(parts, pending, partial(_load, make), size, run, label=f"{unit}s", unit=unit)
    return parts


def _load(make: MakeItem) -> Make:
    def make_part(name: str, item: tuple[Any, ...]) -> dict[str, Any]:
        rows, notes = make(*item)
        return {"item": name, "rows": rows, "notes": json.dumps(notes)}

    return lambda parts: ([*starmap(make_part, part)] for part in parts)


def write_shards(
    parts: PartFolder, splits: Mapping[str, str], output: Path, columns: datasets.Features | None = None
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Write the rows of the items in `splits`, in order; return their counts and notes."""
    notes = []

    def read() -> Iterator[tuple[str, dict[str, Any]]]:
        for found in parts.iter_ordered(splits):
            notes.append(json.loads(found["notes"]))
            yield from ((splits[found["item"]], row) for row in found["rows"])

    return write_rows(output, read(), columns), notes


def list_paths(folder: Path) -> list[Path]:
    paths = sorted((folder / "data").rglob("*-of-*.parquet"))
    if not paths:
        raise FileNotFoundError(f"{folder}: has no data/<criterion>/<split>-*.parquet; build the data set first.")
    return paths


def read_rows(folder: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield `(split, row)` of every pair; audio is read only if `columns` has turns."""
    for path in list_paths(folder):
        yield from read_shard(path, columns)


def read_shard(path: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow.parquet as pq

    split = path.name.split("-")[0]
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS_PER_GROUP, columns=columns):
            yield from ((split, row) for row in batch.to_pylist())


def count_pairs(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Count pairs, and hours per side if rows have `chosen_h` and `rejected_h`, by the columns of a report."""
    tally: defaultdict[tuple[str, ...], Any] = defaultdict(Counter)
    for split, row in rows:
        found = tally[tuple(str(split if name == "split" else row.get(name)) for name in COUNTED)]
        found["pairs"] += 1
        for name in _HOURS if _HOURS[0] in row else ():
            found[name] += row[name]
    return [
        dict(zip(COUNTED, key, strict=True)) | {name: round(value, 4) for name, value in found.items()}
        for key, found in sorted(tally.items())
    ]


def write_rows(
    folder: Path, rows: Iterable[tuple[str, Mapping[str, Any]]], columns: datasets.Features | None = None
) -> list[dict[str, Any]]:
    """Replace the shards of a folder with new rows; return the counts. An error keeps the old shards."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = make_arrow_schema(columns or features())
    # By criterion, split, and whether publishing is blocked.
    pending: defaultdict[tuple[str, str, bool], list[dict[str, Any]]] = defaultdict(list)
    written: Counter[tuple[str, str, bool]] = Counter()
    files: dict[tuple[str, str, bool], Any] = {}

    def flush(key: tuple[str, str, bool]) -> None:
        number, place = divmod(written[key], _ROWS_PER_SHARD)
        if place == 0:
            criterion, split, is_withheld = key
            (temporary / criterion).mkdir(exist_ok=True)
            path = temporary / criterion / f"{split}-{is_withheld:d}-{number:05d}"
            if key in files:
                files[key].close()
            files[key] = stack.enter_context(pq.ParquetWriter(path, schema))
        written[key] += len(pending[key])
        files[key].write_table(pa.Table.from_pylist(pending.pop(key), schema=schema))

    def write() -> Iterator[tuple[str, dict[str, Any]]]:
        for split, row in rows:
            key = (row.get("criterion", ""), split, find_redistribution_block(row) is not None)
            pending[key].append(dict(row))
            if len(pending[key]) == _ROWS_PER_GROUP:
                flush(key)
            if all(side in row for side in SIDES):
                seconds = (sum(turn["duration_s"] for turn in row[side]) for side in SIDES)
                yield split, {**row, **{name: each / 3600 for name, each in zip(_HOURS, seconds, strict=True)}}
        for key in list(pending):
            flush(key)

    with replace_atomically(folder / "data") as temporary:
        temporary.mkdir(parents=True)
        with ExitStack() as stack:
            counts = count_pairs(write())
        for criterion, split in {key[:2] for key in written}:
            paths = sorted((temporary / criterion).glob(f"{split}-*"))
            for index, path in enumerate(paths):
                path.rename(path.with_name(f"{split}-{index:05d}-of-{len(paths):05d}.parquet"))
        shutil.rmtree(folder / "data", ignore_errors=True)
    return counts
