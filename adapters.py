"""Adapters of a trained model: saved with the head that was trained beside them, loaded back in one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from peft import PeftModel

    from .modeling_sdiareward import SDiaRewardModel
    from .processing_sdiareward import SDiaRewardProcessor

_ADAPTER_CONFIG = "adapter_config.json"
# The text model only: the names of its projections occur in the audio tower too.
TEXT_PROJECTIONS = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"


def add_adapters(model: SDiaRewardModel, *, r: int, alpha: int) -> PeftModel:
    """Put low-rank adapters into the text model and leave nothing else trainable but score and pooler.

    Args:
        model ([`SDiaRewardModel`]): It is changed.
        r (`int`): Rank.
        alpha (`int`): Scale of the adapters, in units of `1 / r`.
    """
    from peft import LoraConfig, get_peft_model

    saved = ["score", "pooler"] if model.config.pooling_mode == "attention" else ["score"]
    adapters = LoraConfig(r=r, lora_alpha=alpha, target_modules=TEXT_PROJECTIONS, modules_to_save=saved)
    return get_peft_model(model, adapters)


def describe_adapters(model: PeftModel, processor: SDiaRewardProcessor, output_dir: str | Path) -> None:
    """Write the configuration and the processor that belong to adapters beside what `save_pretrained` wrote of them.

    Args:
        model (`peft.PeftModel`): A model that `add_adapters` gave.
        processor ([`SDiaRewardProcessor`]): Its processor.
        output_dir (`str` or `Path`): Folder that the adapters, score and pooler were saved in.
    """
    base: Any = model.get_base_model()
    base.config.save_pretrained(output_dir)
    processor.save_pretrained(output_dir)


def is_adapter(name_or_path: str | Path) -> bool:
    """Say whether a folder, or a repository on the Hub, holds adapters."""
    from transformers.utils import cached_file

    return cached_file(str(name_or_path), _ADAPTER_CONFIG, _raise_exceptions_for_missing_entries=False) is not None


def load_adapted(
    name_or_path: str | Path, *, base_model: str | Path | None = None, merge: bool = True, **kwargs: Any
) -> Any:
    """Load the model that adapters were trained on, with the adapters and their head in it.

    Args:
        name_or_path (`str` or `Path`): What `save_pretrained` and `describe_adapters` wrote; folder or Hub id.
        base_model (`str` or `Path`, *optional*): The checkpoint or backbone underneath, where it is not any more where
            the adapters say.
        merge (`bool`, *optional*, defaults to `True`): Add the adapters to the weights; without it a
            `peft.PeftModel` is returned.
        kwargs: Fields of [`SDiaRewardConfig`] and arguments of `from_pretrained` (`dtype`, `device_map`, ...).

    Example:
        >>> model = load_adapted("runs/3b_lora/adapter")  # doctest: +SKIP
    """
    from peft import PeftConfig, PeftModel

    from .configuration_sdiareward import SDiaRewardConfig
    from .layouts_sdiareward import HEAD, list_tensors, own_name
    from .modeling_sdiareward import SDiaRewardModel

    base = str(base_model or PeftConfig.from_pretrained(str(name_or_path)).base_model_name_or_path)
    fields = {name: kwargs.pop(name) for name in SDiaRewardConfig.__annotations__ if name in kwargs}
    config = SDiaRewardConfig.from_pretrained(name_or_path, **fields)
    if HEAD in map(own_name, list_tensors(base)):
        model = SDiaRewardModel.from_pretrained(base, config=config, **kwargs)
    else:
        model = SDiaRewardModel.from_backbone(base, pooling_mode=config.pooling_mode, **kwargs)
        model.config = config
    adapted = PeftModel.from_pretrained(model, str(name_or_path))
    return adapted.merge_and_unload() if merge else adapted
