"""Write a checkpoint's tensors shard by shard, so that a stopped run goes on where it was.

A folder under way holds a journal: first what is being written, then a line for each finished shard with its hash. The
journal goes when the checkpoint is complete, `config.json` having come last; without it a folder is never touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.files import JsonLines, write_file
from sdiareward.layouts_sdiareward import INDEX_FILE

from .safetensors_stream import PlannedTensor, hash_file, write_tensors


JOURNAL = ".writing.jsonl"
_CONFIG = "config.json"
_DESCRIPTION = ".description"


def write_checkpoint(
    output_dir: Path,
    tensors: Mapping[str, PlannedTensor],
    describe: Callable[[Path], None],
    *,
    identity: Mapping[str, Any],
    max_shard_size: str = "5GB",
) -> None:
    """Write a checkpoint, or the rest of one whose writing was stopped.

    Args:
        output_dir (`Path`): Its folder: new, empty, or holding the beginning of the same checkpoint.
        tensors (`Mapping[str, PlannedTensor]`): Its tensors by name.
        describe (`Callable`): Writes every other file of the checkpoint into the folder it is given.
        identity (`Mapping`): What makes this checkpoint the same as one begun before, as JSON.
        max_shard_size (`str`, *optional*, defaults to `"5GB"`): Largest size of one file of tensors.

    Raises:
        FileExistsError: The folder holds something else.
        OSError: The disk has no room for the checkpoint.
        ValueError: `max_shard_size` is no size.
    """
    shards = _split(tensors, max_shard_size)
    journal = _open_journal(output_dir, {**identity, "shards": sorted(shards)})
    written = _verified(output_dir, journal)
    _require_space(output_dir, sum(_size(shard) for name, shard in shards.items() if name not in written))
    _write_shards(output_dir, shards, journal, written)
    if len(shards) > 1:
        _write_index(output_dir, shards)
    _move_description(output_dir, describe)
    journal.path.unlink()


def _split(tensors: Mapping[str, PlannedTensor], max_shard_size: str) -> dict[str, dict[str, PlannedTensor]]:
    """Return the tensors of each file, in the order in which they lie in the source."""
    from huggingface_hub import split_state_dict_into_shards_factory

    ordered = dict(sorted(tensors.items(), key=lambda item: (str(item[1].source.path), item[1].source.start)))
    split = split_state_dict_into_shards_factory(
        ordered,
        get_storage_size=lambda tensor: tensor.num_bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )
    return {file: {name: tensors[name] for name in names} for file, names in split.filename_to_tensors.items()}


def _open_journal(output_dir: Path, identity: dict[str, Any]) -> JsonLines:
    journal = JsonLines(output_dir / JOURNAL)
    lines = journal.read()
    if lines:
        other = sorted(key for key in identity | lines[0] if identity.get(key) != lines[0].get(key))
        if other:
            raise FileExistsError(
                f"{output_dir}: holds the beginning of another checkpoint (other {', '.join(other)}); repeat the "
                "command that began it, delete the folder or name another one."
            )
    elif output_dir.exists() and any(path.name != JOURNAL for path in output_dir.iterdir()):
        content = "a finished checkpoint" if (output_dir / _CONFIG).exists() else "other files"
        raise FileExistsError(f"{output_dir}: holds {content}; nothing is overwritten, name another folder.")
    else:
        output_dir.mkdir(parents=True, exist_ok=True)
        journal.append([identity])
    return journal


def _verified(output_dir: Path, journal: JsonLines) -> set[str]:
    """Return the shards that a stopped run finished and that are still what it wrote."""
    from tqdm import tqdm

    hashes = {line["shard"]: line["sha256"] for line in journal.read()[1:]}
    return {
        name
        for name, sha256 in tqdm(hashes.items(), "Checking what is there", disable=not hashes, unit="file")
        if (output_dir / name).exists() and hash_file(output_dir / name) == sha256
    }


def _require_space(output_dir: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(output_dir).free
    if free_bytes < needed_bytes:
        raise OSError(f"{output_dir}: has {free_bytes / 1e9:.1f} GB left, {needed_bytes / 1e9:.1f} GB are needed.")


def _write_shards(
    output_dir: Path, shards: Mapping[str, Mapping[str, PlannedTensor]], journal: JsonLines, written: set[str]
) -> None:
    from tqdm import tqdm

    total_bytes = sum(map(_size, shards.values()))
    with tqdm(total=total_bytes, unit="B", unit_scale=True, desc="Writing tensors") as bar:
        for name, shard in shards.items():
            if name in written:
                bar.update(_size(shard))
                continue
            sha256 = write_tensors(output_dir / name, shard, on_bytes=bar.update)
            journal.append([{"shard": name, "sha256": sha256}])


def _size(shard: Mapping[str, PlannedTensor]) -> int:
    return sum(tensor.num_bytes for tensor in shard.values())


def _write_index(output_dir: Path, shards: Mapping[str, Mapping[str, PlannedTensor]]) -> None:
    weight_map = {name: file for file, shard in shards.items() for name in shard}
    index = {"metadata": {"total_size": sum(map(_size, shards.values()))}, "weight_map": weight_map}
    write_file(output_dir / INDEX_FILE, json.dumps(index, indent=2, sort_keys=True) + "\n")


def _move_description(output_dir: Path, describe: Callable[[Path], None]) -> None:
    folder = output_dir / _DESCRIPTION
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    describe(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: path.name == _CONFIG and path.parent == folder):
        target = output_dir / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        path.replace(target)
    shutil.rmtree(folder)
