"""Low-rank adapters of a trained model, saved and loaded with their score head."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .adapter_files import PROJECTION, is_adapter, merge_adapters, put_adapters, reject_custom_adapters
from .models import find_base, find_checkpoint


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

# The text model only: the audio tower has projections with the same names.
TEXT_PROJECTIONS = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"


def add_adapters(model: SDiaRewardModel, *, r: int, alpha: int, train_projection: bool = False) -> PeftModel:
    """Add low-rank adapters to the text model, scaled by `alpha / r`; score and pooler stay trainable."""
    from peft import LoraConfig, get_peft_model

    if train_projection:
        # Most updates are smaller than half a step of bfloat16.
        model.model.audio_tower.proj.float()
    saved = [PROJECTION] if train_projection else None
    return get_peft_model(model, fit_adapters(LoraConfig(r=r, lora_alpha=alpha, modules_to_save=saved), model))


def fit_adapters(config: PeftConfig, model: SDiaRewardModel) -> PeftConfig:
    """Return adapter settings that also save the score head; by default the adapters are on the text model."""
    found: Any = copy(config)
    head = ["score", "pooler"] if model.config.pooling_mode == "attention" else ["score"]
    found.modules_to_save = [*head, *(name for name in found.modules_to_save or () if name not in head)]
    found.target_modules = found.target_modules or TEXT_PROJECTIONS
    return found


def continue_adapters(model: SDiaRewardModel, name_or_path: str | Path) -> PeftModel:
    """Add the adapters of an earlier run, with its head and projection, to train them further."""
    return put_adapters(model, name_or_path, is_trainable=True)


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


def load_adapted(name_or_path: str | Path, *, base_model: str | Path | None = None, **kwargs: Any) -> Any:
    """Load a model with merged adapters and their head; `kwargs` go to its configuration or `from_pretrained`."""
    from sdiareward.modeling_sdiareward import SDiaRewardModel

    # The package's own adapters have no base model beside them.
    if base_model is None and not is_adapter(checkpoint := find_checkpoint(name_or_path)):
        return SDiaRewardModel.from_pretrained(checkpoint, **kwargs)
    base = base_model or find_base(name_or_path, reject_custom_adapters(name_or_path))
    if base is None:
        raise ValueError(f"{name_or_path}: the adapters do not name a base model; give base_model.")
    return merge_adapters(name_or_path, base, **kwargs)
