"""Read preference sets of others: a YAML file names their columns of two clips, a text and a human label.

The label prefers the first clip or the second, or calls them a tie. A preferred clip becomes the chosen side, a
dialogue of one turn. Ties have no better side: they are dropped, and read by themselves on request. Recordings are not
copied: both orders of the clips are views of the same Arrow buffers, and a row takes one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.chat_sdiareward import ROLES
from sdiareward.common.files import hash_json
from sdiareward.common.settings import make_settings, read_mapping, require_known, require_mapping

from .schema import SIDES


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

MAPPING_SUFFIXES = (".yaml", ".yml")
_LABEL_COLUMNS = (
    *("pair_id", "criterion", "subset", "source", "primary", "secondary"),
    *("synthesizer", "group_id", "language", "license"),
)


@dataclass(frozen=True)
class ColumnMapping:
    """Where a preference set of others has what a pair needs.

    Args:
        dataset (`str`): Its file, folder or Hub id; a relative path begins at the mapping's folder.
        clips (`tuple[str, str]`): Columns of the first and the second clip: paths, or encoded audio.
        label (`str`): Column of the human label.
        first, second (`str` or `tuple`): Labels that prefer the first and the second clip.
        ties (`str` or `tuple`, *optional*): Labels that prefer neither.
        text (`str`, *optional*): Column of the words that both clips say.
        splits (`Mapping[str, str]`, *optional*): Its names of our splits, where they differ.
        columns (`Mapping[str, str]`, *optional*): Its columns for our labels, such as `pair_id` and `group_id`.

    Raises:
        ValueError: The data set is a mapping, there are not two clips, a label has two meanings or none, or a column
            of ours is unknown.
    """

    dataset: str
    clips: tuple[str, ...]
    label: str
    first: Any
    second: Any
    ties: Any = ()
    text: str | None = None
    splits: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if is_column_mapping(self.dataset):
            raise ValueError(f"dataset is {self.dataset!r}; name the tables, not another mapping.")
        if len(set(self.clips)) != 2:
            raise ValueError(f"clips are {self.clips!r}; give the names of two columns, [FIRST, SECOND].")
        require_mapping(self.splits, "splits")
        require_mapping(self.columns, "columns")
        require_known(self.columns, _LABEL_COLUMNS, "columns")
        meanings = [label for labels in (self.first, self.second, self.ties) for label in _as_labels(labels)]
        if not _as_labels(self.first) or not _as_labels(self.second) or len(meanings) != len(set(meanings)):
            raise ValueError(f"labels are {meanings}; first and second need a label each, and no label two meanings.")

    def choose_rows(self, labels: Sequence[Any], ties: bool) -> list[int]:
        """Return the rows of both orders that are pairs, or, if `ties`, those that are ties, in the first order.

        Args:
            labels (`Sequence`): The human label of each row.
            ties (`bool`): Choose the ties in place of the pairs.

        Raises:
            ValueError: A label is none of the mapping's; the message names the row.
        """
        firsts, seconds, tied = map(_as_labels, (self.first, self.second, self.ties))
        unknown = [row for row, label in enumerate(labels) if str(label) not in firsts + seconds + tied]
        if unknown:
            raise ValueError(
                f"row {unknown[0]}: {self.label} is {labels[unknown[0]]!r:.80}; the mapping has {firsts} (first), "
                f"{seconds} (second) and {tied} (ties): add the label to one of them, or drop the row."
            )
        if ties:
            return [row for row, label in enumerate(labels) if str(label) in tied]
        rows = enumerate(map(str, labels))
        return [row if label in firsts else row + len(labels) for row, label in rows if label not in tied]


def _as_labels(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (tuple, list)) else (str(value),)


def read_column_mapping(path: str | Path) -> ColumnMapping:
    """Read a mapping.

    Args:
        path (`str` or `Path`): The YAML file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not YAML, a key is unknown or missing, or a value is refused.
    """
    file = Path(path)
    return _read(str(file.absolute()), file.stat().st_mtime_ns if file.is_file() else None)


@lru_cache(8)
def _read(path: str, changed_ns: int | None) -> ColumnMapping:
    mapping = make_settings(ColumnMapping, read_mapping(Path(path)), path)
    beside = Path(path).parent / mapping.dataset
    return replace(mapping, dataset=str(beside)) if beside.exists() else mapping


def is_column_mapping(dataset: str | Path) -> bool:
    """Tell whether a data set is given by a mapping of columns."""
    return Path(dataset).suffix in MAPPING_SUFFIXES


def locate_tables(dataset: str | Path) -> str:
    """Return the file, folder or Hub id of a data set: that which a mapping names, else the data set itself."""
    return read_column_mapping(dataset).dataset if is_column_mapping(dataset) else str(dataset)


def map_pairs(source: datasets.Dataset, mapping: ColumnMapping, *, ties: bool = False) -> datasets.Dataset:
    """Return the rows of a preference set as pairs, with the columns of our schema.

    Args:
        source (`datasets.Dataset`): One split.
        mapping ([`ColumnMapping`]): Its columns.
        ties (`bool`, *optional*, defaults to `False`): Return the ties in place of the pairs; their sides are the
            clips in the order of the table.

    Returns:
        `datasets.Dataset`: `chosen` and `rejected` as lists of one turn, audio left encoded, and the labels as texts.

    Raises:
        ValueError: A column is missing or holds no recordings, or a row has an unknown label.
    """
    import datasets
    import pyarrow as pa

    named = [*mapping.clips, mapping.label, *filter(None, [mapping.text]), *mapping.columns.values()]
    if missing := [name for name in named if name not in source.column_names]:
        raise ValueError(f"the mapping names the columns {missing}; the data have {source.column_names}.")
    table = source.with_format("arrow").select_columns(list(dict.fromkeys(named)))[:]
    rows = mapping.choose_rows(table.column(mapping.label).to_pylist(), ties)
    text = datasets.Value("string")
    turns = datasets.List({"role": text, "text": text, "audio": datasets.Audio(decode=False)})
    features = datasets.Features({**dict.fromkeys(SIDES, turns), **dict.fromkeys(mapping.columns, text)})
    batches = [
        _make_batch(batch, mapping, clips)
        for clips in (mapping.clips, mapping.clips[::-1])
        for batch in table.to_batches()
    ]
    views = pa.Table.from_batches(batches, schema=features.arrow_schema)
    # Made of what tells the data apart: by default the recordings would be hashed.
    state = hash_json([source._fingerprint, asdict(mapping), ties])[:16]
    return datasets.Dataset(views, info=datasets.DatasetInfo(features=features), fingerprint=state).select(rows)


def _make_batch(batch: pa.RecordBatch, mapping: ColumnMapping, clips: Sequence[str]) -> pa.RecordBatch:
    """Return the rows with these clips as chosen and rejected side."""
    import pyarrow as pa

    texts = batch.column(mapping.text) if mapping.text else pa.nulls(batch.num_rows)
    sides = [_make_turns(_as_audio(batch.column(name), name), texts.cast(pa.string())) for name in clips]
    labels = [batch.column(name).cast(pa.string()) for name in mapping.columns.values()]
    return pa.RecordBatch.from_arrays([*sides, *labels], names=[*SIDES, *mapping.columns])


def _make_turns(audio: pa.Array, text: pa.Array) -> pa.Array:
    """Return a dialogue of one turn, the assistant's, for each recording."""
    import pyarrow as pa

    role = pa.repeat(pa.scalar(ROLES[1]), len(audio))
    turn = pa.StructArray.from_arrays([role, text, audio], ["role", "text", "audio"])
    return pa.ListArray.from_arrays(pa.array(range(len(audio) + 1), pa.int32()), turn)


def _as_audio(clips: pa.Array, name: str) -> pa.Array:
    """Return recordings as `datasets.Audio` stores them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = {"bytes": pa.binary(), "path": pa.string()}
    if pa.types.is_string(clips.type) or pa.types.is_large_string(clips.type):
        parts = {"path": clips}
    elif pa.types.is_struct(clips.type) and "bytes" in (names := [part.name for part in clips.type]):
        parts = {part: pc.struct_field(clips, part) for part in kinds if part in names}
    else:
        raise ValueError(f"column {name} is {clips.type}; a clip is the path of a recording, or its bytes and path.")
    found = [parts[part].cast(kind) if part in parts else pa.nulls(len(clips), kind) for part, kind in kinds.items()]
    return pa.StructArray.from_arrays(found, list(kinds))
