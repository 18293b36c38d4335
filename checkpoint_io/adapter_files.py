"""Load low-rank adapters into their base model, completely or not at all.

Their configuration is checked before PEFT reads it, because some fields import modules or load pickles.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import read_json_object
from sdiareward.common.hub import resolve_revision

from .files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, list_checkpoint_tensors


if TYPE_CHECKING:
    from peft import PeftModel

PROJECTION = "audio_tower.proj"

# Allowed fields. `auto_mapping` names a module, but only for PEFT's auto classes, which we do not use.
_FIELDS = {
    *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "fan_in_fan_out", "inference_mode"),
    *("init_lora_weights", "lora_alpha", "lora_dropout", "modules_to_save", "peft_type", "peft_version", "r"),
    *("rank_pattern", "revision", "target_modules", "task_type", "use_dora", "use_rslora"),
    # Set by default, but without effect.
    *("megatron_core", "qalora_group_size"),
}


def is_adapter(name_or_path: str | Path) -> bool:
    return _find_file(name_or_path, ADAPTER_CONFIG) is not None


def _find_file(name_or_path: str | Path, name: str) -> str | None:
    from transformers.utils import cached_file

    found: str | None = cached_file(str(name_or_path), name, _raise_exceptions_for_missing_entries=False)
    return found


def reject_custom_adapters(name_or_path: str | Path) -> str | None:
    """Check that a folder or repository has low-rank adapters that cannot run code."""
    config, weights = (_find_file(name_or_path, name) for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS))
    if config is None or weights is None:
        missing = ADAPTER_CONFIG if config is None else ADAPTER_WEIGHTS
        raise FileNotFoundError(f"{name_or_path}: has no {missing}; adapters are read from safetensors only.")
    found = read_json_object(Path(config), "download it again")
    if found.get("peft_type") != "LORA" or not isinstance(found.get("base_model_name_or_path"), (str, type(None))):
        raise ValueError(f"{config}: these are not low-rank adapters (peft_type LORA) with a named base model.")
    if unused := sorted(name for name, value in found.items() if value and name not in _FIELDS):
        raise ValueError(f"{config}: sets {unused[0]}, which is not supported; remove it.")
    return read_base(found)


def read_base(config: Mapping[str, Any]) -> str | None:
    """Return the base model of adapters, with its commit if they name a revision."""
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    return resolve_revision(base, revision) if base and revision and not Path(base).exists() else base


def put_adapters(model: Any, name_or_path: str | Path, *, is_trainable: bool = False) -> PeftModel:
    """Load adapters, and modules trained with them, into their base model; every tensor must match one."""
    from peft import LoraConfig, PeftModel

    from sdiareward.loading_sdiareward import check_adapter

    reject_custom_adapters(name_or_path)
    settings = LoraConfig.from_pretrained(str(name_or_path))
    settings.inference_mode = not is_trainable
    if is_trainable and PROJECTION in (settings.modules_to_save or ()):
        # Most updates are smaller than half a step of bfloat16.
        model.model.audio_tower.proj.float()
    adapted = PeftModel(model, settings)
    check_adapter(adapted, name_or_path)
    adapted.load_adapter(str(name_or_path), "default", is_trainable=is_trainable)
    return adapted


def merge_adapters(name_or_path: str | Path, base_model: str | Path, **kwargs: Any) -> Any:
    """Load a base model (checkpoint or backbone) and merge adapters into it; `kwargs` as in `load_adapted`."""
    from sdiareward.configuration_sdiareward import SDiaRewardConfig
    from sdiareward.loading_sdiareward import HEAD, to_native_key
    from sdiareward.modeling_sdiareward import SDiaRewardModel

    base = str(base_model)
    fields = {name: kwargs.pop(name) for name in SDiaRewardConfig.__annotations__ if name in kwargs}
    config = SDiaRewardConfig.from_pretrained(name_or_path, **fields)
    if HEAD in map(to_native_key, list_checkpoint_tensors(base)):
        model = SDiaRewardModel.from_pretrained(base, config=config, **kwargs)
    else:
        model = SDiaRewardModel.from_backbone(base, pooling_mode=config.pooling_mode, **kwargs)
        model.config = config
    merged: Any = put_adapters(model, name_or_path)
    return merged.merge_and_unload()
