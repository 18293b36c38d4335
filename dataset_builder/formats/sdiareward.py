"""Load SDiaReward pairs from a folder with `datasets`: a builder class and a classic loading script in one file.

The file also works alone under `datasets` 3 (`load_dataset("path/to/sdiareward.py", "modality",
data_dir=AUDIO_ROOT, trust_remote_code=True)`) and needs the package only for metadata releases. `datasets` 4 and later
refuse scripts: use the class, or `load_dataset("sdiareward", ...)` after
`import sdiareward.dataset_builder.formats.loading`.

`data_dir` is a folder in one of two layouts:

- a metadata release (here or in `metadata=`) beside the user's recordings, one folder per source: its pairs are cut,
  resampled and synthesized again, as by `sdiareward build reconstruct`;
- shards with audio, as written by `build` and `reconstruct`: `data/<criterion>/<split>-*.parquet`.

Audio stays encoded (`{"bytes", "path"}`; read the bytes with `soundfile`), because decoding needs torchcodec and
FFmpeg, or librosa under `datasets` 3. If these are installed, pass `decode=True`.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.table import table_cast


logger = logging.getLogger(__name__)

_VERSION = datasets.Version("1.0.0")
# In the order in which a Parquet folder is read.
_CRITERIA = ("colloquialness", "joint", "modality")
# Used in training like the others, but evaluated separately.
_APART = "joint"
_SPLITS = ("train", "validation", "test")
_SAMPLING_RATE = 16_000
_ROWS_PER_TABLE = 20


@dataclass
class SDiaRewardConfig(datasets.BuilderConfig):
    decode: bool = False  # True needs torchcodec, or librosa under `datasets` 3.
    metadata: str | None = None  # Folder of a metadata release; by default `data_dir`.
    # For a metadata release: the options of `sdiareward build reconstruct`.
    allow_reencoded: bool = False
    synthesizer_options: dict[str, Any] | None = None

    @property
    def folder(self) -> str:
        """`data_dir`, or the folder `sdiareward` in the working directory, like `load_dataset`."""
        return os.path.abspath(os.path.expanduser(self.data_dir or "sdiareward"))

    @property
    def tables(self) -> str:
        return os.path.abspath(os.path.expanduser(self.metadata)) if self.metadata else self.folder

    def create_config_id(self, config_kwargs: dict[str, Any], custom_features: Any = None) -> str:
        """Include the state of the folder in the cache name, so that a changed folder is read again."""
        kwargs = {key: value for key, value in config_kwargs.items() if key not in ("data_dir", "data_files")}
        return super().create_config_id({**kwargs, "state": _hash_state(self.folder, self.tables)}, custom_features)


class SDiaReward(datasets.ArrowBasedBuilder):
    """Preference pairs of spoken dialogue, one per row (section 3 of the paper).

    Configurations: `default` (all pairs; the test split has only the paper's), `modality`, `colloquialness`, `joint`,
    and `esdr_bench` (the test split).
    """

    VERSION = _VERSION
    BUILDER_CONFIG_CLASS = SDiaRewardConfig
    BUILDER_CONFIGS = [SDiaRewardConfig(name, _VERSION) for name in ("default", *_CRITERIA, "esdr_bench")]
    DEFAULT_CONFIG_NAME = "default"

    def _info(self) -> datasets.DatasetInfo:
        description = "Preference pairs of spoken dialogue."
        return datasets.DatasetInfo(description=description, features=make_features(self.config.decode))

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        tables = find_tables(self.config.tables, self.config.name)
        return [datasets.SplitGenerator(split, gen_kwargs={"files": files}) for split, files in tables.items()]

    def _generate_shards(self, files: list[str]) -> Iterator[str]:
        yield from files

    def _generate_tables(self, files: list[str]) -> Iterator[tuple[str, pa.Table]]:
        schema = self.info.features.arrow_schema
        for file_index, path in enumerate(files):
            try:
                tables = self._rebuild(path, schema) if _is_release(path) else _read_shard(path)
                for index, table in enumerate(tables):
                    yield f"{file_index}-{index}", table_cast(table, schema)
            except (pa.ArrowException, OSError, TypeError) as error:
                # An error of the system, such as a missing file.
                if getattr(error, "errno", None) is not None:
                    raise
                raise ValueError(f"{path}: cannot be read ({error!r}); get the table again.") from error

    def _rebuild(self, path: str, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the pairs of a released shard, rebuilt from the recordings in `data_dir`; log skipped ones."""
        from sdiareward.dataset_builder.release.release import AudioRoots, Rebuilder

        config = self.config
        copies = Path(datasets.config.HF_DATASETS_CACHE, "sdiareward-recordings")
        options = config.synthesizer_options or {}
        rebuilder = Rebuilder(AudioRoots(Path(config.folder)), copies, config.allow_reencoded, options)
        skipped: dict[str, list[str]] = {}
        for table in _read_shard(path):
            rows = []
            for row in table.to_pylist():
                found = rebuilder.rebuild(os.path.basename(path).split("-")[0], row)
                if isinstance(found, tuple):
                    rows.append(found[0])
                else:
                    skipped.setdefault(found.kind, []).append(f"{found.item}: {found.reason}")
            if rows:
                yield pa.Table.from_pylist(rows, schema=schema)
        for kind, items in skipped.items():
            logger.warning("%s: skipped %d pairs, %s; first: %s", path, len(items), kind, items[0])


def make_features(decode: bool = False) -> datasets.Features:
    """Return the columns of a pair in a form that `datasets` 3 and 5 both support."""
    text, real, seconds = (datasets.Value(kind) for kind in ("string", "float32", "float64"))
    turn = {"role": text, "text": text, "audio": datasets.Audio(sampling_rate=_SAMPLING_RATE, decode=decode)}
    turn |= {"duration_s": real, "audio_ref": [{"uri": text, "start_s": seconds, "end_s": seconds, "text": text}]}
    channel = {**dict.fromkeys(("trim_db", "bandwidth_hz", "level_dbfs", "snr_db"), real), "coding": text}
    scores = dict.fromkeys(("content", "naturalness", "coherence"), datasets.Value("int32"))
    quality = {"chosen": scores, "rejected": scores, "judge": text, "prompt_version": text}
    columns = dict.fromkeys(("pair_id", "criterion", "subset", "source", "primary", "secondary"), text)
    columns |= {"chosen": [turn], "rejected": [turn], "synthesizer": text, "group_id": text, "channel": channel}
    return datasets.Features(
        columns | {"native_coding": [text], "quality": quality, "language": text, "license": text}
    )


def find_tables(folder: str, config_name: str) -> dict[str, list[str]]:
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{folder}: no such folder; pass data_dir=, the folder of your pairs.")
    criteria = (config_name,) if config_name in _CRITERIA else _CRITERIA
    found = {}
    for split in ("test",) if config_name == "esdr_bench" else _SPLITS:
        read = [name for name in criteria if name != _APART or split != "test" or len(criteria) == 1]
        if shards := [path for name in read for path in _glob(folder, "data", name, f"{split}-*.parquet")]:
            found[split] = shards
    if not found:
        needed = f"data/<criterion>/<split>-*.parquet, with criterion in {list(criteria)}"
        raise FileNotFoundError(f"{folder}: has no pairs for configuration {config_name!r}; it needs {needed}.")
    return found


def _glob(folder: str, *parts: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(folder), *parts)))


def _is_release(path: str) -> bool:
    try:
        return bool(pq.read_schema(path).field("chosen").type.value_type.get_field_index("audio") < 0)
    except (pa.ArrowException, KeyError, AttributeError, OSError):
        return False  # Its reader reports the problem.


def _hash_state(folder: str, tables: str) -> str:
    """Hash the state of a folder: its tables, and the times of subfolders, which change when audio is added."""
    digest = hashlib.sha256(f"{folder} {tables}".encode())
    paths = _glob(tables, "data", "*", "*.parquet")
    if paths and _is_release(paths[0]):
        paths += sorted(parent for parent, _, _ in os.walk(folder))
    for path in paths:
        status = os.stat(path)
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _read_shard(path: str) -> Iterator[pa.Table]:
    with open(path, "rb") as handle:
        for batch in pq.ParquetFile(handle).iter_batches(batch_size=_ROWS_PER_TABLE):
            # The builder defines the column types: an older `datasets` cannot read the types of a newer one.
            yield pa.Table.from_batches([batch]).replace_schema_metadata(None)
