"""Load preference pairs without decoding: our Parquet, the released SDiaReward form, or custom files.

A side is a list of turns or messages, or one recording: a path, or encoded bytes. The column `prompt`, as in TRL,
holds the beginning that both sides share. A relative path begins at its table, else at the audio root.
"""

from __future__ import annotations

import csv
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import Clip
from sdiareward.chat_sdiareward import AUDIO_KEYS, ROLES, DialogueError, make_dialogue
from sdiareward.common.errors import PairsError, PairsNotFoundError, SplitNotFoundError
from sdiareward.common.files import hash_json, require_shallow
from sdiareward.common.hub import require_local, split_commit

from .content import stamp_file
from .labels import WRITTEN_ID, find_id, hash_sides
from .path_sandbox import find_recording, iter_recordings, list_audio_roots, name_roots, require_inside
from .schema import ID_COLUMNS, SIDES


if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa

PROMPT = "prompt"
# Of a dialogue; `completion`, as in TRL, comes after a prompt.
COMPLETION = "completion"
DIALOGUE_COLUMNS = ("messages", "turns", "dialogue", COMPLETION)
TABLE_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_SEPARATORS = {".csv": ",;\t", ".tsv": "\t"}
_logger = logging.getLogger(__name__)


def choose_split(path: str | Path, split: str | None) -> str | None:
    """Return the split to measure on, by default `"test"`; a file, or one saved split, has no splits."""
    if not Path(path).is_file() and not (Path(path) / "state.json").is_file():
        return split or "test"
    if split is not None:
        raise PairsError(f"{path}: is a single split, which has no other name; omit --split {split}.")
    return None


def name_data(dataset: str, split: str | None) -> str:
    """Return how a title names the pairs."""
    return dataset if split is None else f"{dataset}, split {split}"


def name_pairs(pairs: datasets.Dataset) -> list[str]:
    """Return the `pair_id` or `id` of each pair, or its row number without either."""
    return [name or f"row {row}" for row, name in enumerate(list_ids(pairs, ID_COLUMNS))]


def list_ids(pairs: datasets.Dataset, names: Sequence[str] = (*ID_COLUMNS, WRITTEN_ID)) -> list[str | None]:
    """Return the id of each pair as `labels.find_id` does, from these columns."""
    columns = [name for name in names if name in pairs.column_names]
    rows = zip(*(pairs[name] for name in columns), strict=True)
    return [find_id(dict(zip(columns, row, strict=True))) for row in rows] if columns else [None] * len(pairs)


class Recording(dict[str, Any]):
    """A recording of a row, its `bytes` or `path`; prints as `3.2 s, 16 kHz, FLAC`, and plays in a notebook."""

    def __repr__(self) -> str:
        return repr(Clip(self))

    def _repr_html_(self) -> str:
        return Clip(self)._repr_html_()

    @property
    def array(self) -> np.ndarray:
        """The samples, mono at 16 kHz, as `read_audio` returns them."""
        return Clip(self).read()


def _wrap_recordings(value: Any) -> Any:
    if isinstance(value, Mapping):
        kind = Recording if value.keys() == {"bytes", "path"} and set(value.values()) != {None} else dict
        return kind({name: _wrap_recordings(each) for name, each in value.items()})
    return list(map(_wrap_recordings, value)) if isinstance(value, list) else value


