"""Read the rows of a data set of pairs or of dialogues, a block at a time, with their audio left encoded.

Parquet is read in place, by row groups, so that memory does not grow with the number of rows and nothing is
copied to a cache; everything else goes through `datasets`.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from sdiareward.chat_sdiareward import Dialogue
from sdiareward.common.files import hash_json, require_shallow
from sdiareward.common.hub import require_local, split_commit

from .content import Stamp, stamp_file
from .dialogue_folders import holds_dialogues, read_dialogue_folder
from .messages import Form
from .own_forms import PROMPT, join_turns, make_message_feature, make_message_row
from .path_sandbox import holds_recordings
from .schema import SIDES


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

_logger = logging.getLogger(__name__)
DIALOGUE_COLUMNS = ("messages", "turns", "dialogue")
# Enough dialogues to sort by length and to keep an accelerator busy, few enough to hold their encoded audio.
_MAX_BLOCK_ROWS = 512
_MAX_BLOCK_BYTES = 128 * 2**20
_ROWS_READ_AT_ONCE = 16
_MAX_CURSORS = 4
_REMEDY = "get the file again, or build it anew."


class Rows(Protocol):
    num_rows: int
    features: datasets.Features  # Audio left encoded.
    tables: list[Stamp]  # Of the files; the same stamps mean the same rows.
    block_rows: int  # Rows to read at a time.

    def __hash__(self) -> int: ...

    def read(self, numbers: Sequence[int] | np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return columns of the rows with these numbers, which must ascend."""
        ...


def open_rows(path: str | Path, split: str | None = None, name: str | None = None, form: Form | None = None) -> Rows:
    """Open one split of a data set without reading its rows; `split` may be omitted if there is only one."""
    if holds_dialogues(path):
        return _open_folder(path, form)
    found = find_tables(path, split, name)
    return ParquetRows(found) if isinstance(found, list) else ArrowRows(found)


def _load_json(path: str | Path) -> datasets.Dataset:
    import datasets

    _require_shallow(path)
    try:
        # `load_dataset` would report the load to a counter on the network.
        return datasets.Dataset.from_json(str(path))
    # A file without rows leaves `datasets` without a first one.
    except (datasets.exceptions.DatasetGenerationError, StopIteration) as error:
        raise ValueError(
            f"{path}: cannot be read as a table of JSON lines ({_find_cause(error) or 'it has no rows'}); give an "
            "object in each line, or a list of objects, in UTF-8, with forward slashes in paths."
        ) from error


