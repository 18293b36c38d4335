"""Make the rows of a data set in worker processes; each finished part stays on disk, so that a killed run resumes."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sdiareward.common.files import read_sealed, seal, write_file
from sdiareward.common.local_ray import open_ray
from sdiareward.common.user_errors import UserError
from sdiareward.common.worker_pool import open_worker_pool
from sdiareward.pairs.schema import features

from .formats.shards import ShardWriter


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

logger = logging.getLogger(__name__)
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
# Jobs that follow each other often need the same speech, which a worker keeps; few enough that all end together.
_JOBS_IN_A_BLOCK = 16
_BLOCKS_A_WORKER = 8
# Ray Data plans all of them before the first begins.
_MAX_BLOCKS = 4096
# A tenth is left for what Ray itself does.
_CPUS_OF_A_WORKER = 0.9
# At the end of a part, after the Parquet file.
_CHECKSUM_BYTES = 4
# A part of an older version has no checksum.
_PARQUET_END = b"PAR1"


@dataclass(frozen=True)
class PartFolder:
    """A folder of finished parts: for each a Parquet file of its rows, and JSON notes if there are any."""

    folder: Path
    columns: datasets.Features | None = None

    def has(self, name: str) -> bool:
        """Return whether a part is there and whole; one that is damaged is logged, and made again."""
        path, notes = self._make_path(name), self._make_path(name).with_suffix(".json")
        if not path.is_file() or (notes.is_file() and "notes" not in read_sealed(notes)):
            return False
        if not (is_whole := bool(_read_part(path))):
            logger.warning("%s: is damaged; it is made again.", path)
        return is_whole

    def write(self, name: str, rows: Sequence[dict[str, Any]], notes: Any = None) -> None:
        """Write a part: its notes first, because the Parquet file marks it as finished."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._make_path(name).with_suffix(".json")
        if notes:
            write_file(path, seal({"notes": notes}))
        else:
            path.unlink(missing_ok=True)
        stream = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=self._schema), stream)
        content = stream.getvalue().to_pybytes()
        # A job that Ray takes for lost may go on beside its repetition.
        write_file(self._make_path(name), content + _compute_checksum(content), is_shared=True)

    def drop_changed(self, contents: Mapping[str, str | None]) -> None:
        """Remove the parts that were made from something else; a hash of None keeps the part."""
        kept = self.folder / "contents.json"
        before = read_sealed(kept)
        for name, content in contents.items():
            if content is not None and before.get(name) not in (None, content):
                self._make_path(name).unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        known = {name: content for name, content in contents.items() if content is not None}
        write_file(kept, seal({**before, **known}))

    def read_rows(self, name: str) -> list[dict[str, Any]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._make_path(name).is_file():
            return []
        content = pa.BufferReader(_read_part(self._make_path(name)))
        rows: list[dict[str, Any]] = pq.ParquetFile(content).read(use_threads=False).to_pylist()
        return rows

    def read_notes(self, name: str) -> Any:
        path = self._make_path(name)
        return read_sealed(path.with_suffix(".json")).get("notes") if path.is_file() else None

    def write_shards(self, output: Path, splits: Mapping[str, str]) -> list[dict[str, Any]]:
        """Write the rows of finished parts to shards; return `ShardWriter.counts`."""
        with ShardWriter(output, self.columns) as writer:
            for name, split in splits.items():
                for row in self.read_rows(name):
                    writer.write(split, row)
        return writer.counts

    @cached_property
    def _schema(self) -> pa.Schema:
        return (self.columns or features()).arrow_schema

    def _make_path(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"


def _read_part(path: Path) -> bytes:
    """Return the Parquet file, without its checksum; nothing if it is damaged."""
    content = path.read_bytes()
    rows, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    if checksum == _PARQUET_END:
        return content
    return rows if checksum == _compute_checksum(rows) else b""


def _compute_checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "big")


_WORKER: dict[str, Callable[[Any], Any]] = {}


def run_jobs(
    function: Callable[[_Job], _Result], jobs: Sequence[_Job], num_workers: int, description: str
) -> Iterator[_Result]:
    """Yield the result of each job when it is finished; one worker or one job runs in this process."""
    from tqdm import tqdm

    if num_workers <= 1 or len(jobs) <= 1:
        yield from map(function, tqdm(jobs, desc=description))
        return
    with open_worker_pool(num_workers, _start_worker, (function,)) as pool:
        futures = [pool.submit(_run_in_worker, job) for job in jobs]
        for future in tqdm(as_completed(futures), total=len(futures), desc=description):
            yield future.result()


def _start_worker(function: Callable[[Any], Any]) -> None:
    _WORKER["function"] = function


def _run_in_worker(job: Any) -> Any:
    return _WORKER["function"](job)


def run_jobs_on_ray(
    function: Callable[[_Job], _Result], jobs: Sequence[_Job], num_workers: int, description: str
) -> Iterator[_Result]:
    """Yield the result of each job when it is finished, on the cluster of `RAY_ADDRESS` or a Ray started here."""
    from tqdm import tqdm

    if not jobs:
        return
    with open_ray(UserError, "datasets", num_workers):
        import ray

        cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        workers = max(sum(cpus), 1)
        size = choose_block_size(len(jobs), workers)
        # Of a class Ray makes actors; `map` is annotated for functions only.
        worker: Any = _RayWorker
        blocks = [{"block": _Block(jobs[start : start + size])} for start in range(0, len(jobs), size)]
        found = ray.data.from_items(blocks, override_num_blocks=len(blocks)).map(
            worker,
            fn_constructor_args=(function, os.getcwd()),
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers),
            num_cpus=_CPUS_OF_A_WORKER,
        )
        with tqdm(total=len(jobs), desc=description) as bar:
            for row in found.iter_rows():
                yield from row["block"].items
                bar.update(len(row["block"].items))


def choose_block_size(num_jobs: int, num_workers: int) -> int:
    """Return the number of jobs that a Ray worker gets at a time."""
    size = max(_JOBS_IN_A_BLOCK, -(-num_jobs // _MAX_BLOCKS))
    return min(size, -(-num_jobs // (_BLOCKS_A_WORKER * num_workers)))


@dataclass(frozen=True)
class _Block:
    """Several jobs or results in one object: Ray Data would convert a list to an array."""

    items: Sequence[Any]


class _RayWorker:
    """An actor that runs blocks of jobs in the working directory of the process that started it."""

    def __init__(self, function: Callable[[Any], Any], folder: str):
        os.chdir(folder)
        self._function = function

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"block": _Block([self._function(job) for job in row["block"].items])}