def load_pairs(
    path: str | Path,
    split: str | None = None,
    *,
    name: str | None = None,
    audio_root: str | Path | None = None,
    criterion: str | None = None,
) -> datasets.Dataset:
    """Load one split of preference pairs, paths absolute, with audio left encoded: torchcodec is not needed.

    Args:
        path (`str` or `Path`): Table (CSV, TSV, JSON, JSON lines, Parquet), folder or Hub id of pairs; see
            `docs/data_format.md`.
        split (`str`, *optional*): Split to load; may be omitted if there is only one.
        name (`str`, *optional*): Configuration of the data set.
        audio_root (`str` or `Path`, *optional*): Folder at which relative paths begin that are not beside the table.
        criterion (`str`, *optional*): Criterion of all pairs, in place of the column `criterion`.

    Returns:
        `datasets.Dataset`: Rows with `chosen` and `rejected`, lists of turns or messages. A recording is a mapping
        with `bytes` and `path` that has its samples under `.array`.

    Raises:
        PairsNotFoundError: There is no such file, folder or repository.
        PairsError: It is not a table of pairs, has no such split, or names a recording outside of its folders.

    Examples:
        >>> import json, pathlib, tempfile
        >>> from sdiareward import example_dialogues, load_pairs
        >>> human, synthetic = (dialogue.turns[1].audio.source["path"] for dialogue in example_dialogues())
        >>> table = pathlib.Path(tempfile.mkdtemp(), "pairs.jsonl")
        >>> _ = table.write_text(json.dumps({"chosen": human, "rejected": synthetic}))
        >>> pair = load_pairs(table, audio_root="/")[0]
        >>> pair["chosen"][0]["content"][0]["audio"]
        3.2 s, 16 kHz, FLAC
    """
    import datasets

    try:
        pairs = find_tables(path, split, name)
        if isinstance(pairs, list):
            # `datasets` identifies files by path and time: a file unpacked in place of another may have its time.
            state = hash_json([stamp_file(file) for file in pairs])[:16]
            with name_table(pairs[0]):
                cache_dir = f"{datasets.config.HF_DATASETS_CACHE}/pairs-{state}"
                pairs = datasets.Dataset.from_parquet(pairs, cache_dir=cache_dir)
        if not set(SIDES) <= set(pairs.column_names):
            near = [get_close_matches(side, pairs.column_names, 1) for side in SIDES if side not in pairs.column_names]
            hint = f" (rename {', '.join(match for (match,) in near)}?)" if all(near) else ""
            raise ValueError(f"has columns {pairs.column_names}; a data set of pairs needs {list(SIDES)}{hint}.")
        encoded = leave_audio_encoded(pairs.features)
        # A cast copies the recordings.
        pairs = pairs if encoded == pairs.features else pairs.cast(encoded)
        pairs = _unify_sides(pairs, name_roots(path, audio_root))
        roots = list_audio_roots(path, audio_root)
        for recording in _iter_paths(pairs):
            require_inside(recording, roots)
        if criterion is not None:
            pairs = pairs.remove_columns([each for each in pairs.column_names if each == "criterion"])
            pairs = pairs.add_column("criterion", [criterion] * len(pairs))
    except (FileNotFoundError, ValueError) as error:
        kind = PairsNotFoundError if isinstance(error, FileNotFoundError) else PairsError
        kind = type(error) if isinstance(error, PairsError) else kind
        message = " ".join(str(error).split())
        raise kind(message if message.startswith(str(path)) else f"{path}: {message}") from error
    return pairs.with_transform(_wrap_recordings)


def make_pairs(rows: datasets.Dataset | Sequence[Mapping[str, Any]], name: str = "") -> datasets.Dataset:
    """Return rows in the form of `load_pairs`; relative paths begin at the working directory."""
    import datasets

    pairs = rows if isinstance(rows, datasets.Dataset) else datasets.Dataset.from_list(list(map(dict, rows)))
    if missing := [side for side in SIDES if side not in pairs.column_names]:
        raise PairsError(f"the data set {name}has columns {pairs.column_names}; pairs also need {missing}.")
    encoded = leave_audio_encoded(pairs.features)
    pairs = pairs if encoded == pairs.features else pairs.cast(encoded)
    # The prompt of rows in this form is part of their sides already.
    return pairs if WRITTEN_ID in pairs.column_names else _unify_sides(pairs, [Path.cwd()])


def _iter_paths(pairs: datasets.Dataset) -> Iterator[str]:
    return filter(None, chain.from_iterable(iter_recordings(pairs.data.column(side), side) for side in SIDES))


