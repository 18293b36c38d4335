"""Convert checkpoints from the authors' layout into the native one, and export native ones for their code and vLLM.

Names and shapes are checked against the headers before anything is written. Tensors are rewritten shard by shard, and
a stopped run resumes (`tensor_files`).
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from sdiareward.common.files import replace_atomically
from sdiareward.common.hub import MODEL_FILES, fetch_snapshot
from sdiareward.configuration_sdiareward import EXTERNAL_MODEL_TYPES, SDiaRewardConfig
from sdiareward.loading_sdiareward import (
    HEAD,
    INDEX_FILE,
    SINGLE_FILE,
    check_keys,
    list_tensors,
    listed,
    read_foreign_config,
    to_native_key,
)
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .builtin import find_checkpoint
from .export import RENAMES, require_one_token_a_vector, require_vllm_pooling, write_config_files
from .tensor_files import DTYPES, PlannedTensor, StoredTensor, read_header, write_checkpoint
from .training_record import PAIRS_RECORD


logger = logging.getLogger(__name__)

ExportFormat = Literal["official", "vllm"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = ("official", "vllm")
_DTYPES_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


@dataclass(frozen=True)
class Source:
    name: str
    folder: Path
    config: SDiaRewardConfig
    tensors: dict[str, StoredTensor]


def convert_checkpoint(
    source: str | Path,
    output_dir: str | Path,
    *,
    dtype: str | None = None,
    max_shard_size: str = "5GB",
    **fields: Any,
) -> Path:
    """Write a released checkpoint of the authors, or a native one, as a native checkpoint; a stopped run resumes.

    A backbone of Qwen2.5-Omni without a head gets a new one, at zero; it is loaded whole.
    """
    if HEAD not in map(to_native_key, list_tensors(folder := _find(source))):
        if (output := Path(output_dir)).is_dir() and any(output.iterdir()):
            raise FileExistsError(f"{output}: is not empty; nothing is overwritten, name another folder.")
        model = SDiaRewardModel.from_backbone(folder, dtype=dtype or "auto", **fields)
        names = ("prompts", "prompt_version", "max_turn_s")
        processor = SDiaRewardProcessor.from_backbone(folder, **{name: getattr(model.config, name) for name in names})
        logger.warning("%s: holds no reward head; the result has a new one, at zero, which has to be trained.", source)
        with replace_atomically(output) as temporary:
            model.save_pretrained(temporary, max_shard_size=max_shard_size)
            processor.save_pretrained(temporary)
        return output
    opened = open_checkpoint(source, **fields)
    tensors = {name: _plan_tensor(name, tensor, dtype) for name, tensor in opened.tensors.items()}
    processor = _load_processor(opened)
    _set_dtype(opened, dtype)

    def write_config(folder: Path) -> None:
        _write_native_config(opened.config, processor, folder)

    return _write(opened, output_dir, tensors, write_config, "ours", max_shard_size)


def export_checkpoint(
    source: str | Path,
    output_dir: str | Path,
    *,
    layout: ExportFormat,
    dtype: str | None = None,
    max_shard_size: str = "5GB",
) -> Path:
    """Write a checkpoint for the authors' code or as vLLM's classifier; `reward_scale` is put into the score head."""
    if layout not in EXPORT_FORMATS:
        raise ValueError(f"layout is {layout!r}; choose one of {', '.join(EXPORT_FORMATS)}.")
    opened = open_checkpoint(source)
    require_one_token_a_vector(opened.config, opened.name)
    if layout == "vllm":
        require_vllm_pooling(opened.config, opened.name)
    rename, scale = RENAMES[layout], opened.config.reward_scale
    tensors = {rename(name): _plan_tensor(name, tensor, dtype, scale) for name, tensor in opened.tensors.items()}
    processor = _load_processor(opened)
    _set_dtype(opened, dtype)

    def write_config(folder: Path) -> None:
        write_config_files(opened.config, processor, layout, folder)

    return _write(opened, output_dir, tensors, write_config, layout, max_shard_size)


def open_checkpoint(source: str | Path, **fields: Any) -> Source:
    """Read a checkpoint's configuration and headers, and check that it is complete."""
    folder = _find(source)
    stored = _read_headers(folder)
    config_dict, _ = SDiaRewardConfig.get_config_dict(folder)
    if config_dict.get("model_type") in EXTERNAL_MODEL_TYPES:
        config = read_foreign_config(config_dict, stored, source, **fields)
        _drop_stale_calibration(config, read_foreign_config(config_dict, stored, source), fields)
    else:
        config = SDiaRewardConfig.from_dict(config_dict, **fields)
        _drop_stale_calibration(config, SDiaRewardConfig.from_dict(config_dict), fields)
    shapes = _find_expected_shapes(config)
    check_keys(stored, shapes, source)
    tensors = {own: tensor for name, tensor in stored.items() if (own := to_native_key(name)) is not None}
    for name, tensor in tensors.items():
        if tensor.shape != shapes[name] or tensor.dtype not in DTYPES:
            raise ValueError(
                f"{source}: {name} is {tensor.dtype} of shape {tensor.shape}; the configuration asks for floating "
                f"point values of shape {shapes[name]}: configuration and tensors are not of one checkpoint."
            )
    return Source(str(source), folder, config, tensors)


