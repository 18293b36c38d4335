"""List the files of a checkpoint that are published; other files in its folder never are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.checkpoint_io.files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    REMOTE_CODE,
    WEIGHTS,
    WEIGHTS_INDEX,
    list_weight_files,
    read_json,
)
from sdiareward.common.package_files import PACKAGE

from .plan import PlannedFile


CONFIG = "config.json"
PROCESSOR = "processor_config.json"
_PROCESSOR_FILES = (
    PROCESSOR,
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)
# Keys that hold the folder that a configuration was loaded from.
_PLACES = ("_name_or_path", "name_or_path")
_MODEL_TYPE = "sdiareward"
# Of `peft`: an adapter that changes no projection and only brings modules of its own.
_NO_PROJECTIONS = "dummy-target-modules"


def is_adapter_folder(checkpoint: Path) -> bool:
    return (checkpoint / ADAPTER_CONFIG).is_file()


def list_model_files(checkpoint: Path) -> list[PlannedFile]:
    _require_own(checkpoint, (CONFIG, "AutoConfig"), (CONFIG, "AutoModel"), (PROCESSOR, "AutoProcessor"))
    shards = list_weight_files(checkpoint)
    names = [CONFIG, *shards] if shards == [WEIGHTS] else [CONFIG, WEIGHTS_INDEX, *shards]
    return [*_plan_required(checkpoint, names), *_plan_processor(checkpoint), *_list_code()]


def list_adapter_files(checkpoint: Path, base_model: str) -> list[PlannedFile]:
    """Return adapters with the head that was trained beside them, processor and code."""
    _require_own(checkpoint, (CONFIG, "AutoConfig"), (PROCESSOR, "AutoProcessor"))
    names = _read_tensor_names(checkpoint / ADAPTER_WEIGHTS)
    if not any(".score." in name for name in names):
        raise ValueError(f"{checkpoint / ADAPTER_WEIGHTS}: holds no score head; save the adapters with train.py.")
    config = _remove_places(read_json(checkpoint / ADAPTER_CONFIG)) | {"base_model_name_or_path": base_model}
    files = _plan_required(checkpoint, [CONFIG, ADAPTER_WEIGHTS])
    return [_make_json_file(ADAPTER_CONFIG, config), *files, *_plan_processor(checkpoint), *_list_code()]


def make_head_files(checkpoint: Path, base_model: str) -> list[PlannedFile]:
    """Return the head of a complete model in the form of adapters, without its frozen backbone."""
    from safetensors.numpy import save

    _require_own(checkpoint, (CONFIG, "AutoConfig"), (PROCESSOR, "AutoProcessor"))
    tensors = _read_head_tensors(checkpoint)
    modules = sorted({name.split(".")[0] for name in tensors})
    config = {
        "base_model_name_or_path": base_model,
        "modules_to_save": modules,
        "peft_type": "LORA",
        "target_modules": _NO_PROJECTIONS,
    }
    weights = save({f"base_model.model.{name}": tensor for name, tensor in tensors.items()})
    files = [_make_json_file(ADAPTER_CONFIG, config), PlannedFile(ADAPTER_WEIGHTS, weights)]
    return [*files, *_plan_required(checkpoint, [CONFIG]), *_plan_processor(checkpoint), *_list_code()]


def _read_head_tensors(checkpoint: Path) -> dict[str, Any]:
    from safetensors import safe_open

    found: dict[str, Any] = {}
    for planned in _plan_required(checkpoint, list_weight_files(checkpoint)):
        path = checkpoint / planned.path_in_repo
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                if name.startswith(("score.", "pooler.")):
                    if file.get_slice(name).get_dtype() != "F32":
                        raise ValueError(f"{path}: {name} is not in float32; save the model with this package.")
                    found[name] = file.get_tensor(name)
    if "score.weight" not in found:
        raise FileNotFoundError(f"{checkpoint}: holds no score.weight; give the folder of a complete model.")
    return found


def _list_code() -> list[PlannedFile]:
    return [PlannedFile(name, PACKAGE / name) for name in REMOTE_CODE]


def _plan_processor(checkpoint: Path) -> list[PlannedFile]:
    return [_plan_file(checkpoint / name) for name in _PROCESSOR_FILES if (checkpoint / name).is_file()]


def _plan_required(checkpoint: Path, names: list[str]) -> list[PlannedFile]:
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{checkpoint}: its index names {name!r}, which is not a file of this folder.")
        if not (checkpoint / name).is_file():
            raise FileNotFoundError(f"{checkpoint / name}: not found; give the folder of a complete checkpoint.")
    return [_plan_file(checkpoint / name) for name in names]


def _plan_file(path: Path) -> PlannedFile:
    """Return a file; a configuration without the folder that it was loaded from."""
    if path.suffix == ".json" and path.name.endswith("config.json"):
        content = read_json(path)
        public = _remove_places(content)
        if public != content:
            return _make_json_file(path.name, public)
    return PlannedFile(path.name, path)


def _remove_places(value: Any) -> Any:
    """Return a value of a configuration without the folders in it or in the configurations of its parts."""
    if isinstance(value, dict):
        return {key: _remove_places(part) for key, part in value.items() if key not in _PLACES}
    return [_remove_places(part) for part in value] if isinstance(value, list) else value


def _require_own(checkpoint: Path, *wanted: tuple[str, str]) -> None:
    """Raise unless each file maps auto classes, and tasks of pipelines, to classes of this package only."""
    config = read_json(checkpoint / CONFIG)
    if config.get("model_type") != _MODEL_TYPE:
        raise ValueError(
            f"{checkpoint}: its model_type is {config.get('model_type')!r}; make a checkpoint of this package of it "
            "first, with sdiareward convert."
        )
    for name, auto_class in wanted:
        auto_map: Mapping[str, Any] = read_json(checkpoint / name).get("auto_map") or {}
        if auto_class not in auto_map:
            raise ValueError(f"{checkpoint / name}: auto_map has no {auto_class}; save it again with this package.")
        pipelines: Mapping[str, Any] = read_json(checkpoint / name).get("custom_pipelines") or {}
        for reference in [*auto_map.values(), *(task.get("impl") for task in pipelines.values())]:
            if f"{str(reference).partition('.')[0]}.py" not in REMOTE_CODE:
                raise ValueError(
                    f"{checkpoint / name}: names {reference!r}, which is not code of this package; save it again "
                    "with this package."
                )


def _read_tensor_names(path: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found; save the adapters as safetensors.")
    try:
        with safe_open(path, "np") as file:
            return list(file.keys())
    except SafetensorError as error:
        raise ValueError(f"{path}: not safetensors ({error}); save the adapters again.") from error


def _make_json_file(name: str, content: Mapping[str, Any]) -> PlannedFile:
    return PlannedFile(name, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())
