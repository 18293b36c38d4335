"""Adapters of a trained model: saved with the head that was trained beside them, loaded back in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from peft import PeftModel

    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

_ADAPTER_CONFIG, _ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# The text model only: the names of its projections occur in the audio tower too.
TEXT_PROJECTIONS = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"

# Far above any that is trained; a rank decides how much memory adapters take before their weights are read.
_MAX_RANK = 4096
# A module's name, or one with a number in it; any other pattern could take for ever to match.
_MODULE_NAME = re.compile(r"[\w.-]+", re.ASCII)
# What may be set; every other field of PEFT has its empty default, for some copy layers, import modules, read files or
# take patterns. `auto_mapping` names a module too, but only for PEFT's auto classes, which are not used.
_FIELDS = {
    *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "fan_in_fan_out", "inference_mode"),
    *("init_lora_weights", "lora_alpha", "lora_dropout", "modules_to_save", "peft_type", "peft_version", "r"),
    *("rank_pattern", "revision", "target_modules", "task_type", "use_dora", "use_rslora"),
    # Set by default, and without an effect of their own.
    *("megatron_core", "qalora_group_size"),
}


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


def write_adapter_files(model: PeftModel, processor: SDiaRewardProcessor, output_dir: str | Path) -> None:
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


def reject_custom_adapters(name_or_path: str | Path) -> str | None:
    """Raise unless a folder or repository holds low-rank adapters and nothing that could run code or take the memory.

    Args:
        name_or_path (`str` or `Path`): What may come from somebody else.

    Returns:
        `str`, *optional*: Name of the model that they were trained on, as far as they say.

    Raises:
        FileNotFoundError: Their weights are no safetensors.
        ValueError: They are of another kind, too large, or ask for modules to be imported.
    """
    from transformers.utils import cached_file

    config, weights = (
        cached_file(str(name_or_path), name, _raise_exceptions_for_missing_entries=False)
        for name in (_ADAPTER_CONFIG, _ADAPTER_WEIGHTS)
    )
    if config is None or weights is None:
        raise FileNotFoundError(
            f"{name_or_path}: holds no {_ADAPTER_CONFIG if config is None else _ADAPTER_WEIGHTS}; adapters are read "
            "from safetensors alone, for files of other kinds (.bin, .pt) can run code when they are loaded."
        )
    try:
        found = json.loads(Path(config).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{config}: is not JSON ({error}); download it again.") from error
    if not isinstance(found, Mapping) or (problem := _problem_of_adapters(found)):
        raise ValueError(f"{config}: {problem if isinstance(found, Mapping) else 'holds no object'}.")
    base: str | None = found.get("base_model_name_or_path")
    return base


def _problem_of_adapters(config: Mapping[str, Any]) -> str | None:
    """Say what keeps a configuration of adapters from being used, None if nothing does."""
    if config.get("peft_type") != "LORA" or not isinstance(config.get("base_model_name_or_path"), (str, type(None))):
        return "is not of low-rank adapters (peft_type LORA) on a model with a name"
    if unused := sorted(name for name, value in config.items() if value and name not in _FIELDS):
        return f"sets {unused[0]}, which is not used here; take it out"
    patterns = config.get("rank_pattern") or {}
    # A head alone is published without adapters, and so without a rank.
    ranks = [config.get("r", 1), *(patterns.values() if isinstance(patterns, Mapping) else [None])]
    if not all(isinstance(rank, int) and 0 < rank <= _MAX_RANK for rank in ranks):
        return f"has ranks {ranks}; whole numbers up to {_MAX_RANK} are needed"
    modules = config.get("target_modules")
    names = [] if modules == TEXT_PROJECTIONS else [modules] if isinstance(modules, str) else modules
    names = [*(names or ()), *patterns, *(config.get("alpha_pattern") or ()), *(config.get("modules_to_save") or ())]
    if strange := [name for name in names if not (isinstance(name, str) and _MODULE_NAME.fullmatch(name))]:
        return f"names the module {strange[0]!r}; names without patterns are needed"
    return None


def load_adapted(
    name_or_path: str | Path, *, base_model: str | Path | None = None, merge: bool = True, **kwargs: Any
) -> Any:
    """Load the model that adapters were trained on, with the adapters and their head in it.

    Args:
        name_or_path (`str` or `Path`): What `save_pretrained` and `write_adapter_files` wrote; folder or Hub id.
        base_model (`str` or `Path`, *optional*): The checkpoint or backbone underneath, where it is not any more where
            the adapters say.
        merge (`bool`, *optional*, defaults to `True`): Add the adapters to the weights; without it a
            `peft.PeftModel` is returned.
        kwargs: Fields of [`SDiaRewardConfig`] and arguments of `from_pretrained` (`dtype`, `device_map`, ...).

    Raises:
        FileNotFoundError: The adapters are no safetensors.
        ValueError: The adapters are of another kind, too large, or ask for modules to be imported.

    Example:
        >>> model = load_adapted("runs/3b_lora/adapter")  # doctest: +SKIP
    """
    from peft import PeftModel

    from sdiareward.configuration_sdiareward import SDiaRewardConfig
    from sdiareward.layouts_sdiareward import HEAD, list_tensors, to_native_key
    from sdiareward.modeling_sdiareward import SDiaRewardModel

    trained_on = reject_custom_adapters(name_or_path)
    base = str(base_model or trained_on)
    fields = {name: kwargs.pop(name) for name in SDiaRewardConfig.__annotations__ if name in kwargs}
    config = SDiaRewardConfig.from_pretrained(name_or_path, **fields)
    if HEAD in map(to_native_key, list_tensors(base)):
        model = SDiaRewardModel.from_pretrained(base, config=config, **kwargs)
    else:
        model = SDiaRewardModel.from_backbone(base, pooling_mode=config.pooling_mode, **kwargs)
        model.config = config
    adapted = PeftModel.from_pretrained(model, str(name_or_path))
    return adapted.merge_and_unload() if merge else adapted