def _drop_stale_calibration(config: SDiaRewardConfig, before: SDiaRewardConfig, fields: Iterable[str]) -> None:
    """Remove the calibration of a model whose rewards change with its configuration."""
    changed = [name for name in fields if getattr(config, name, None) != getattr(before, name, None)]
    if changed and config.calibration is not None and "calibration" not in changed:
        logger.warning("with another %s rewards are others: the calibration is left out.", ", ".join(changed))
        config.calibration = None


def _find(source: str | Path) -> Path:
    folder = Path(find_checkpoint(source))
    if folder.is_dir():
        return folder
    if isinstance(source, Path) or folder.is_absolute() or source.startswith("."):
        raise FileNotFoundError(f"{source}: no such folder; give the folder or the Hub id of a checkpoint.")
    return fetch_snapshot(source, MODEL_FILES)


def _read_headers(folder: Path) -> dict[str, StoredTensor]:
    names = list_tensors(folder)
    files = [SINGLE_FILE]
    if (folder / INDEX_FILE).exists():
        index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        files = sorted(set(index["weight_map"].values()))
    absent = [file for file in files if not (folder / file).is_file()]
    if absent:
        raise FileNotFoundError(f"{folder}: lacks {len(absent)} files of its index ({listed(absent)}); download them.")
    stored = {name: tensor for file in files for name, tensor in read_header(folder / file).items()}
    if other := sorted(names ^ stored.keys()):
        raise ValueError(
            f"{folder}: its index and its files disagree about {len(other)} tensors ({listed(other)}); download the "
            "checkpoint again."
        )
    return stored


def _find_expected_shapes(config: SDiaRewardConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = SDiaRewardModel(config)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _plan_tensor(name: str, tensor: StoredTensor, dtype: str | None, reward_scale: float = 1.0) -> PlannedTensor:
    if dtype is not None and dtype not in _DTYPES_BY_NAME:
        raise ValueError(f"dtype is {dtype!r}; choose one of {', '.join(_DTYPES_BY_NAME)}.")
    is_backbone = name.startswith("model.")
    factor = reward_scale if name.startswith("score.") else 1.0
    return PlannedTensor(tensor, _DTYPES_BY_NAME[dtype] if dtype and is_backbone else DTYPES[tensor.dtype], factor)


def _write(
    source: Source,
    output_dir: str | Path,
    tensors: Mapping[str, PlannedTensor],
    write_config: Callable[[Path], None],
    layout: str,
    max_shard_size: str,
) -> Path:
    paths = sorted({tensor.source.path for tensor in tensors.values()})
    identity = {
        "layout": layout,
        "source": [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths],
        "config": json.loads(source.config.to_json_string()),
        "dtypes": sorted({str(tensor.dtype) for tensor in tensors.values()}),
    }

    def write_files(folder: Path) -> None:
        write_config(folder)
        if (hashes := source.folder / PAIRS_RECORD).is_file():
            shutil.copy(hashes, folder)

    write_checkpoint(Path(output_dir), tensors, write_files, identity=identity, max_shard_size=max_shard_size)
    return Path(output_dir)


def _load_processor(source: Source) -> SDiaRewardProcessor:
    config = source.config
    names = ("prompts", "prompt_version", "max_turn_s", "stack_factor")
    return SDiaRewardProcessor.from_backbone(source.folder, **{name: getattr(config, name) for name in names})


def _set_dtype(source: Source, dtype: str | None) -> None:
    """Set the dtype in which the backbone computes; by default it stays as it is configured or stored."""
    if dtype is None and source.config.dtype is None:
        dtype = str(DTYPES[next(iter(source.tensors.values())).dtype]).removeprefix("torch.")
    if dtype is not None:
        source.config.dtype = dtype


def _write_native_config(config: SDiaRewardConfig, processor: SDiaRewardProcessor, folder: Path) -> None:
    with torch.device("meta"):
        model = SDiaRewardModel(config)
    model.to(getattr(torch, str(config.dtype).removeprefix("torch.")))
    model.save_pretrained(folder, state_dict={})
    processor.save_pretrained(folder)
