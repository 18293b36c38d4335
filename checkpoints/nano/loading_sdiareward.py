"""Loading of checkpoints, completely or not at all: ours, the authors', and backbones without a head.

Their layouts:

| layout | text model | audio tower | head | attention pooler |
|---|---|---|---|---|
| native | `model.language_model.*` | `model.audio_tower.*` | `score.weight` | `pooler.attn.*` |
| the authors' (MM-Speech/SDiaReward) | `model.*` | `audio_tower.*` | `score_head.weight` | `pooler.attn.*` |
| Qwen2.5-Omni | `thinker.model.*` | `thinker.audio_tower.*` | none | none |
| vLLM's classifier | `thinker.model.*` | `thinker.audio_tower.*` | `language_model.score.weight` | none |

The other parts (vision tower, language-model head, talker, vocoder) do not enter a reward and are omitted. The
authors' configuration does not name the pooling of a checkpoint: its tensors show attention pooling, and mean pooling,
the recipe's, is assumed otherwise.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig, Qwen2_5OmniThinkerConfig
from transformers.modeling_utils import set_zero3_state
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniPreTrainedModel
from transformers.utils import cached_file
from transformers.utils.hub import is_offline_mode

from .configuration_sdiareward import EXTERNAL_MODEL_TYPES, OWN_FIELDS_KEY, SDiaRewardConfig


logger = logging.getLogger(__name__)

OFFICIAL_ARCHITECTURE = "QwenOmniThinkerReward"
HEAD = "score.weight"
ATTENTION_POOLER = ("pooler.attn.weight", "pooler.attn.bias")
INDEX_FILE, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"
# Arguments that a loader passes to the Hub.
HUB_KWARGS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_OMITTED = ("visual.", "model.visual.", "lm_head.", "talker.", "token2wav.")
# Longest first: "model." is the authors' prefix of the text model and the native one of both towers.
_NATIVE_PREFIXES = (
    ("language_model.score.", "score."),
    ("model.language_model.", "model.language_model."),
    ("model.audio_tower.", "model.audio_tower."),
    ("audio_tower.", "model.audio_tower."),
    ("score_head.", "score."),
    ("model.", "model.language_model."),
)
_NUM_LISTED = 5
# A file name without a path, on any system.
_OWN_FILE = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)
_NEW_HEAD_PREFIXES = ("score.", "pooler.")
_ADAPTER = "adapter_model.safetensors"
_PEFT_PREFIX = "base_model.model."
_PEFT_PARTS = re.compile(r"\.modules_to_save\.default|(?<=lora_magnitude_vector)\.default\.weight|\.default")


def to_native_key(name: str) -> str | None:
    """Return the native name of a tensor of any layout, or `None` for a part that is omitted."""
    name = name.removeprefix("thinker.")
    if name.startswith(_OMITTED):
        return None
    for prefix, native_prefix in _NATIVE_PREFIXES:
        if name.startswith(prefix):
            return native_prefix + name.removeprefix(prefix)
    return name


def to_official_key(name: str) -> str:
    """Return the name of a tensor of `SDiaRewardModel` in the authors' checkpoints."""
    if name == HEAD:
        return "score_head.weight"
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("model.")


def list_tensors(name_or_path: Any, **hub_kwargs: Any) -> set[str]:
    """Return the names of a checkpoint's tensors, from its index or from the header of its only file.

    Args:
        name_or_path (`str` or `Path`): Folder or Hub id.
        hub_kwargs: `revision`, `token`, `cache_dir`, ... of the Hub.

    Raises:
        FileNotFoundError: The checkpoint has no safetensors.
        ValueError: Its file cannot be read, or its index names files outside the checkpoint.
    """
    index, single = _find_weights(name_or_path, hub_kwargs)
    return set(_read_index(index)) if index is not None else set(_read_shapes(single))


