"""The sizes that a configuration may have: a damaged or hostile one is refused before a model is built of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig


# Largest sizes that are built, far above those of any existing backbone. A larger size is damaged, or made to exhaust
# the memory. Both names of a size are checked.
_MOST_LABELS = 4096  # `transformers` makes a name for each.
_LARGEST_TEXT = {
    "num_hidden_layers": 512,
    "hidden_size": 65_536,
    "intermediate_size": 2**20,
    "num_attention_heads": 1024,
    "num_key_value_heads": 1024,
    "head_dim": 8192,
    "vocab_size": 2**22,
    "num_labels": _MOST_LABELS,
}
_LARGEST_AUDIO = {
    **{name: _LARGEST_TEXT[name] for name in list(_LARGEST_TEXT)[:4]},
    "num_labels": _MOST_LABELS,
    "encoder_layers": 512,
    "d_model": 65_536,
    "encoder_ffn_dim": 2**20,
    "encoder_attention_heads": 1024,
    "num_mel_bins": 1024,
    "max_source_positions": 2**17,
    "n_window": 2**17,
    "output_dim": 65_536,
}
_LARGEST_VISION = {
    **{name: _LARGEST_TEXT[name] for name in list(_LARGEST_TEXT)[:4]},
    **{"depth": 512, "num_heads": 1024, "out_hidden_size": 65_536, "in_channels": 16, "in_chans": 16},
    "num_labels": _MOST_LABELS,
    **dict.fromkeys(("patch_size", "spatial_patch_size", "temporal_patch_size", "spatial_merge_size"), 64),
}
_LARGEST = {"text_config": _LARGEST_TEXT, "audio_config": _LARGEST_AUDIO, "vision_config": _LARGEST_VISION}


def validate_sizes(config_dict: Mapping[str, Any]) -> None:
    """Raise unless a model of this configuration can be built, before anything is.

    Args:
        config_dict (`Mapping`): Content of a `config.json`, a thinker's or that of a full model around it; sub-models
            as mappings or as configurations of `transformers`.

    Raises:
        ValueError: A size is no whole number from 0 to the largest that is built, or the attention is to be fetched
            from a repository, which would run its code.
    """
    for name in ("_attn_implementation", "attn_implementation"):
        if any(sign in str(config_dict.get(name)) for sign in "/|"):
            raise ValueError(
                f"{name} is {config_dict[name]!r}; a checkpoint cannot have kernels fetched: take the line out."
            )
    _validate_values("configuration", config_dict, {"num_labels": _MOST_LABELS})
    for part, largest in _LARGEST.items():
        _validate_part(part, config_dict.get(part), largest)
    if "thinker_config" in config_dict:
        if not isinstance(config_dict["thinker_config"], Mapping):
            raise ValueError(f"thinker_config is a {type(config_dict['thinker_config']).__name__}; give a mapping.")
        validate_sizes(config_dict["thinker_config"])


def _validate_part(part: str, config: Any, largest: Mapping[str, int]) -> None:
    if config is None:
        return
    if not isinstance(config, (Mapping, PreTrainedConfig)):
        raise ValueError(f"{part} is a {type(config).__name__}; give a mapping of names to values.")
    values = config if isinstance(config, Mapping) else config.to_dict()
    _validate_values(part, values, largest)
    validate_sizes({name: values[name] for name in ("_attn_implementation", "attn_implementation") if name in values})


def _validate_values(part: str, values: Mapping[str, Any], largest: Mapping[str, int]) -> None:
    for name, limit in largest.items():
        value = values.get(name)
        is_size = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit
        if value is not None and not is_size:
            raise ValueError(f"{part}: {name} is {value!r}; a whole number up to {limit} is needed to build a model.")


__all__ = ["validate_sizes"]
