"""Do long work in parts, so that a killed run resumes.

The output folder has one Parquet file per finished part, and `parts/meta.json` with everything the rows depend on
besides the items. Each row names its `item`, usually with a digest of its content. A rerun makes the rows of new and
changed items; the newest row of an item counts. A kill costs only the parts in progress.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .files import read_json_object, replace_atomically, write_file


if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)
# Several accelerator batches.
_MIN_ITEMS, _MAX_PARTS = 64, 1000
_OPEN_GROUPS = 4

Items = Sequence[Any]
Rows = list[dict[str, Any]]
# From parts (sequences of items) to the rows of each; an iterator, so that the next part can be read meanwhile.
Make = Callable[[Iterable[Items]], Iterable[Rows]]
# Loads the model or other resources in the process that works; must pickle for engines with other processes.
Load = Callable[[], Make]
Engine = Callable[[Load, Sequence[Items]], Iterator[tuple[int, Rows]]]


class PartFolder:
    """The finished parts of a run; the first part writes `meta`, and a run with another `meta` is refused.

    `writing` holds options of `pyarrow.parquet.write_table`.
    """

    def __init__(
        self,
        folder: str | Path,
        meta: Mapping[str, Any],
        schema: pa.Schema | None = None,
        *,
        rows_per_group: int | None = None,  # Choose few if rows are large; `iter_ordered` reads whole groups.
        **writing: Any,
    ):
        self.folder = Path(folder) / "parts"
        self._rows_per_group = rows_per_group
        self._meta = json.loads(json.dumps(meta))
        self._schema = schema
        self._writing = writing
        self._claim_path = self.folder / "meta.json"
        if self._claim_path.exists():
            before = read_json_object(self._claim_path, "use another output_dir or delete it")
            different = [name for name in {**before, **self._meta} if before.get(name) != self._meta.get(name)]
            if different:
                changes = "; ".join(f"{key} was {before.get(key)!r}, is {self._meta.get(key)!r}" for key in different)
                found = f"{folder} has results of another run ({changes})"
                raise ValueError(f"{found}; use another output_dir or delete it.")
        # Newest rows first.
        self._paths = [path for path in sorted(self.folder.glob("part-*.parquet"), reverse=True) if is_whole(path)]
        self._next = max((int(path.stem.partition("-")[2]) for path in self._paths), default=-1) + 1

    def __len__(self) -> int:
        return len(self._paths)

    def write(self, number: int, rows: Rows) -> None:
        """Write the part with this number of this run."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._claim_path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            # Every process of a run writes this file.
            write_file(self._claim_path, json.dumps(self._meta, indent=2) + "\n", is_shared=True)
        path = self.folder / f"part-{self._next + number:06d}.parquet"
        # Without a schema, pyarrow would take the columns of the first row.
        names = self._schema.names if self._schema else {name: None for row in rows for name in row}
        columns = {name: [row.get(name) for row in rows] for name in names}
        table = pa.table(columns, schema=self._schema)
        with replace_atomically(path, is_shared=True) as temporary:
            options = {"row_group_size": self._rows_per_group, "write_page_checksum": True, **self._writing}
            pq.write_table(table, temporary, **options)
        self._paths.insert(0, path)

    def iter_tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the newest row of each item, part by part, the last part first."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        seen: set[Any] = set()
        for path in sorted(self._paths, reverse=True):
            wanted = None if columns is None else ["item", *columns]
            # This part may lack columns of other parts.
            known = set(pq.read_schema(path).names)
            table = pq.read_table(path, columns=wanted and [name for name in wanted if name in known])
            items = table["item"].to_pylist()
            is_new = [item not in seen for item in items]
            seen.update(items)
            yield table if all(is_new) else table.filter(pa.array(is_new))

    def read(self, columns: Sequence[str] | None = None) -> pa.Table | None:
        """Return the newest row of each item; None before the first part."""
        import pyarrow as pa

        tables = [table for table in self.iter_tables(columns) if table.num_rows]
        return pa.concat_tables(tables, promote_options="permissive") if tables else None

    def iter_rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        for table in self.iter_tables(columns):
            yield from table.to_pylist()

    def iter_ordered(self, items: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Yield the newest row of each item in the order of `items`, with a few groups of rows in memory."""
        import pyarrow.parquet as pq

        @lru_cache(_OPEN_GROUPS)
        def read_group(path: Path, group: int) -> Rows:
            with pq.ParquetFile(path) as file:
                rows: Rows = file.read_row_group(group, use_threads=False).to_pylist()
                return rows

        places: dict[Any, tuple[Path, int, int]] = {}
        for path in sorted(self._paths):
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    found = file.read_row_group(group, columns=["item"], use_threads=False)["item"].to_pylist()
                    places |= {item: (path, group, place) for place, item in enumerate(found)}
        for path, group, place in (places[item] for item in items if item in places):
            yield read_group(path, group)[place]

    def find_pending(
        self, items: Iterable[Any], has_changed: Callable[[Rows], Iterable[bool]] | None = None, *columns: str
    ) -> list[Any]:
        """Return the items without a row, or with a row that `has_changed`; it gets rows with these columns."""
        wanted = set(items)
        kept: set[Any] = set()
        for table in self.iter_tables(columns):
            rows = [row for row in table.to_pylist() if row["item"] in wanted]
            changed = has_changed(rows) if has_changed else [False] * len(rows)
            kept.update(row["item"] for row, is_changed in zip(rows, changed, strict=True) if not is_changed)
        return [item for item in items if item not in kept]


def choose_size(num_items: int) -> int:
    """Return the number of scored items per part: a kill costs little, and a million items make a thousand files."""
    return max(_MIN_ITEMS, num_items // _MAX_PARTS)


def is_whole(path: Path) -> bool:
    """Return whether a part can be read; log a damaged one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for _ in file.iter_batches(use_threads=False):
                pass
    except (pa.ArrowException, OSError) as error:
        logger.warning("%s: damaged (%s); its rows are computed again.", path, " ".join(str(error).split())[:200])
        return False
    return True


def run_parts(
    folder: PartFolder, pending: Items, load: Load, size: int, engine: Engine | None = None, *, label: str, unit: str
) -> float:
    """Make the rows of pending items and write each finished part; return the time in seconds."""
    from tqdm.auto import tqdm

    start = time.perf_counter()
    if len(pending):
        parts = [pending[first : first + size] for first in range(0, len(pending), size)]
        with tqdm(total=len(pending), unit=unit, desc=label, smoothing=0.02) as bar:
            for number, rows in (engine or run_here)(load, parts):
                folder.write(number, rows)
                bar.update(len(parts[number]))
    return time.perf_counter() - start


def run_here(load: Load, parts: Sequence[Items]) -> Iterator[tuple[int, Rows]]:
    """Make the parts one by one in this process."""
    yield from enumerate(load()(parts))


@dataclass(frozen=True)
class Processes:
    """The engine that makes parts in worker processes of this machine."""

    num_workers: int

    def __call__(self, load: Load, parts: Sequence[Items]) -> Iterator[tuple[int, Rows]]:
        """Yield each finished part; after an error, running parts finish and waiting parts are cancelled."""
        if self.num_workers <= 1 or len(parts) <= 1:
            yield from run_here(load, parts)
            return
        # A fork would keep locks of the synthesizers' threads.
        context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        pool = ProcessPoolExecutor(self.num_workers, context, initializer=_start_worker, initargs=(load,))
        try:
            futures = {pool.submit(_make_part, part): number for number, part in enumerate(parts)}
            for future in as_completed(futures):
                yield futures.pop(future), future.result()
        except BrokenProcessPool as error:
            reason = "a worker process was killed, perhaps because memory ran out"
            raise UserError(f"{reason}; lower num_workers and run the same command again to resume.") from error
        finally:
            pool.shutdown(cancel_futures=True)


_WORKER: dict[str, Make] = {}


def _start_worker(load: Load) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _WORKER["make"] = load()


def _end_with_parent() -> None:
    """End this worker with its parent: it has both ends of the queue and would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make_part(part: Items) -> Rows:
    (rows,) = _WORKER["make"]([part])
    return rows


@dataclass(frozen=True)
class OnRay:
    """The engine that makes parts in `num_actors` actors on the connected Ray cluster."""

    num_actors: int
    num_cpus: float = 1.0  # Per actor.
    num_gpus: float = 0.0

    def __call__(self, load: Load, parts: Sequence[Items]) -> Iterator[tuple[int, Rows]]:
        """Yield each finished part; if a node dies, Ray restarts its actors and tasks elsewhere."""
        import ray

        blocks = [{"number": number, "part": _Box(part)} for number, part in enumerate(parts)]
        found = ray.data.from_items(blocks, override_num_blocks=len(blocks)).map(
            _Actor,  # type: ignore[arg-type]  # Annotated for functions only.
            fn_constructor_args=(load, os.getcwd()),
            compute=ray.data.ActorPoolStrategy(size=self.num_actors),
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
        )
        for row in found.iter_rows():
            if row["error"].content is not None:
                raise row["error"].content
            yield row["number"], row["rows"].content


@dataclass(frozen=True)
class _Box:
    """Protects its content: Ray would turn lists into arrays."""

    content: Any


class _Actor:
    """Makes parts in the driver's working directory; returns errors as results: Ray would wrap them in text."""

    def __init__(self, load: Load, folder: str):
        # Another machine may not have this folder, and may not need it.
        with suppress(OSError):
            os.chdir(folder)
        self._load = load
        self._make: Make | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        rows: Rows = []
        failure: Exception | None = None
        try:
            self._make = self._make or self._load()
            (rows,) = self._make([row["part"].content])
        except (UserError, ValueError, OSError) as error:
            failure = error
        return {"number": row["number"], "rows": _Box(rows), "error": _Box(failure)}