def list_shapes(name_or_path: Any, **hub_kwargs: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's tensors by name, from the headers of its files.

    Arguments and errors are as in `list_tensors`; on the Hub every file is fetched.
    """
    index, single = _find_weights(name_or_path, hub_kwargs)
    if index is None:
        return _read_shapes(single)
    shapes: dict[str, tuple[int, ...]] = {}
    for name in sorted(set(_read_index(index).values())):
        shapes |= _read_shapes(cached_file(name_or_path, name, **hub_kwargs))
    return shapes


def _find_weights(name_or_path: Any, hub_kwargs: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the index of a checkpoint, if it has one, and its only file."""
    index, single = (
        cached_file(name_or_path, file, _raise_exceptions_for_missing_entries=False, **hub_kwargs)
        for file in (INDEX_FILE, SINGLE_FILE)
    )
    if index is None and single is None:
        # Without the Hub, what is not in the cache looks like what is not in the repository.
        if not os.path.isdir(name_or_path) and (is_offline_mode() or hub_kwargs.get("local_files_only")):
            found = "its weights are not in the cache, and HF_HUB_OFFLINE or local_files_only is set"
            raise FileNotFoundError(f"{name_or_path}: {found}; connect, or give the folder of a checkpoint.")
        found = f"has neither {SINGLE_FILE} nor {INDEX_FILE}, and files of other kinds can run code"
        raise FileNotFoundError(f"{name_or_path}: {found}; save it as safetensors with the library that wrote it.")
    return index, single


def _read_index(path: str) -> dict[str, str]:
    """Return the file of each tensor; refuse files that are not beside the index or not safetensors."""
    try:
        with open(path, encoding="utf-8") as file:
            weight_map = json.load(file)["weight_map"]
        if not weight_map or not all(isinstance(name, str) for item in weight_map.items() for name in item):
            raise ValueError("weight_map is not a mapping from tensors to files")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: is not an index of safetensors files ({error}); download it again.") from error
    if strange := sorted(name for name in set(weight_map.values()) if not _OWN_FILE.fullmatch(name)):
        raise ValueError(f"{path}: names {strange[0]!r}; give a checkpoint of safetensors beside its index.")
    return weight_map


def _read_shapes(path: Any) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: cannot be read as safetensors ({error}); download it again.") from error


def choose_pooling(names: Iterable[str], given: str | None, where: Any) -> str:
    """Return the pooling mode of a checkpoint that does not name it.

    Args:
        names (`Iterable[str]`): Names of its tensors.
        given (`str`, *optional*): From the caller or the configuration.
        where (`Any`): Name of the checkpoint in an error.

    Raises:
        ValueError: `given` contradicts the tensors.
    """
    has_pooler = not {to_native_key(name) for name in names}.isdisjoint(ATTENTION_POOLER)
    if given is None:
        return "attention" if has_pooler else "mean"
    if has_pooler != (given == "attention"):
        found = "has the attention pooler pooler.attn.*" if has_pooler else "has no pooler.attn.*"
        required = "attention" if has_pooler else "mean or last_token"
        raise ValueError(f"{where}: {found}, but pooling_mode is {given!r}; give {required}, or omit it.")
    return given


def check_shapes(
    found: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, tuple[int, ...]],
    may_lack: tuple[str, ...],
    where: Any,
) -> None:
    """Check that a checkpoint holds the tensors of the model in the shapes that its configuration asks for.

    The configuration decides how much memory a model takes: one that asks for more than its files hold fails first.

    Args:
        found (`Mapping[str, tuple[int, ...]]`): Shapes in the checkpoint by name, of any layout.
        expected (`Mapping[str, tuple[int, ...]]`): Shapes in the model by name.
        may_lack (`tuple[str, ...]`): Prefixes of tensors that are newly initialised.
        where (`Any`): Name of the checkpoint in an error.

    Raises:
        ValueError: Tensors are missing, have no place or another shape; they are named in the checkpoint's layout.
    """
    by_own_name = {own: name for name in found if (own := to_native_key(name)) is not None}
    required = {name for name in expected if not (may_lack and name.startswith(may_lack))}
    is_ours = any(own == name and own.startswith("model.") for own, name in by_own_name.items())
    lacking = required - by_own_name.keys()
    remedy = "give a complete checkpoint of this model or of Qwen2.5-Omni"
    if missing := sorted(lacking if is_ours else map(to_official_key, lacking)):
        raise ValueError(f"{where}: lacks {len(missing)} tensors of the model ({listed(missing)}); {remedy}.")
    if strange := sorted(by_own_name[name] for name in by_own_name.keys() - required):
        raise ValueError(f"{where}: has {len(strange)} tensors without a place ({listed(strange)}); {remedy}.")
    for own, name in by_own_name.items():
        if found[name] != expected[own]:
            sizes = f"{name} has the shape {list(found[name])}, its configuration asks for {list(expected[own])}"
            raise ValueError(f"{where}: {sizes}; download the checkpoint again.")


