"""Read and write SDiaReward's released format: message lists with audio paths, saved by `datasets`.

Rows have `chosen` and `rejected`, lists of messages `{"role", "content": [{"type": "text", "text"}, {"type": "audio",
"audio": PATH}]}` in which absent keys are None, and usually `category` and `source`. The authors evaluate on the split
`validation`, which is ESDR-Bench, our `test`. Values that the format lacks stay unknown. A pair's id is a hash of its
words and audio; its group is the folder of its chosen recordings or, if several splits share that folder, a hash of
the chosen side. Our other columns are also written and read back; only `audio_ref` is lost.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import MAX_RECORDING_S, SAMPLING_RATE, AudioError, audio_duration_s
from sdiareward.common.errors import Skipped
from sdiareward.common.files import write_file
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.esdr_accuracy.pairwise import NO_SUBSET, SUBSETS
from sdiareward.pairs.labels import describe_origins
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.rows import leave_audio_encoded
from sdiareward.pairs.schema import SIDES, TAXONOMY, UNKNOWN, features, make_stable_id, validate_row
from sdiareward.perturbations.channel import encode_flac

from ..pipeline.media import read_media
from ..shards import SPLITS, read_rows
from ..sources.reading import require_file


if TYPE_CHECKING:
    import datasets

# Values for columns that the released format lacks.
_UNSTATED: dict[str, Any] = {
    "synthesizer": "unknown",
    "language": "und",
    "license": "unknown",
    "channel": None,
    "native_coding": [],
    "quality": None,
}
_SAFE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_ENDINGS = {b"fLaC": ".flac", b"OggS": ".ogg", b"RIFF": ".wav"}


def read_official(
    path: Path, audio_root: Path, *, path_prefix: str = "", splits: Mapping[str, str] | None = None
) -> Iterator[tuple[str, dict[str, Any]] | Skipped]:
    """Yield `(split, row)` of every pair, or `Skipped`; `splits` maps their splits to ours."""
    seen: set[str] = set()
    loaded = _load(path, splits)
    # Folders, as in the paths, with chosen recordings in several splits.
    of_folder: dict[str, set[str]] = {}
    for split, pairs in loaded.values():
        for messages in pairs.select_columns(["chosen"])["chosen"]:
            of_folder.setdefault(_find_folder(messages), set()).add(split)
    shared = {folder for folder, names in of_folder.items() if len(names) > 1}
    for name, (split, pairs) in loaded.items():
        for index, example in enumerate(pairs):
            item = f"{name} row {index}"
            try:
                row = _make_row(example, audio_root, path_prefix, shared)
                if row["pair_id"] in seen:
                    raise SkipError("duplicate_id", f"{row['pair_id']} occurs twice; the first is kept.")
                seen.add(row["pair_id"])
                yield split, row
            except SkipError as error:
                yield Skipped(item, error.kind, str(error))


def _load(path: Path, splits: Mapping[str, str] | None) -> dict[str, tuple[str, datasets.Dataset]]:
    import datasets

    loaded = datasets.load_from_disk(str(path))
    named = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    if splits is None:
        bench = {} if "test" in named else {"validation": "test", "val": "test"}
        splits = {**dict(zip(SPLITS, SPLITS, strict=True)), **bench}
    result = {}
    for name, pairs in named.items():
        if splits.get(name) not in SPLITS:
            raise ValueError(f"{path}: has a split {name!r}; in splits, map it to one of {list(SPLITS)}.")
        if missing := [side for side in SIDES if side not in pairs.column_names]:
            raise ValueError(f"{path}: {name} has columns {pairs.column_names}; the released format needs {missing}.")
        encoded = leave_audio_encoded(pairs.features)
        # A table of paths needs no cast, which would write a copy.
        result[name] = (splits[name], pairs if encoded == pairs.features else pairs.cast(encoded))
    return result


def _find_folder(messages: Any) -> str:
    """Return the folder of the first recording; empty without a path."""
    try:
        items = [item for message in messages if isinstance(message["content"], list) for item in message["content"]]
        return next((os.path.dirname(item["audio"]) for item in items if isinstance(item.get("audio"), str)), "")
    except (TypeError, LookupError, AttributeError):
        return ""  # Not the released format; the row is skipped when it is read.


def _make_row(example: Mapping[str, Any], root: Path, path_prefix: str, shared_folders: set[str]) -> dict[str, Any]:
    try:
        category, source = example.get("category"), str(example.get("source") or "unknown").lower()
        # The column of Table 2 for the row.
        if (subset := describe_origins([example])[0]["subset"]) == NO_SUBSET:
            raise SkipError("unknown_subset", f"neither {category!r} nor source {source!r} is one of {list(SUBSETS)}.")
        row = {name: example[name] if example.get(name) else value for name, value in _UNSTATED.items()}
        row |= {"source": source, "subset": subset}
        row["criterion"] = "colloquialness" if subset == "colloquialness" else "modality"
        # Columns with these names, or a `category` from Table 5.
        for name, values in zip(("primary", "secondary"), TAXONOMY.get(source, ((), ())), strict=True):
            row[name] = example.get(name) or (category if category in values else UNKNOWN)
        for side in SIDES:
            messages = [message for message in example[side] if message["role"] != "system"]
            row[side] = [_read_turn(each, root, path_prefix, f"{side} turn {i}") for i, each in enumerate(messages)]
        contents = [_hash_content(row[side]) for side in SIDES]
        folder = _find_folder(example["chosen"])
        unit = contents[0] if folder in shared_folders or not folder else folder.removeprefix(path_prefix)
        row["pair_id"] = example.get("pair_id") or make_stable_id(row["criterion"], source, *contents)
        row["group_id"] = example.get("group_id") or make_stable_id(source, unit)
        validate_row(row)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise SkipError("invalid_pair", f"is not in the released format: {error!r:.400}") from error
    return row


def _read_turn(message: Mapping[str, Any], root: Path, path_prefix: str, place: str) -> dict[str, Any]:
    items = message["content"] if isinstance(message["content"], list) else []
    text = " ".join(item["text"] for item in items if item["type"] == "text" and item.get("text"))
    recordings = [item["audio"] for item in items if item["type"] == "audio" and item.get("audio")]
    other = {item["type"] for item in items} - {"text", "audio"}
    if len(recordings) != 1 or other:
        found = f"{len(recordings)} recordings" + (f" and {sorted(other)}" if other else "")
        raise SkipError("unsupported_turn", f"{place}: has {found}; a turn is text with one recording.")
    data, name = _fetch(recordings[0], root, path_prefix, place)
    data, duration_s = _conform(data, f"{place}: {name}")
    audio = {"bytes": data, "path": f"{Path(name).stem}{_ENDINGS.get(data[:4], '.wav')}"}
    return {"role": message["role"], "text": text, "audio": audio, "duration_s": duration_s, "audio_ref": []}


def _fetch(audio: str | Mapping[str, Any], root: Path, path_prefix: str, place: str) -> tuple[bytes, str]:
    if isinstance(audio, Mapping):
        if audio.get("bytes"):
            return audio["bytes"], audio.get("path") or "audio"
        audio = str(audio["path"])
    relative = audio.removeprefix(path_prefix)
    if os.path.isabs(relative) and Path(relative).is_relative_to(root.resolve()):
        relative = str(Path(relative).relative_to(root.resolve()))
    try:
        return require_file(root, relative).read_bytes(), relative
    except ValueError as error:
        raise SkipError("path_outside_root", f"{place}: {error} Or pass path_prefix.") from error
    except OSError as error:
        raise SkipError("missing_audio", f"{place}: {relative} is not in {root}.") from error


def _conform(data: bytes, label: str) -> tuple[bytes, float]:
    """Return a recording as 16 kHz mono (unchanged if it already is) and its duration in seconds."""
    import soundfile

    # `read_media` supports more formats and raises the problem with the rest.
    with suppress(soundfile.LibsndfileError, AudioError):
        info = soundfile.info(io.BytesIO(data))
        is_kept = (info.samplerate, info.channels) == (SAMPLING_RATE, 1) and info.format in ("FLAC", "WAV", "OGG")
        if is_kept and audio_duration_s(data) == info.duration:
            return data, info.duration
    try:
        array = read_media(data, name=label, max_s=MAX_RECORDING_S)
    except AudioError as error:
        raise SkipError("unusable_audio", str(error)) from error
    return encode_flac(array), len(array) / SAMPLING_RATE


def _hash_content(turns: Sequence[Mapping[str, Any]]) -> str:
    return make_stable_id(*((t["role"], t["text"], hashlib.sha256(t["audio"]["bytes"]).hexdigest()) for t in turns))


def write_official(
    folder: Path, output: Path, *, path_prefix: str = "", splits: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Write a data set folder in the released format; `splits` maps our splits to theirs; others are omitted."""
    import datasets
    import pyarrow as pa
    from tqdm import tqdm

    if (output / "dataset_dict.json").exists():
        raise FileExistsError(f"{output}: already has a data set; choose another folder, or delete it.")
    # The authors' evaluation expects {"train": "train", "test": "validation"} and paths relative to its folder.
    splits = dict(zip(SPLITS, SPLITS, strict=True)) if splits is None else splits
    examples: dict[str, list[dict[str, Any]]] = {}
    for split, row in tqdm(read_rows(folder), desc="export", unit="pair"):
        if split not in splits:
            continue
        # An id from a foreign table may not be a valid folder name.
        name = row["pair_id"] if _SAFE_NAME.fullmatch(row["pair_id"]) else make_stable_id(row["pair_id"])
        sides: dict[str, Any] = {side: [] for side in SIDES}
        for side in SIDES:
            for position, turn in enumerate(row[side]):
                data, ending = turn["audio"]["bytes"], PurePosixPath(turn["audio"]["path"] or "").suffix
                path = f"audio/{name}/{side}-{position}{_ENDINGS.get(data[:4], ending)}"
                (output / path).parent.mkdir(parents=True, exist_ok=True)
                write_file(output / path, data)
                sides[side].append({**turn, "audio": path_prefix + path})
        found = {**row, **{side: turns_to_messages(turns) for side, turns in sides.items()}, "category": row["subset"]}
        examples.setdefault(splits[split], []).append(found)
    text = datasets.Value("string")
    messages = datasets.List({"role": text, "content": datasets.List({"type": text, "text": text, "audio": text})})
    columns = datasets.Features({**features(), **dict.fromkeys(SIDES, messages), "category": text})
    tables = {name: pa.Table.from_pylist(rows, schema=columns.arrow_schema) for name, rows in examples.items()}
    named = {name: datasets.Dataset(table) for name, table in tables.items()}
    unfinished = output / ".unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    datasets.DatasetDict(named).save_to_disk(unfinished)
    # `dataset_dict.json` is written last: it marks the rest as complete.
    for name in (*named, "dataset_dict.json"):
        os.replace(unfinished / name, output / name)
    unfinished.rmdir()
    return {name: len(rows) for name, rows in examples.items()}