def _unify_sides(pairs: datasets.Dataset, places: Sequence[Path]) -> datasets.Dataset:
    """Return pairs whose sides are lists of turns with absolute paths; sides in this form are not copied.

    Others get the column `labels.WRITTEN_ID`, so that their ids stay when the table moves with its recordings; if they
    are no lists, they become messages.
    """
    import datasets

    kinds = [pairs.features[side] for side in SIDES]
    for side, kind in zip(SIDES, kinds, strict=True):
        if isinstance(kind, datasets.Value) and not kind.dtype.endswith("string"):
            raise ValueError(f"{side} is {kind.dtype}; give the path of a recording, or a list of turns.")
    is_kept = PROMPT not in pairs.column_names and all(
        isinstance(kind, (datasets.List, datasets.LargeList)) for kind in kinds
    )
    if is_kept and all(map(os.path.isabs, _iter_paths(pairs))):
        return pairs

    def unify(row: dict[str, Any]) -> dict[str, Any]:
        sides = {side: join_prompt(row[side], row.get(PROMPT)) for side in SIDES}
        sides = sides if is_kept else {side: _make_rows(turns) for side, turns in sides.items()}
        placed = {side: _place(turns, side, places) for side, turns in sides.items()}
        return {**placed, WRITTEN_ID: hash_sides(sides)}

    new = {} if is_kept else dict.fromkeys(SIDES, make_message_feature())
    features = datasets.Features({**pairs.features, **new, WRITTEN_ID: datasets.Value("string")})
    # Not from a cache: where a recording is found may have changed.
    return pairs.map(unify, features=features, keep_in_memory=True, load_from_cache_file=False, desc="paths")


def _place(value: Any, key: str, places: Sequence[Path]) -> Any:
    """Return turns or messages with the paths of their recordings absolute."""
    if isinstance(value, list):
        return [_place(each, key, places) for each in value]
    if isinstance(value, Mapping) and value.get("bytes") is None:
        return {name: _place(each, name, places) for name, each in value.items()}
    return find_recording(value, places) if isinstance(value, str) and value and key in AUDIO_KEYS else value


def join_prompt(side: Any, prompt: Any = None) -> Any:
    """Return the turns of a side after its prompt; a single recording is the answer, or in a prompt the question."""
    before, turns = (
        [{"role": role, "audio": value}] if value and isinstance(value, (str, Mapping)) else value
        for role, value in zip(ROLES, (prompt, side), strict=True)
    )
    return [*before, *turns] if isinstance(before, list) and isinstance(turns, list) else turns


def _make_rows(turns: Any) -> list[dict[str, Any]]:
    """Return turns as rows of messages; malformed ones become an empty list, which is refused on use."""
    try:
        return list(map(make_message_row, make_dialogue(turns, is_whole=False).to_messages()))
    except DialogueError as error:
        _logger.warning("a side of a pair is malformed: %s", error)
        return []


def make_message_feature() -> datasets.List:
    import datasets

    text = datasets.Value("string")
    # Not `Audio`: that would decode.
    audio = {"bytes": datasets.Value("binary"), "path": text}
    return datasets.List({"role": text, "content": datasets.List({"type": text, "text": text, "audio": audio})})


def make_message_row(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of `Dialogue.to_messages` with audio as bytes and path."""
    return {"role": message["role"], "content": list(map(_make_item_row, message["content"]))}


def _make_item_row(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "text":
        return item
    audio = item["audio"]
    if isinstance(audio, (str, bytes)):
        audio = {"path" if isinstance(audio, str) else "bytes": audio}
    elif not isinstance(audio, Mapping) or not {"bytes", "path"} & set(audio):
        raise DialogueError(f"its audio is a {type(audio).__name__}; give the path of a recording, or its bytes.")
    return {"type": "audio", "audio": {"bytes": audio.get("bytes"), "path": audio.get("path")}}


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


@contextmanager
def name_table(path: str | Path) -> Iterator[None]:
    """Name a table in errors of pyarrow and `datasets`."""
    import datasets
    import pyarrow as pa

    kinds = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, StopIteration, csv.Error)
    try:
        yield
    except (pa.ArrowException, datasets.exceptions.DatasetGenerationError, *kinds) as error:
        # Of the system, such as that there is no such file.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = " ".join(str(cause).split())[:300]
        wanted = "Parquet, CSV with a header, or JSON lines, an object in each, in UTF-8 with forward slashes in paths"
        raise ValueError(f"{path}: cannot be read as a table, or has no rows ({reason}); give {wanted}.") from error


def _require_shallow(path: str | Path) -> None:
    """Raise `ValueError` for a line of JSON at whose depth the reader of `datasets` would end the process."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                require_shallow(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}; flatten or remove it.") from error