def _require_shallow(path: str | Path) -> None:
    """Raise `ValueError` for a line of JSON at whose depth the reader of `datasets` would end the process."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                require_shallow(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}; flatten or remove it.") from error


def _find_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip()


def find_tables(path: str | Path, split: str | None = None, name: str | None = None) -> list[str] | datasets.Dataset:
    """Return the Parquet files of one split, or load a split of another form; errors are those of `open_rows`."""
    import datasets

    folder, suffix = Path(path), Path(path).suffix
    if suffix in {".json", ".jsonl", ".parquet"}:
        if not folder.is_file():
            raise FileNotFoundError(f"{path}: no such file of rows.")
        return [str(path)] if suffix == ".parquet" else _load_json(path)
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        saved = datasets.load_from_disk(str(path))
        return saved[_choose(split, saved, path)] if isinstance(saved, datasets.DatasetDict) else saved
    if folder.is_file():
        raise ValueError(f"{path}: is no table of rows; give a .parquet, .json or .jsonl file, or a folder of them.")
    builder = make_builder(path, name)
    if builder.name == "audiofolder":
        raise ValueError(
            f"{path}: is a folder of recordings; give a .jsonl or .parquet file of pairs, or a folder of these, "
            f"with the columns {' and '.join(SIDES)}."
        )
    files = builder.config.data_files or builder.info.splits or {}
    named = builder.config.data_files if folder.is_dir() else None
    for file in chain.from_iterable((named or {}).values()):
        if str(file).endswith((".json", ".jsonl")):
            _require_shallow(file)
    # `datasets` also takes slices of splits such as "test[:100]".
    if split is None or not {"[", "+"} & set(split):
        split = _choose(split, files, path)
        if builder.config.data_files and all(str(file).endswith(".parquet") for file in files[split]):
            return list(datasets.DownloadManager().download([str(file) for file in files[split]]))
    # By the names of its files: `datasets` would cache a local folder under its own last name and its card.
    options = {"data_files": {str(key): list(map(str, of_split)) for key, of_split in named.items()}} if named else {}
    plain, commit = split_commit(str(path))
    return datasets.load_dataset(_locate(plain), name, split=split, revision=commit, **options)


def make_builder(path: str | Path, name: str | None = None, **options: Any) -> datasets.DatasetBuilder:
    """Return the builder of a folder or a data set on the Hub, and require the commit that its name has."""
    import datasets

    plain, commit = split_commit(str(path))
    require_local(plain)
    try:
        builder = datasets.load_dataset_builder(_locate(plain), name, revision=commit, **options)
    except RecursionError as error:
        raise ValueError(f"{path}: its card is nested too deeply; remove its README.md.") from error
    if commit and commit not in str(builder.config.data_files):
        raise ValueError(f"{path}: the Hub cannot be reached, and the cache holds no revisions; give a local folder.")
    return builder


def _locate(name: str) -> str:
    # With a dot: of `NAME`, `datasets` takes `NAME/NAME.py` for a script, and `json` for its own reader.
    return f"{name}/." if Path(name).is_dir() else name


def load_tables(found: list[str] | datasets.Dataset) -> datasets.Dataset:
    """Return the result of `find_tables` as a data set, which maps its rows into memory."""
    import datasets

    if not isinstance(found, list):
        return found
    # `datasets` identifies files by path and time: a file unpacked in place of another may have its time.
    state = hash_json([stamp_file(file) for file in found])[:16]
    cache_dir = f"{datasets.config.HF_DATASETS_CACHE}/pairs-{state}"
    try:
        return datasets.Dataset.from_parquet(found, cache_dir=cache_dir)
    except datasets.exceptions.DatasetGenerationError as error:
        raise ValueError(f"{found[0]}: cannot be read as a table ({_find_cause(error)}), or has no rows.") from error


def _choose(split: str | None, known: Mapping[Any, Any], path: str | Path) -> str:
    names = sorted(map(str, known))
    if split is None and len(names) == 1:
        return names[0]
    if split not in names:
        raise ValueError(f"{path}: split is {split!r}; this data set has {', '.join(names)}: give one of them.")
    return split


def leave_audio_encoded(features: Any) -> Any:
    """Return `features` with `decode=False` in every `datasets.Audio`, and texts that are views as texts."""
    import datasets

    if isinstance(features, datasets.Audio):
        return datasets.Audio(sampling_rate=features.sampling_rate, decode=False)
    if isinstance(features, datasets.Value):
        return datasets.Value(features.dtype.removesuffix("_view"))
    if isinstance(features, datasets.List):
        return datasets.List(leave_audio_encoded(features.feature))
    if isinstance(features, Mapping):
        columns = {key: leave_audio_encoded(value) for key, value in features.items()}
        return datasets.Features(columns) if isinstance(features, datasets.Features) else columns
    return features


class ArrowRows:
    block_rows = _MAX_BLOCK_ROWS

    def __init__(self, dataset: datasets.Dataset):
        # As Arrow tables: as Python objects, recordings would be decoded, and whole rows read for one column.
        self._dataset = dataset.with_format("arrow")
        self.num_rows = len(dataset)
        self.features = leave_audio_encoded(dataset.features)
        self.tables = [stamp_file(file["filename"]) for file in dataset.cache_files]

    def read(self, numbers: Sequence[int] | np.ndarray, columns: Sequence[str]) -> pa.Table:
        return self._dataset.select_columns(list(columns))[list(numbers)]


class MessageRows:
    """Dialogues by number as `rows.Rows`, with the columns `id` and `messages`."""

    block_rows = 512

    def __init__(self, ids: Sequence[str], read: Callable[[int], list[dict[str, Any]]]):
        import datasets

        self._ids = ids
        self._read = read
        self.num_rows = len(ids)
        self.tables: list[Stamp] = []
        self.features = datasets.Features({"id": datasets.Value("string"), "messages": make_message_feature()})

    def read(self, numbers: Sequence[int] | np.ndarray, columns: Sequence[str]) -> pa.Table:
        import datasets
        import pyarrow as pa

        schema = datasets.Features({name: self.features[name] for name in columns}).arrow_schema
        rows = [{name: self._read_value(int(number), name) for name in columns} for number in numbers]
        return pa.Table.from_pylist(rows, schema=schema)

    def _read_value(self, number: int, column: str) -> Any:
        return self._ids[number] if column == "id" else list(map(make_message_row, self._read(number)))


def _open_folder(folder: str | Path, form: Form | None = None) -> MessageRows:
    """Open a folder of dialogues as rows; a malformed dialogue is logged, and has no turns."""
    found = read_dialogue_folder(folder, form=form)
    for name, reason in found.skipped.items():
        _logger.warning("%s: %s: %s", folder, name, reason)
    names = [*found.dialogues, *found.skipped]
    empty = Dialogue((), is_whole=False)
    return MessageRows(names, lambda number: found.dialogues.get(names[number], empty).to_messages())


class _Cursor(NamedTuple):
    """A row group that is read forwards: the batches to come, the last one, and the number of its first row."""

    place: tuple[int, tuple[str, ...]]
    batches: Iterator[tuple[int, pa.RecordBatch]]
    first: int
    batch: Any


class ParquetRows:
    """Rows of Parquet files. Ascending numbers, or a few such sequences in turn, read every row once."""

    def __init__(self, files: Sequence[str]):
        self._groups: list[tuple[str, int]] = []
        sizes, num_bytes, names = [], 0, []
        self.tables = [stamp_file(file) for file in files]
        for file in files:
            features, groups = _describe(file)
            names.append(list(features))
            if set(names[-1]) != set(names[0]):
                raise ValueError(f"{file}: has columns {names[-1]} but {files[0]} {names[0]}; give files of one kind.")
            if file == files[0]:
                self.features = leave_audio_encoded(features)
            self._groups += [(file, index) for index in range(len(groups))]
            sizes += [num_rows for num_rows, _ in groups]
            num_bytes += sum(size for _, size in groups)
        # The first row of each row group, and the end of the last.
        self._starts = list(accumulate(sizes, initial=0))
        self.num_rows = self._starts[-1]
        rows_in_budget = _MAX_BLOCK_BYTES * self.num_rows // max(num_bytes, 1)
        self.block_rows = min(max(rows_in_budget, _ROWS_READ_AT_ONCE), _MAX_BLOCK_ROWS)
        self._cursors: list[_Cursor] = []

    def read(self, numbers: Sequence[int] | np.ndarray, columns: Sequence[str]) -> pa.Table:
        import pyarrow as pa

        pieces, wanted = [], np.asarray(numbers, dtype=np.int64)
        if not wanted.size:
            return self.read([0], columns).slice(0, 0)
        while wanted.size:
            first, batch = self._find_batch(int(wanted[0]), tuple(columns))
            inside = wanted[wanted < first + batch.num_rows]
            pieces.append(pa.Table.from_batches([batch.take(pa.array(inside - first))]))
            wanted = wanted[inside.size :]
        return pa.concat_tables(pieces, promote_options="permissive")

    def _find_batch(self, number: int, columns: tuple[str, ...]) -> tuple[int, pa.RecordBatch]:
        """Return the batch that holds a row, and the number of its first row."""
        if not 0 <= number < self.num_rows:
            raise IndexError(f"row {number} of {self.num_rows}")
        place = (bisect_right(self._starts, number) - 1, columns)
        # The one that skips the fewest rows: another may be where the next row of a second sequence is.
        before = [each for each in self._cursors if each.place == place and each.first <= number]
        cursor = max(before, key=lambda each: each.first, default=None)
        cursor = cursor or _Cursor(place, self._iter_group(*place), -1, None)
        others = [each for each in self._cursors if each is not cursor]
        while cursor.batch is None or number >= cursor.first + cursor.batch.num_rows:
            if (found := next(cursor.batches, None)) is None:
                file, index = self._groups[place[0]]
                raise ValueError(f"{file}: row group {index} ends before row {number}; {_REMEDY}")
            cursor = _Cursor(place, cursor.batches, *found)
        self._cursors = [*others, cursor][-_MAX_CURSORS:]
        return cursor.first, cursor.batch

    def _iter_group(self, group: int, columns: tuple[str, ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
        import datasets
        import pyarrow.parquet as pq

        file, index = self._groups[group]
        first = self._starts[group]
        # Buffered, or the whole row group would be in memory at once.
        with _read_as_parquet(file), pq.ParquetFile(file, buffer_size=2**20, pre_buffer=False) as table:
            for batch in table.iter_batches(_ROWS_READ_AT_ONCE, row_groups=[index], columns=list(columns)):
                if "_view" in str(batch.schema):  # Which pyarrow cannot take rows from.
                    batch = batch.cast(datasets.Features({name: self.features[name] for name in columns}).arrow_schema)
                yield first, batch
                first += batch.num_rows


@contextmanager
def _read_as_parquet(file: str) -> Iterator[None]:
    """Name the file in errors of pyarrow and `datasets`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # Of the system, such as that there is no such file.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{file}: cannot be read as Parquet ({type(error).__name__}: {reason}); {_REMEDY}") from error


