"""Loading of checkpoints, completely or not at all: ours, those of the authors, and backbones without a head."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.modeling_utils import set_zero3_state
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniPreTrainedModel

from .configuration_sdiareward import EXTERNAL_MODEL_TYPES, SDiaRewardConfig
from .layouts_sdiareward import (
    HUB_KWARGS,
    check_keys,
    check_shapes,
    list_shapes,
    list_tensors,
    listed,
    read_foreign_config,
    read_thinker_config,
    to_native_key,
)


_NEW_HEAD_PREFIXES = ("score.", "pooler.")


class SDiaRewardPreTrainedModel(Qwen2_5OmniPreTrainedModel):
    """What [`SDiaRewardModel`] has of loading."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint of this model or a released one of the authors, completely or not at all.

        Arguments are those of `transformers`; fields of [`SDiaRewardConfig`] override the checkpoint's. The authors'
        checkpoints lack pooling and system prompt: give `prompts`, and `pooling_mode="last_token"` where it applies.

        Raises:
            FileNotFoundError: The checkpoint holds no safetensors; files of other kinds are not read.
            ValueError: The checkpoint lacks a tensor of the model, holds an unknown one or one of another shape, has
                no reward head, or contradicts the given `pooling_mode`.
        """
        if pretrained_model_name_or_path is not None and not isinstance(kwargs.get("config"), PreTrainedConfig):
            kwargs = cls.with_foreign_config(pretrained_model_name_or_path, kwargs)
        return cls._load_complete(pretrained_model_name_or_path, *args, may_lack=(), **kwargs)

    @classmethod
    def with_foreign_config(cls, name_or_path: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the configuration of a foreign checkpoint; for a native one unchanged."""
        hub_kwargs = {name: kwargs[name] for name in HUB_KWARGS if name in kwargs}
        config_dict, _ = SDiaRewardConfig.get_config_dict(name_or_path, **hub_kwargs)
        if config_dict.get("model_type") not in EXTERNAL_MODEL_TYPES:
            return kwargs
        given = {name: kwargs[name] for name in SDiaRewardConfig.__annotations__ if name in kwargs}
        names = list_tensors(name_or_path, **hub_kwargs)
        config = read_foreign_config(config_dict, names, name_or_path, **given)
        with torch.device("meta"), set_zero3_state():
            check_keys(names, cls(config).state_dict(), name_or_path)
        return {**{name: value for name, value in kwargs.items() if name not in given}, "config": config}

    @classmethod
    def from_backbone(cls, pretrained_model_name_or_path: Any, *, pooling_mode: str = "mean", **kwargs: Any) -> Any:
        """Add a new head, at zero, to a pretrained thinker.

        Args:
            pretrained_model_name_or_path (`str` or `Path`): Hub id, such as `"Qwen/Qwen2.5-Omni-3B"`, or folder of a
                full Qwen2.5-Omni checkpoint or of its thinker alone.
            pooling_mode (`str`, *optional*, defaults to `"mean"`): As in [`SDiaRewardConfig`].
            kwargs: Fields of [`SDiaRewardConfig`] (`prompts`, `max_turn_s`, ...) and arguments of `from_pretrained`
                (`dtype`, `attn_implementation`, `revision`, ...).

        Raises:
            ValueError: The checkpoint is no thinker, or already holds a reward head.
        """
        own_fields = {name: kwargs.pop(name) for name in SDiaRewardConfig.__annotations__ if name in kwargs}
        hub_kwargs = {name: kwargs[name] for name in HUB_KWARGS if name in kwargs}
        thinker_config = read_thinker_config(pretrained_model_name_or_path, **hub_kwargs)
        config = SDiaRewardConfig.from_thinker(thinker_config, pooling_mode=pooling_mode, **own_fields)
        names = list_tensors(pretrained_model_name_or_path, **hub_kwargs)
        if heads := sorted(name for name in names if (to_native_key(name) or "").startswith(_NEW_HEAD_PREFIXES)):
            raise ValueError(
                f"{pretrained_model_name_or_path}: holds a reward head already ({listed(heads)}); load it with "
                "from_pretrained, or make it a checkpoint of this package with sdiareward convert."
            )
        return cls._load_complete(pretrained_model_name_or_path, config=config, may_lack=_NEW_HEAD_PREFIXES, **kwargs)

    @classmethod
    def _load_complete(cls, name_or_path: Any, *args: Any, may_lack: tuple[str, ...], **kwargs: Any) -> Any:
        wants_info = kwargs.pop("output_loading_info", False)
        if name_or_path is not None:
            cls._check_files(name_or_path, kwargs, may_lack)
        # Files of another kind could run code.
        options = {**kwargs, "output_loading_info": True, "use_safetensors": True}
        loaded: Any = super().from_pretrained(name_or_path, *args, **options)
        model, info = loaded
        # Every tensor of the headers must have been loaded.
        strange = {key for key in info["missing_keys"] if not key.startswith(may_lack or ("\0",))}
        if strange := strange | set(info["unexpected_keys"]):
            raise ValueError(
                f"{name_or_path}: {len(strange)} tensors are missing or have no place in the model "
                f"({listed(sorted(strange))}); give a complete checkpoint of this model or of Qwen2.5-Omni."
            )
        return (model, info) if wants_info else model

    @classmethod
    def _check_files(cls, name_or_path: Any, kwargs: dict[str, Any], may_lack: tuple[str, ...]) -> None:
        """Check that the files hold what the configuration asks for; only headers are read, nothing is allocated."""
        hub_kwargs = {name: kwargs[name] for name in HUB_KWARGS if name in kwargs}
        config: Any = kwargs.get("config")
        if not isinstance(config, PreTrainedConfig):
            fields = {name: kwargs[name] for name in SDiaRewardConfig.__annotations__ if name in kwargs}
            config = SDiaRewardConfig.from_pretrained(config or name_or_path, **hub_kwargs, **fields)
        # Under DeepSpeed's ZeRO-3 transformers would shard this model, and write values into its tensors without data.
        with torch.device("meta"), set_zero3_state():
            expected = {name: tuple(tensor.shape) for name, tensor in cls(config).state_dict().items()}
        check_shapes(list_shapes(name_or_path, **hub_kwargs), expected, may_lack, name_or_path)


__all__ = ["SDiaRewardPreTrainedModel"]