def _read_delimited(paths: Sequence[str | Path]) -> datasets.Dataset:
    """Read CSV or TSV files with a header; every cell is text, and an empty one is null."""
    import datasets
    import pyarrow as pa

    tables = []
    for path in paths:
        with name_table(path), open(path, newline="", encoding="utf-8-sig") as lines:
            header = lines.readline()
            lines.seek(0)
            # Where the comma is the decimal sign, spreadsheets write semicolons.
            reader = csv.DictReader(
                lines, delimiter=max(_SEPARATORS[Path(path).suffix], key=header.count), strict=True
            )
            rows = list(reader)
            names = [name for name in reader.fieldnames or () if name]
            if not rows or len(set(names)) < len(names):
                raise ValueError(f"its header is {names}; each column needs its own name, and rows follow it")
            if long := next((number for number, row in enumerate(rows, start=1) if None in row), None):
                raise ValueError(f"row {long} has more cells than the header; quote a cell that has the separator")
            columns = {name: pa.array([row[name] or None for row in rows], pa.string()) for name in names}
            tables.append(pa.table({name: _parse_turns(name, column) for name, column in columns.items()}))
    return datasets.Dataset(pa.concat_tables(tables, promote_options="default"))


def _parse_turns(name: str, column: pa.Array) -> pa.Array:
    """Return a column whose cells hold lists of turns in JSON as these lists."""
    import pyarrow as pa

    texts = [text for text in column.to_pylist() if text is not None]
    if name not in (*SIDES, PROMPT, *DIALOGUE_COLUMNS) or not texts or not all(text.startswith("[") for text in texts):
        return column
    for text in texts:
        require_shallow(text)
    return pa.array([text and json.loads(text) for text in column.to_pylist()])


def find_tables(path: str | Path, split: str | None = None, name: str | None = None) -> list[str] | datasets.Dataset:
    """Return the Parquet files of one split, or load a split of another form."""
    import datasets

    folder, suffix = Path(path), Path(path).suffix
    if suffix in TABLE_SUFFIXES:
        if not folder.is_file():
            raise FileNotFoundError(f"{path}: no such file of rows.")
        if suffix == ".parquet":
            return [str(path)]
        if suffix in _SEPARATORS:
            return _read_delimited([path])
        _require_shallow(path)
        with name_table(path):
            # `load_dataset` would report the load to a counter on the network.
            return datasets.Dataset.from_json(str(path))
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        saved = datasets.load_from_disk(str(path))
        return saved[_choose(split, saved, path)] if isinstance(saved, datasets.DatasetDict) else saved
    if folder.is_file():
        raise ValueError(
            f"{path}: is not a table of rows; give a {', '.join(TABLE_SUFFIXES)} file, or a folder of them."
        )
    builder = make_builder(path, name)
    if builder.name == "audiofolder":
        raise ValueError(f"{path}: is a folder of recordings; give a table with the columns {' and '.join(SIDES)}.")
    files = {str(key): list(map(str, found)) for key, found in (builder.config.data_files or {}).items()}
    own_files = files if folder.is_dir() else {}
    for file in chain.from_iterable(own_files.values()):
        if file.endswith((".json", ".jsonl")):
            _require_shallow(file)
    # `datasets` also takes slices of splits such as "test[:100]".
    if split is None or not {"[", "+"} & set(split):
        split = _choose(split, files or builder.info.splits or {}, path)
        if files and all(file.endswith(".parquet") for file in files[split]):
            return list(datasets.DownloadManager().download(files[split]))
        if own_files and all(Path(file).suffix in _SEPARATORS for file in own_files[split]):
            return _read_delimited(own_files[split])
    # By the names of its files: `datasets` would cache a local folder under its own last name and its card.
    options = {"data_files": own_files} if own_files else {}
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


def _choose(split: str | None, known: Mapping[Any, Any], path: str | Path) -> str:
    names = sorted(map(str, known))
    if split is None and len(names) == 1:
        return names[0]
    if split not in names:
        raise SplitNotFoundError(
            f"{path}: split is {split!r}; this data set has {', '.join(names)}: give one of them."
        )
    return split
