"""Load SDiaReward pairs from a folder with `datasets`: a builder class, and a classic loading script in one file.

The file also works by itself under `datasets` 3 (`load_dataset("path/to/sdiareward.py", "modality",
data_dir=AUDIO_ROOT, trust_remote_code=True)`), and needs the package for metadata releases only. Under `datasets` 4
and later, which refuse scripts, use the class, or `load_dataset("sdiareward", ...)` after
`import sdiareward.dataset_builder.formats.loading`.

`data_dir` is a folder in one of three layouts:

- a metadata release (or the one that `metadata=` names) beside the user's recordings, a folder for each source: its
  pairs are made again, cut, resampled and spoken, as by `sdiareward build reconstruct`;
- shards with the audio inside, as `build` and `reconstruct` write them: `data/<criterion>/<split>-*.parquet`;
- tables and audio files apart: `<criterion>/<split>.jsonl` (or `.parquet`), in which a turn's `audio` is the path of a
  16 kHz mono WAV, FLAC or OGG file relative to `data_dir`; its bytes are embedded as they are.

Audio is left encoded (`{"bytes", "path"}`; read the bytes with `soundfile`): decoding needs torchcodec and FFmpeg, or
librosa under `datasets` 3. Pass `decode=True` where these are installed.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
from datasets.table import table_cast


logger = logging.getLogger(__name__)

# In the order in which a folder of Parquet is read.
_CRITERIA = ("colloquialness", "joint", "modality")
# Trained on with the others, measured apart.
_APART = "joint"
_SPLITS = ("train", "validation", "test")
_VERSION = datasets.Version("1.0.0")
_CONFIGS = {
    "default": "Every pair.",
    "modality": "A recording against the same words synthesised.",
    "colloquialness": "A spoken-style script against a written-style one.",
    "joint": "A dialogue against itself with something in it broken.",
    "esdr_bench": "The test split.",
}
_SIDES = ("chosen", "rejected")
_SAMPLING_RATE = 16_000
_ROWS_PER_TABLE = 20
# Headers of lossy formats round the length up to a frame.
_DURATION_TOLERANCE_S = 0.1
_DEFAULT_FOLDER = "sdiareward"


@dataclass
class SDiaRewardConfig(datasets.BuilderConfig):
    decode: bool = False  # True needs torchcodec, or librosa under `datasets` 3.
    metadata: str | None = None  # Folder of a metadata release; by default `data_dir`.
    # Of a metadata release: as those of `sdiareward build reconstruct`.
    allow_reencoded: bool = False
    synthesizer_options: dict[str, Any] | None = None

    @property
    def folder(self) -> str:
        """`data_dir`, or the folder `sdiareward` of the working directory, as `load_dataset` finds it."""
        return os.path.abspath(os.path.expanduser(self.data_dir or _DEFAULT_FOLDER))

    @property
    def tables(self) -> str:
        return os.path.abspath(os.path.expanduser(self.metadata)) if self.metadata else self.folder

    def create_config_id(self, config_kwargs: dict[str, Any], custom_features: Any = None) -> str:
        """Name the cache after the state of the folder, so that a changed folder is read again."""
        kwargs = {key: value for key, value in config_kwargs.items() if key not in ("data_dir", "data_files")}
        return super().create_config_id({**kwargs, "state": _hash_state(self.folder, self.tables)}, custom_features)


class SDiaReward(datasets.ArrowBasedBuilder):
    """Preference pairs of spoken dialogue, one per row (section 3 of the paper).

    Configurations: `default` (every pair; in its test split only the paper's), `modality`, `colloquialness`,
    `joint`, and `esdr_bench` (only the test split).
    """

    VERSION = _VERSION
    BUILDER_CONFIG_CLASS = SDiaRewardConfig
    BUILDER_CONFIGS = [SDiaRewardConfig(name, _VERSION, description=text) for name, text in _CONFIGS.items()]
    DEFAULT_CONFIG_NAME = "default"

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(
            description="Preference pairs of spoken dialogue.", features=make_features(self.config.decode)
        )

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        folder = self.config.tables
        tables = find_tables(folder, self.config.name)
        return [datasets.SplitGenerator(s, gen_kwargs={"files": f, "root": folder}) for s, f in tables.items()]

    def _generate_shards(self, files: list[str], root: str) -> Iterator[str]:
        yield from files

    def _generate_tables(self, files: list[str], root: str) -> Iterator[tuple[str, pa.Table]]:
        schema = self.info.features.arrow_schema
        for file_index, path in enumerate(files):
            is_shard = os.path.relpath(path, root).split(os.sep)[0] == "data"
            if is_shard and not _is_release(path):
                tables = _read_shard(path)
            else:
                tables = _make_tables(self._rebuild(path) if is_shard else _read_apart(path, root), path, schema)
            try:
                for index, table in enumerate(tables):
                    yield f"{file_index}-{index}", table_cast(table, schema)
            # Arrow raises the third for numbers that are too large, the last for a value of another kind.
            except (pa.ArrowException, OSError, OverflowError, TypeError) as error:
                # Of the system, such as that there is no such file.
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                problem = f"{type(error).__name__}: {error}"
                raise ValueError(f"{path}: cannot be read ({problem}); get the table again.") from error

    def _rebuild(self, path: str) -> Iterator[dict[str, Any] | _UnusableError]:
        """Yield the pairs of a released shard, made again from the recordings below `data_dir`."""
        from sdiareward.dataset_builder.release.release import AudioRoots, Rebuilder

        config = self.config
        copies = Path(datasets.config.HF_DATASETS_CACHE, "sdiareward-recordings")
        options = config.synthesizer_options or {}
        rebuilder = Rebuilder(AudioRoots(Path(config.folder)), copies, config.allow_reencoded, options)
        split = os.path.basename(path).split("-")[0]
        for table in _read_shard(path):
            for row in table.to_pylist():
                found = rebuilder.rebuild(split, row)
                yield (
                    found[0]
                    if isinstance(found, tuple)
                    else _UnusableError(found.kind, f"{found.item}: {found.reason}")
                )


def make_features(decode: bool = False) -> datasets.Features:
    """Return the columns of a pair in the forms that `datasets` 3 and 5 both know."""
    text, real = datasets.Value("string"), datasets.Value("float32")
    seconds = datasets.Value("float64")
    turn = {
        "role": text,
        "text": text,
        "audio": datasets.Audio(sampling_rate=_SAMPLING_RATE, decode=decode),
        "duration_s": real,
        "audio_ref": [{"uri": text, "start_s": seconds, "end_s": seconds, "text": text}],
    }
    scores = {name: datasets.Value("int32") for name in ("content", "naturalness", "coherence")}
    return datasets.Features(
        {
            **dict.fromkeys(("pair_id", "criterion", "subset", "source", "primary", "secondary"), text),
            "chosen": [turn],
            "rejected": [turn],
            "synthesizer": text,
            "group_id": text,
            "channel": {**dict.fromkeys(("trim_db", "bandwidth_hz", "level_dbfs", "snr_db"), real), "coding": text},
            "native_coding": [text],
            "quality": {"chosen": scores, "rejected": scores, "judge": text, "prompt_version": text},
            "language": text,
            "license": text,
        }
    )


def find_tables(folder: str, config_name: str) -> dict[str, list[str]]:
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{folder}: no such folder; pass data_dir=, the folder of your pairs.")
    criteria = (config_name,) if config_name in _CRITERIA else _CRITERIA
    splits = ("test",) if config_name == "esdr_bench" else _SPLITS
    found = {}
    for split in splits:
        read = [name for name in criteria if name != _APART or split != "test" or len(criteria) == 1]
        shards = [p for c in read for p in _glob(folder, "data", c, f"{split}-*.parquet")]
        apart = [p for c in read for p in _glob(folder, c, f"{split}.jsonl") + _glob(folder, c, f"{split}.parquet")]
        if shards and apart:
            raise ValueError(f"{folder}: holds both {shards[0]} and {apart[0]}; keep one layout and move the other.")
        if shards or apart:
            found[split] = shards or apart
    if not found:
        raise FileNotFoundError(
            f"{folder}: holds no pairs for configuration {config_name!r}; it needs data/<criterion>/<split>-*.parquet "
            f"or <criterion>/<split>.jsonl, with criterion in {list(criteria)} and split in {list(splits)}."
        )
    return found


def _glob(folder: str, *parts: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(folder), *parts)))


def _is_release(path: str) -> bool:
    try:
        return bool(pq.read_schema(path).field(_SIDES[0]).type.value_type.get_field_index("audio") < 0)
    except (pa.ArrowException, KeyError, AttributeError, OSError):
        return False  # Its reader reports what is wrong with it.


def _hash_state(folder: str, tables: str) -> str:
    """Hash the state of a folder: its tables, and the times of its subfolders, which change when audio is added."""
    digest = hashlib.sha256(f"{folder} {tables}".encode())
    patterns = ("data/*/*.parquet", "*/*.jsonl", "*/*.parquet")
    paths = [path for pattern in patterns for path in _glob(tables, *pattern.split("/"))]
    shards = _glob(tables, "data", "*", "*.parquet")
    if not shards or _is_release(shards[0]):
        paths += sorted(parent for parent, _, _ in os.walk(folder))
    for path in paths:
        status = os.stat(path)
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _read_shard(path: str) -> Iterator[pa.Table]:
    with open(path, "rb") as handle:
        for batch in pq.ParquetFile(handle).iter_batches(batch_size=_ROWS_PER_TABLE):
            # The column types come from the builder: an older `datasets` cannot read the types of a newer one.
            yield pa.Table.from_batches([batch]).replace_schema_metadata(None)


class _UnusableError(Exception):
    """An audio file that cannot go into a pair: `kind` to count by, and what is wrong with which file."""

    def __init__(self, kind: str, what: str):
        super().__init__(what)
        self.kind = kind


def _make_tables(rows: Iterator[dict[str, Any] | _UnusableError], path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the pairs of a table; log the number of skipped pairs by kind and the first of each."""
    batch: list[dict[str, Any]] = []
    skipped: dict[str, list[str]] = {}
    for row in rows:
        if isinstance(row, _UnusableError):
            skipped.setdefault(row.kind, []).append(str(row))
            continue
        batch.append(row)
        if len(batch) == _ROWS_PER_TABLE:
            yield pa.Table.from_pylist(batch, schema=schema)
            batch = []
    if batch:
        yield pa.Table.from_pylist(batch, schema=schema)
    for kind, items in skipped.items():
        logger.warning("%s: skipped %d pairs, %s; first: %s", path, len(items), kind, items[0])


def _read_apart(path: str, root: str) -> Iterator[dict[str, Any] | _UnusableError]:
    """Yield the pairs of a table with separate audio files."""
    seen: set[str] = set()
    criterion = os.path.basename(os.path.dirname(path))
    for label, row in _read_rows(path):
        pair_id = _read_pair_id(row, criterion, label)
        try:
            if pair_id in seen:
                raise _UnusableError("duplicate pair_id", f"{label}: pair {pair_id}")
            seen.add(pair_id)
            sides = {side: [_embed(turn, root, label) for turn in row[side]] for side in _SIDES}
            yield {**row, **sides, "criterion": criterion}
        except _UnusableError as error:
            yield error


def _read_rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of a table with its position."""
    with open(path, "rb") as handle:
        if path.endswith(".parquet"):
            batches = pq.ParquetFile(handle).iter_batches(batch_size=_ROWS_PER_TABLE)
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows))
            return
        for number, line in enumerate(handle, start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error}); take the line out.") from error
            yield f"{path}, line {number}", row


def _read_pair_id(row: Any, criterion: str, label: str) -> str:
    missing = [name for name in ("pair_id", *_SIDES) if not isinstance(row, dict) or not row.get(name)]
    if missing:
        raise ValueError(f"{label}: has no {missing}; a pair needs an id and two sides.")
    if row.get("criterion") not in (None, criterion):
        found = row["criterion"]
        raise ValueError(f"{label}: criterion is {found!r}, the folder {criterion!r}; move the row to its own.")
    for side in _SIDES:
        if not isinstance(row[side], list) or not all(isinstance(turn, dict) for turn in row[side]):
            raise ValueError(f"{label}: {side} is no list of turns; give each its role, text and audio.")
    return str(row["pair_id"])


def _embed(turn: dict[str, Any], root: str, label: str) -> dict[str, Any]:
    """Return a turn with the bytes of its audio file, which must be 16 kHz mono."""
    relative = turn.get("audio")
    if not isinstance(relative, str) or not relative:
        raise ValueError(f"{label}: a turn's audio is {relative!r}; it must be a path relative to {root}.")
    folder, path = os.path.realpath(root), os.path.join(root, relative)
    # A link in the folder is the user's own and is followed.
    is_below = not os.path.isabs(relative) and ".." not in relative.split("/")
    if not is_below and os.path.commonpath([os.path.realpath(path), folder]) != folder:
        raise ValueError(f"{label}: audio {relative!r} lies outside of {root}; give a relative path inside.")
    if not os.path.isfile(path):
        raise _UnusableError("audio file missing", f"{relative} ({label})")
    with open(path, "rb") as handle:
        data = handle.read()
    duration_s = _check_audio(data, f"{relative} ({label})", turn.get("duration_s"))
    return {**turn, "audio": {"bytes": data, "path": os.path.basename(path)}, "duration_s": duration_s}


def _check_audio(data: bytes, name: str, stated_s: Any) -> float:
    """Return the duration in seconds, as the table states it or else from the header."""
    try:
        info = soundfile.info(io.BytesIO(data))
    except soundfile.LibsndfileError as error:
        raise _UnusableError("audio file undecodable", f"{name}: {error}") from error
    if (info.samplerate, info.channels) != (_SAMPLING_RATE, 1):
        raise _UnusableError("audio not 16 kHz mono", f"{name}: {info.samplerate} Hz, {info.channels} channels")
    if stated_s is None:
        return info.duration
    if not isinstance(stated_s, float | int):
        raise _UnusableError("audio of another length", f"{name}: the table says {repr(stated_s)[:40]}, not seconds")
    # Not "further off than": a NaN is not.
    if not abs(stated_s - info.duration) <= _DURATION_TOLERANCE_S:
        found = f"lasts {info.duration:.2f} s, the table says {f'{stated_s:.2f}'[:20]} s"
        raise _UnusableError("audio of another length", f"{name}: {found}")
    return stated_s
