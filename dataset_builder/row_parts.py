"""Rows of a data set, made in parts: the engines that make them, and the shards that they become."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from sdiareward.common.machine import count_fitting, open_ray, require_room
from sdiareward.common.parts import Engine, OnRay, PartFolder, Processes
from sdiareward.pairs.schema import features, make_arrow_schema

from .shards import ShardWriter


if TYPE_CHECKING:
    import datasets

EngineName = Literal["datasets", "ray"]
# Takes the number of parts, copies (None: as many as there is room for), and GPUs of each.
ChooseEngine = Callable[[int, int | None, float], Engine]
# Neighbours often need the same speech, which a worker keeps; few enough that all workers end together.
_ITEMS_PER_PART, _MIN_PARTS, _MAX_PARTS = 16, 64, 4096
# A tenth is left for what Ray itself does.
_CPUS_PER_ACTOR = 0.9


def require_engine(name: str, num_workers: int) -> None:
    if name not in get_args(EngineName):
        raise ValueError(f"engine is {name!r}; it must be 'datasets' or 'ray'.")
    if num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}; it must be at least 1.")


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
