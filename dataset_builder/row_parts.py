"""The rows that a killed run has made, in parts: for each item its rows, with audio, and JSON notes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.parts import PartFolder
from sdiareward.pairs.schema import features, make_arrow_schema

from .formats.shards import ShardWriter


if TYPE_CHECKING:
    import datasets

# A kill costs at most a part; all of them are open at once when the shards are written.
_PARTS = 200


def open_row_parts(folder: Path, meta: Mapping[str, Any], columns: datasets.Features | None = None) -> PartFolder:
    """Open the parts of a data set with `columns`, by default those of a pair."""
    import pyarrow as pa

    row = pa.struct(list(make_arrow_schema(columns or features())))
    schema = pa.schema({"item": pa.string(), "rows": pa.list_(row), "notes": pa.string()})
    return PartFolder(folder, meta, schema)


def choose_size(num_items: int) -> int:
    """Return the number of items in a part."""
    return max(1, num_items // _PARTS)


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
