"""Read the rows of a data set of pairs or of dialogues, a block at a time, with their audio left encoded.

Parquet is read in place, by row groups, so that memory does not grow with the number of rows and nothing is
copied to a cache; everything else goes through `datasets`.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import Clip
from sdiareward.calls.reading import CALLS, CallSettings, count_notices
from sdiareward.chat_sdiareward import Dialogue, DialogueError, make_dialogue
from sdiareward.common.files import require_shallow

from .content import Stamp, stamp_file
from .dialogue_folders import holds_dialogues, read_dialogue_folder
from .loading import (
    COMPLETION,
    DIALOGUE_COLUMNS,
    PROMPT,
    find_tables,
    join_prompt,
    leave_audio_encoded,
    make_message_feature,
    make_message_row,
    name_table,
)
from .path_sandbox import RecordingFinder, iter_recordings
from .schema import SIDES


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

_logger = logging.getLogger(__name__)
# Enough dialogues to sort by length and to keep an accelerator busy, few enough to hold their encoded audio.
_MAX_BLOCK_ROWS = 512
_MAX_BLOCK_BYTES = 128 * 2**20
_ROWS_READ_AT_ONCE = 16


@dataclass(frozen=True, eq=False)
class Rows:
    num_rows: int
    features: datasets.Features  # Audio left encoded.
    read: Callable[[Any, Sequence[str]], pa.Table]  # Columns of the rows with these numbers, which must ascend.
    tables: Sequence[Stamp] = ()  # Of the files; the same stamps mean the same rows.
    block_rows: int = _MAX_BLOCK_ROWS  # To read at a time.


def open_rows(
    path: str | Path,
    split: str | None = None,
    name: str | None = None,
    settings: CallSettings = CALLS,
    user_turns: str | Path | None = None,
) -> Rows:
    """Open one split of a data set without reading its rows; `split` may be omitted if there is only one.

    A malformed dialogue of a folder is logged, and has no turns. With `user_turns` the folder has the answers alone.
    """
    if user_turns is not None or holds_dialogues(path, settings):
        found = read_dialogue_folder(path, user_turns=user_turns, settings=settings)
        skipped = [f"{dialogue}: {reason}" for dialogue, reason in found.skipped.items()]
        for line in (*count_notices(found.calls), *skipped):
            _logger.warning("%s: %s", path, line)
        names, empty = [*found.dialogues, *found.skipped], Dialogue((), is_whole=False)
        return open_messages(names, lambda number: found.dialogues.get(names[number], empty).to_messages())
    tables = find_tables(path, split, name)
    if isinstance(tables, list):
        return _open_parquet(tables)
    # As Arrow tables: as Python objects, recordings would be decoded, and whole rows read for one column.
    arrow = tables.with_format("arrow")
    return Rows(
        len(tables),
        leave_audio_encoded(tables.features),
        lambda numbers, columns: arrow.select_columns(list(columns))[list(numbers)],
        [stamp_file(file["filename"]) for file in tables.cache_files],
    )


def open_messages(ids: Sequence[str], read: Callable[[int], list[dict[str, Any]]]) -> Rows:
    """Return dialogues by number as rows with the columns `id` and `messages`."""
    import datasets
    import pyarrow as pa

    features = datasets.Features({"id": datasets.Value("string"), "messages": make_message_feature()})
    values: dict[str, Callable[[int], Any]] = {
        "id": lambda number: ids[number],
        "messages": lambda number: list(map(make_message_row, read(number))),
    }

    def read_rows(numbers: Any, columns: Sequence[str]) -> pa.Table:
        schema = datasets.Features({name: features[name] for name in columns}).arrow_schema
        rows = [{name: values[name](int(number)) for name in columns} for number in numbers]
        return pa.Table.from_pylist(rows, schema=schema)

    return Rows(len(ids), features, read_rows)


def _open_parquet(files: Sequence[str]) -> Rows:
    import datasets
    import pyarrow.parquet as pq

    columns, groups, sizes = {}, [], []
    for file in files:
        with name_table(file), pq.ParquetFile(file) as table:
            columns[file] = datasets.Features.from_arrow_schema(table.schema_arrow)
            found = [table.metadata.row_group(index) for index in range(table.metadata.num_row_groups)]
        if set(columns[file]) != set(columns[files[0]]):
            raise ValueError(f"{file}: has columns {list(columns[file])}, {files[0]} has {list(columns[files[0]])}.")
        groups += [(file, index) for index in range(len(found))]
        sizes += [(group.num_rows, group.total_byte_size) for group in found]
    starts = list(accumulate((num_rows for num_rows, _ in sizes), initial=0))
    if not starts[-1]:
        raise ValueError(f"{files[0]}: has no rows.")
    features = leave_audio_encoded(columns[files[0]])
    rows_in_budget = _MAX_BLOCK_BYTES * starts[-1] // max(sum(num_bytes for _, num_bytes in sizes), 1)
    block_rows = min(max(rows_in_budget, _ROWS_READ_AT_ONCE), _MAX_BLOCK_ROWS)
    reader = _ParquetReader(groups, starts, features)
    return Rows(starts[-1], features, reader.read, [stamp_file(file) for file in files], block_rows)


@dataclass
class _ParquetReader:
    """Reads Parquet in place. Ascending numbers read every row once; other numbers begin their row group again."""

    groups: list[tuple[str, int]]  # File, and number of the row group in it.
    starts: list[int]  # The first row of each row group, and the end of the last.
    features: datasets.Features
    # By columns: batches to come, number of the first row of the last one, and that batch.
    cursors: dict[tuple[str, ...], tuple[Iterator[Any], int, pa.RecordBatch]] = field(default_factory=dict)

    def read(self, numbers: Any, columns: Sequence[str]) -> pa.Table:
        import pyarrow as pa

        pieces, wanted = [], np.asarray(numbers, dtype=np.int64)
        while wanted.size:
            first, batch = self._find_batch(int(wanted[0]), tuple(columns))
            inside = wanted[wanted < first + batch.num_rows]
            pieces.append(pa.Table.from_batches([batch.take(pa.array(inside - first))]))
            wanted = wanted[inside.size :]
        return pa.concat_tables(pieces, promote_options="permissive")

    def _find_batch(self, number: int, columns: tuple[str, ...]) -> tuple[int, pa.RecordBatch]:
        """Return the batch that holds a row, and the number of its first row."""
        if not 0 <= number < self.starts[-1]:
            raise IndexError(f"row {number} of {self.starts[-1]}")
        group = bisect_right(self.starts, number) - 1
        batches, first, batch = self.cursors.get(columns, (iter(()), -1, None))
        if batch is None or not self.starts[group] <= first <= number:
            batches = self._iter_group(group, columns)
            first, batch = next(batches)
        while number >= first + batch.num_rows:
            first, batch = next(batches)
        self.cursors[columns] = batches, first, batch
        return first, batch

    def _iter_group(self, group: int, columns: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
        import datasets
        import pyarrow.parquet as pq

        file, index = self.groups[group]
        first = self.starts[group]
        # Buffered, or the whole row group would be in memory at once.
        with name_table(file), pq.ParquetFile(file, buffer_size=2**20, pre_buffer=False) as table:
            for batch in table.iter_batches(_ROWS_READ_AT_ONCE, row_groups=[index], columns=list(columns)):
                if "_view" in str(batch.schema):  # Which pyarrow cannot take rows from.
                    batch = batch.cast(datasets.Features({name: self.features[name] for name in columns}).arrow_schema)
                yield first, batch
                first += batch.num_rows
            raise ValueError(f"row group {index} ends early")


def find_dialogue_columns(columns: Iterable[str], name: str) -> tuple[str, ...]:
    if set(SIDES) <= set(columns):
        return SIDES
    found = next((column for column in DIALOGUE_COLUMNS if column in columns), None)
    if found is None:
        wanted = f"{' and '.join(SIDES)}, or one of {', '.join(DIALOGUE_COLUMNS)}"
        raise ValueError(f"{name}: has columns {list(columns)}; give {wanted}.")
    return (found,)


@dataclass(frozen=True)
class Block:
    numbers: np.ndarray  # In the data set, ascending.
    table: pa.Table  # Also `criterion` if the data set has it.
    features: datasets.Features  # Of dialogues, and of the beginning that pairs share.
    has_recordings: bool  # Of all rows.

    @property
    def sides(self) -> list[str]:
        return [name for name in self.features if name != PROMPT]

    def __getitem__(self, position: int) -> dict[str, Any]:
        # `datasets` keeps content of mixed kinds as JSON, which its features decode.
        row = {name: self.table.column(name)[position].as_py() for name in self.features}
        for text in filter(lambda value: isinstance(value, str), row.values()):
            require_shallow(text)
        row = self.features.decode_example(row)
        return {side: join_prompt(row[side], row.get(PROMPT)) for side in self.sides}

    @property
    def criteria(self) -> list[str | None]:
        if "criterion" not in self.table.column_names:
            return [None] * len(self.numbers)
        return list(self.table.column("criterion").to_pylist())


def read_block(rows: Rows, numbers: np.ndarray, sides: Sequence[str]) -> Block:
    import datasets

    shared = {PROMPT} & set(rows.features) if tuple(sides) in (SIDES, (COMPLETION,)) else set()
    table = rows.read(numbers, [*sides, *shared, *({"criterion"} & set(rows.features))])
    features = datasets.Features({name: rows.features[name] for name in (*sides, *shared)})
    return Block(numbers, table, features, _have_recordings(rows, tuple(features)))


@lru_cache(maxsize=4)
def _have_recordings(rows: Rows, columns: tuple[str, ...]) -> bool:
    """Read rows until one has a recording; a rerun, which reads the skipped rows alone, has to find the same."""
    for start in range(0, rows.num_rows, _ROWS_READ_AT_ONCE):
        end = min(start + _ROWS_READ_AT_ONCE, rows.num_rows)
        table = rows.read(range(start, end), columns)
        try:
            if any(True for column in columns for _ in iter_recordings(table.column(column), column)):
                return True
        except ValueError as error:
            raise ValueError(f"in rows {start} to {end - 1}: {error}; remove that row.") from error
    return False


class Dialogues(Sequence[Dialogue]):
    """The dialogues of some rows, read and checked on access; one block is kept.

    Number `i` is side `i % num_sides` of row `i // num_sides`.
    """

    def __init__(
        self, rows: Any, numbers: Sequence[int], sides: Sequence[str] = SIDES, finder: RecordingFinder | None = None
    ):
        self._rows = rows
        self._numbers = numbers
        self._sides = sides
        self._finder = finder or Clip
        self._kept: dict[int, Dialogue] = {}

    @cached_property
    def _has_recordings(self) -> bool:
        """Whether any of the data, not of these rows alone, are spoken."""
        if isinstance(self._rows, Block):
            return self._rows.has_recordings
        data = self._rows.data
        return any(True for side in self._sides for _ in iter_recordings(data.column(side), side))

    def __len__(self) -> int:
        return len(self._sides) * len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"dialogue {index} of {len(self)}")
        if index in self._kept:
            return self._kept[index]
        position, side = divmod(index, len(self._sides))
        dialogue = make_dialogue(self._rows[self._numbers[position]][self._sides[side]], find=self._finder)
        spoken = [turn.audio is not None for turn in dialogue.turns]
        if not all(spoken) and (any(spoken) or self._has_recordings):
            raise DialogueError("has no recording, in data that have recordings.", spoken.index(False) + 1)
        if isinstance(self._rows, Block):
            self._kept[index] = dialogue
        return dialogue
