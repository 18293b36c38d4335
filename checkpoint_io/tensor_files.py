"""Rewrite the tensors of a checkpoint: under other names, in other shards, in another dtype.

One shard is in memory at a time. A shard gets its name when it is complete, so that a stopped run resumes with the
next one. A folder in progress holds a file that describes the run; it is removed when the checkpoint is complete,
`config.json` last. A folder that holds anything else is never touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm import tqdm

from sdiareward.common.files import replace_atomically, write_file
from sdiareward.loading_sdiareward import INDEX_FILE


# Dtypes that can be converted into each other, by their name in the file.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
IN_PROGRESS = ".writing.json"
_CONFIG = "config.json"
_CONFIG_FOLDER = ".config"


@dataclass(frozen=True)
class StoredTensor:
    path: Path
    name: str
    dtype: str  # As the file names it, for instance `"BF16"`.
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PlannedTensor:
    source: StoredTensor
    dtype: torch.dtype
    factor: float = 1.0

    def read(self) -> torch.Tensor:
        """Return the new tensor; without a change of values it is mapped from its file."""
        with safe_open(self.source.path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(self.source.name)
        if self.factor != 1.0:
            tensor = tensor.double() * self.factor
        return tensor.to(self.dtype)

    def allocate_meta(self) -> torch.Tensor:
        return torch.empty(self.source.shape, dtype=self.dtype, device="meta")


Shard = Mapping[str, PlannedTensor]


def read_header(path: Path) -> dict[str, StoredTensor]:
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: StoredTensor(path, name, each.get_dtype(), tuple(each.get_shape()))
                for name, each in slices.items()
            }
    except SafetensorError as error:
        raise ValueError(f"{path}: cannot be read as safetensors ({error}); download it again.") from error


def write_checkpoint(
    output_dir: Path,
    tensors: Mapping[str, PlannedTensor],
    write_config: Callable[[Path], None],
    *,
    identity: Mapping[str, Any],
    max_shard_size: str = "5GB",
) -> None:
    """Write a checkpoint, or resume one of the same `identity`; `write_config` writes the other files."""
    split = split_torch_state_dict_into_shards(
        {name: tensor.allocate_meta() for name, tensor in tensors.items()},
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )
    shards = {file: {name: tensors[name] for name in names} for file, names in split.filename_to_tensors.items()}
    _claim_folder(output_dir, json.loads(json.dumps({**identity, "shards": sorted(shards)})))
    missing = {file: shard for file, shard in shards.items() if not _is_written(output_dir / file, shard)}
    _require_space(output_dir, missing.values())
    for file, shard in tqdm(missing.items(), "Writing tensors", unit="file"):
        _write_shard(output_dir / file, shard)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_file(output_dir / INDEX_FILE, json.dumps(index, indent=2, sort_keys=True) + "\n")
    _move_config(output_dir, write_config)
    (output_dir / IN_PROGRESS).unlink()


def _claim_folder(output_dir: Path, identity: dict[str, Any]) -> None:
    """Record in a new folder what is being written, or raise unless a folder holds the beginning of the same."""
    path = output_dir / IN_PROGRESS
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if other := sorted(key for key in identity | found if identity.get(key) != found.get(key)):
            raise FileExistsError(
                f"{output_dir}: holds the beginning of another checkpoint (other {', '.join(other)}); repeat the "
                "command that began it, delete the folder or name another one."
            )
        return
    if output_dir.exists() and any(output_dir.iterdir()):
        content = "a finished checkpoint" if (output_dir / _CONFIG).exists() else "other files"
        raise FileExistsError(f"{output_dir}: holds {content}; nothing is overwritten, name another folder.")
    output_dir.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(identity) + "\n")


def _is_written(path: Path, shard: Shard) -> bool:
    """Return whether a file holds the tensors of a shard; a power failure can leave a named file cut short."""
    if not path.exists():
        return False
    try:
        found = read_header(path)
    except ValueError:
        return False
    wanted = {name: (tensor.dtype, tensor.source.shape) for name, tensor in shard.items()}
    return {name: (DTYPES.get(tensor.dtype), tensor.shape) for name, tensor in found.items()} == wanted


def _require_space(output_dir: Path, shards: Any) -> None:
    needed_bytes = sum(tensor.allocate_meta().nbytes for shard in shards for tensor in shard.values())
    free_bytes = shutil.disk_usage(output_dir).free
    if free_bytes < needed_bytes:
        raise OSError(f"{output_dir}: has {free_bytes / 1e9:.1f} GB left, {needed_bytes / 1e9:.1f} GB are needed.")


def _write_shard(path: Path, shard: Shard) -> None:
    with replace_atomically(path) as temporary:
        save_file({name: tensor.read() for name, tensor in shard.items()}, temporary, metadata={"format": "pt"})
        # Files that the library writes can be read by their owner only.
        temporary.chmod(0o644)


def _move_config(output_dir: Path, write_config: Callable[[Path], None]) -> None:
    """Write the other files aside and move them into place, `config.json` last."""
    folder = output_dir / _CONFIG_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_config(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: path.name == _CONFIG and path.parent == folder):
        target = output_dir / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        path.replace(target)
    shutil.rmtree(folder)