def check_adapter(model: Any, name_or_path: Any, **hub_kwargs: Any) -> None:
    """Check that every tensor of adapters has a place in the adapted model, and every place of theirs a tensor.

    PEFT only warns: the model would score as its base does.

    Args:
        model (`torch.nn.Module`): The model with the adapters, or their places, in it.
        name_or_path (`str` or `Path`): Folder or Hub id of the adapters.
        hub_kwargs: `revision`, `token`, `cache_dir`, ... of the Hub.

    Raises:
        ValueError: A tensor has no place, a place stays empty, or the shapes of both differ.
    """
    shapes = _read_shapes(cached_file(name_or_path, _ADAPTER, **hub_kwargs))
    found = {
        name.removeprefix(_PEFT_PREFIX) if name.startswith(_PEFT_PREFIX) else f"{name} without {_PEFT_PREFIX}": shape
        for name, shape in shapes.items()
    }
    state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    places = {_to_place(name): shape for name, shape in state.items()}
    required = {_to_place(name) for name in state if ".default" in name}
    # A new head is at zero: every reward would be 0.
    if not any(bool(tensor.any()) for name, tensor in model.state_dict().items() if name.endswith(HEAD)):
        required |= {name for name in places if name.startswith(_NEW_HEAD_PREFIXES) and "original_module" not in name}
    for names, problem in (
        (found.keys() - places.keys(), "have no place in the model"),
        (required - found.keys(), "are missing"),
        ({name for name in found if places.get(name, found[name]) != found[name]}, "have another shape in the model"),
    ):
        if names:
            reason = f"{len(names)} tensors of these adapters {problem} ({listed(sorted(names))})"
            raise ValueError(f"{name_or_path}: {reason}; give complete adapters and the model that they belong to.")


def _to_place(name: str) -> str:
    """Return the name that a tensor of an adapted model has in a file, without its prefix there."""
    return _PEFT_PARTS.sub("", name.removeprefix(_PEFT_PREFIX))


def read_foreign_config(
    config_dict: dict[str, Any], names: Iterable[str], where: Any, **fields: Any
) -> SDiaRewardConfig:
    """Make the configuration of a reward model from a foreign checkpoint's configuration and tensor names.

    Args:
        config_dict (`dict`): Content of its `config.json`.
        names (`Iterable[str]`): Names of its tensors.
        where (`Any`): Name of the checkpoint in a message.
        fields: Fields of [`SDiaRewardConfig`] that override the checkpoint's.

    Raises:
        ValueError: There is no reward head, or `pooling_mode` contradicts the tensors.
    """
    names = list(names)
    if HEAD not in map(to_native_key, names):
        found = "has no reward head (score_head.weight)"
        raise ValueError(f"{where}: {found}; start a new one with SDiaRewardModel.from_backbone.")
    known = {**config_dict.get(OWN_FIELDS_KEY, {}), **fields}
    pooling_mode = choose_pooling(names, known.get("pooling_mode"), where)
    if "prompts" not in known:
        remedy = "give its own with prompts={criterion: text} or --prompt-file"
        logger.warning("%s: has no system prompt, and rewards depend on it; the defaults are used: %s.", where, remedy)
    return SDiaRewardConfig.from_dict(config_dict, **{**fields, "pooling_mode": pooling_mode})


def read_thinker_config(name_or_path: Any, **hub_kwargs: Any) -> Qwen2_5OmniThinkerConfig:
    """Return the thinker's configuration from a full or a thinker-only checkpoint.

    Args:
        name_or_path (`str` or `Path`): Folder or Hub id.
        hub_kwargs: `revision`, `token`, `cache_dir`, ... of the Hub.

    Raises:
        ValueError: It is not a thinker.
    """
    config_dict, _ = Qwen2_5OmniThinkerConfig.get_config_dict(name_or_path, **hub_kwargs)
    thinker = config_dict.get("thinker_config", config_dict)
    if thinker.get("model_type") != Qwen2_5OmniThinkerConfig.model_type:
        found = f"its model_type is {thinker.get('model_type')!r}"
        raise ValueError(f"{name_or_path}: {found}, not a Qwen2.5-Omni's; load a reward model with from_pretrained.")
    return Qwen2_5OmniThinkerConfig.from_dict(thinker)


