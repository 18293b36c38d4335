"""Low-rank adapters of a trained model: saved with the head that was trained beside them, loaded in one line.

The configuration of adapters is checked before PEFT reads it: some of its fields import modules or load pickles.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import read_json_object

from .files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from .hub_files import list_checkpoint_tensors


if TYPE_CHECKING:
    from peft import PeftModel

    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

# The text model only: the names of its projections occur in the audio tower too.
TEXT_PROJECTIONS = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"

_PROJECTION = "audio_tower.proj"

# Fields that may be set. `auto_mapping` names a module too, but only for PEFT's auto classes, which are not used.
_FIELDS = {
    *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "fan_in_fan_out", "inference_mode"),
    *("init_lora_weights", "lora_alpha", "lora_dropout", "modules_to_save", "peft_type", "peft_version", "r"),
    *("rank_pattern", "revision", "target_modules", "task_type", "use_dora", "use_rslora"),
    # Set by default, without an effect.
    *("megatron_core", "qalora_group_size"),
}


def add_adapters(model: SDiaRewardModel, *, r: int, alpha: int, train_projection: bool = False) -> PeftModel:
    """Add low-rank adapters to the text model, scaled by `alpha / r`; score and pooler stay trainable."""
    from peft import LoraConfig, get_peft_model

    saved = ["score", "pooler"] if model.config.pooling_mode == "attention" else ["score"]
    if train_projection:
        saved.append(_PROJECTION)
        # Most updates are less than half a step of a bfloat16 weight.
        model.model.audio_tower.proj.float()
    adapters = LoraConfig(r=r, lora_alpha=alpha, target_modules=TEXT_PROJECTIONS, modules_to_save=saved)
    return get_peft_model(model, adapters)


def continue_adapters(model: SDiaRewardModel, name_or_path: str | Path) -> PeftModel:
    """Add the adapters of an earlier run with the head and projection trained beside them, to train further."""
    from peft import LoraConfig, PeftModel

    reject_custom_adapters(name_or_path)
    settings = LoraConfig.from_pretrained(str(name_or_path))
    if _PROJECTION in (settings.modules_to_save or ()):
        model.model.audio_tower.proj.float()
    adapted: PeftModel = PeftModel.from_pretrained(model, str(name_or_path), is_trainable=True)
    return adapted


def keep_input_dtype(model: Any, *, is_autocast: bool) -> AbstractContextManager[None]:
    """Save two casts of every input: PEFT casts to the adapters' float32, and autocast casts it back."""
    if not is_autocast or not hasattr(model, "get_base_model"):
        return nullcontext()
    from peft.helpers import disable_input_dtype_casting

    kept: AbstractContextManager[None] = disable_input_dtype_casting(model)
    return kept


def write_adapter_files(model: PeftModel, processor: SDiaRewardProcessor, output_dir: str | Path) -> None:
    base: Any = model.get_base_model()
    base.config.save_pretrained(output_dir)
    processor.save_pretrained(output_dir)


def is_adapter(name_or_path: str | Path) -> bool:
    return _find_file(name_or_path, ADAPTER_CONFIG) is not None


def _find_file(name_or_path: str | Path, name: str) -> str | None:
    from transformers.utils import cached_file

    found: str | None = cached_file(str(name_or_path), name, _raise_exceptions_for_missing_entries=False)
    return found


def reject_custom_adapters(name_or_path: str | Path) -> str | None:
    """Check that a folder or repository holds low-rank adapters that run no code."""
    config, weights = (_find_file(name_or_path, name) for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS))
    if config is None or weights is None:
        raise FileNotFoundError(
            f"{name_or_path}: holds no {ADAPTER_CONFIG if config is None else ADAPTER_WEIGHTS}; adapters are read "
            "from safetensors only, because files of other kinds (.bin, .pt) can run code when they are loaded."
        )
    found = read_json_object(Path(config), "download it again")
    if problem := _find_problem(found):
        raise ValueError(f"{config}: {problem}.")
    base: str | None = found.get("base_model_name_or_path")
    return base


def _find_problem(config: Mapping[str, Any]) -> str | None:
    if config.get("peft_type") != "LORA" or not isinstance(config.get("base_model_name_or_path"), (str, type(None))):
        return "is not of low-rank adapters (peft_type LORA) on a model with a name"
    if unused := sorted(name for name, value in config.items() if value and name not in _FIELDS):
        return f"sets {unused[0]}, which is not supported; remove it"
    return None


def load_adapted(name_or_path: str | Path, *, base_model: str | Path | None = None, **kwargs: Any) -> Any:
    """Load a model with its adapters merged, and their head; `kwargs` go to its configuration or `from_pretrained`."""
    from peft import PeftModel

    from sdiareward.configuration_sdiareward import SDiaRewardConfig
    from sdiareward.loading_sdiareward import HEAD, to_native_key
    from sdiareward.modeling_sdiareward import SDiaRewardModel

    trained_on = reject_custom_adapters(name_or_path)
    base = base_model or trained_on
    if base is None:
        raise ValueError(
            f"{name_or_path}: these adapters name no base model; give base_model, or the name of the built-in model "
            "whose adapters they are."
        )
    base = str(base)
    fields = {name: kwargs.pop(name) for name in SDiaRewardConfig.__annotations__ if name in kwargs}
    config = SDiaRewardConfig.from_pretrained(name_or_path, **fields)
    if HEAD in map(to_native_key, list_checkpoint_tensors(base)):
        model = SDiaRewardModel.from_pretrained(base, config=config, **kwargs)
    else:
        model = SDiaRewardModel.from_backbone(base, pooling_mode=config.pooling_mode, **kwargs)
        model.config = config
    return PeftModel.from_pretrained(model, str(name_or_path)).merge_and_unload()