def _describe(file: str) -> tuple[datasets.Features, list[tuple[int, int]]]:
    """Return the columns of a Parquet file, and the rows and bytes of each row group."""
    import datasets
    import pyarrow.parquet as pq

    with _read_as_parquet(file), pq.ParquetFile(file) as table:
        features = datasets.Features.from_arrow_schema(table.schema_arrow)
        groups = [table.metadata.row_group(index) for index in range(table.metadata.num_row_groups)]
        return features, [(group.num_rows, group.total_byte_size) for group in groups]


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
        return {side: join_turns(row[side], row.get(PROMPT)) for side in self.sides}

    @property
    def criteria(self) -> list[str | None]:
        if "criterion" not in self.table.column_names:
            return [None] * len(self.numbers)
        return list(self.table.column("criterion").to_pylist())


def read_block(rows: Rows, numbers: np.ndarray, sides: Sequence[str]) -> Block:
    import datasets

    shared = {PROMPT} & set(rows.features) if tuple(sides) == SIDES else set()
    table = rows.read(numbers, [*sides, *shared, *({"criterion"} & set(rows.features))])
    features = datasets.Features({name: rows.features[name] for name in (*sides, *shared)})
    return Block(numbers, table, features, _have_recordings(rows, tuple(features)))


@lru_cache(maxsize=4)
def _have_recordings(rows: Rows, columns: tuple[str, ...]) -> bool:
    """Read rows until one has a recording; a rerun, which reads the skipped rows alone, has to find the same."""
    starts = range(0, rows.num_rows, _ROWS_READ_AT_ONCE)
    for start in starts:
        table = rows.read(range(start, min(start + _ROWS_READ_AT_ONCE, rows.num_rows)), columns)
        try:
            if any(holds_recordings(table, column) for column in columns):
                return True
        except ValueError as error:
            raise ValueError(f"in rows {start} to {start + table.num_rows - 1}: {error}; remove that row.") from error
    return False