def read_processor_fields(name_or_path: Any, **hub_kwargs: Any) -> dict[str, Any] | None:
    """Return the fields for the processor of a released or exported checkpoint, `None` for any other folder.

    Args:
        name_or_path (`str` or `Path`): Folder or Hub id.
        hub_kwargs: `revision`, `token`, `cache_dir`, ... of the Hub.

    Returns:
        `dict`, *optional*: `prompts`, `prompt_version` and `max_turn_s`.
    """
    if cached_file(name_or_path, "config.json", _raise_exceptions_for_missing_entries=False, **hub_kwargs) is None:
        return None
    config_dict, _ = SDiaRewardConfig.get_config_dict(name_or_path, **hub_kwargs)
    is_reward_model = OWN_FIELDS_KEY in config_dict or config_dict.get("architectures") == [OFFICIAL_ARCHITECTURE]
    if config_dict.get("model_type") not in EXTERNAL_MODEL_TYPES or not is_reward_model:
        return None
    config = SDiaRewardConfig.from_dict(config_dict)
    return {name: getattr(config, name) for name in ("prompts", "prompt_version", "max_turn_s")}


def listed(names: list[str]) -> str:
    """Return the first few names for a message."""
    return ", ".join(names[:_NUM_LISTED]) + (", ..." if len(names) > _NUM_LISTED else "")


def find_checkpoint(name_or_path: Any) -> Any:
    """Return the folder of a model that the package has by name, such as `"nano"`; in a checkpoint's code the name."""
    if __package__ != "sdiareward" or name_or_path is None:
        return name_or_path
    # Not an import statement: transformers would look for the module beside a checkpoint's code.
    return import_module("sdiareward.checkpoint_io.models").find_checkpoint(name_or_path)


class SDiaRewardPreTrainedModel(Qwen2_5OmniPreTrainedModel):
    """What [`SDiaRewardModel`] has of loading."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint of this model or a released one of the authors, completely or not at all.

        The authors' checkpoints lack pooling and system prompt: give `prompts`, and `pooling_mode="last_token"` where
        it applies.

        Args:
            pretrained_model_name_or_path (`str` or `Path`): Folder or Hub id of a checkpoint; with the package also
                `"nano"` or `"small"`.
            args: As in `transformers`.
            kwargs: As in `transformers`; and fields of [`SDiaRewardConfig`], which override the checkpoint's.

        Raises:
            FileNotFoundError: The checkpoint has no safetensors; files of other kinds are not read.
            ValueError: The checkpoint lacks a tensor of the model, has an unknown one or one of another shape, has
                no reward head, or contradicts the given `pooling_mode`.
        """
        checkpoint = find_checkpoint(pretrained_model_name_or_path)
        if checkpoint is not None and not isinstance(kwargs.get("config"), PreTrainedConfig):
            kwargs = cls.with_foreign_config(checkpoint, kwargs)
        return cls._load_complete(checkpoint, *args, may_lack=(), **kwargs)

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
            ValueError: The checkpoint is not a thinker, or has a reward head already.
        """
        own_fields = {name: kwargs.pop(name) for name in SDiaRewardConfig.__annotations__ if name in kwargs}
        hub_kwargs = {name: kwargs[name] for name in HUB_KWARGS if name in kwargs}
        thinker_config = read_thinker_config(pretrained_model_name_or_path, **hub_kwargs)
        config = SDiaRewardConfig.from_thinker(thinker_config, pooling_mode=pooling_mode, **own_fields)
        names = list_tensors(pretrained_model_name_or_path, **hub_kwargs)
        if heads := sorted(name for name in names if (to_native_key(name) or "").startswith(_NEW_HEAD_PREFIXES)):
            found = f"has a reward head already ({listed(heads)})"
            raise ValueError(f"{pretrained_model_name_or_path}: {found}; load it with from_pretrained, or convert it.")
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
            found = f"{len(strange)} tensors were not loaded ({listed(sorted(strange))})"
            raise ValueError(f"{name_or_path}: {found}; give a complete checkpoint of this model or of Qwen2.5-Omni.")
        if adapter := (kwargs.get("adapter_kwargs") or {}).get("_adapter_model_path"):
            check_adapter(model, adapter)
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
