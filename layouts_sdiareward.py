"""The layouts of checkpoints: native, as the authors released them, and as Qwen2.5-Omni's thinker.

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
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import Qwen2_5OmniThinkerConfig, WhisperFeatureExtractor
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import cached_file
from transformers.utils.hub import is_offline_mode

from .configuration_sdiareward import EXTERNAL_MODEL_TYPES, OWN_FIELDS_KEY, SDiaRewardConfig
from .sizes_sdiareward import validate_sizes


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
# Ranges for a feature extractor; Whisper's has 80 or 128 features, windows of 400 samples and steps of 160.
_FEATURE_SIZES = {
    "feature_size": (1, 1024),
    "n_fft": (16, 2**15),
    "hop_length": (40, 2**15),
    "sampling_rate": (8_000, 192_000),
    "chunk_length": (1, 3600),
}
# Qwen2.5-Omni's and the generic one; others build any number of tokens that their file asks for, or run custom code.
_TOKENIZERS = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend")
# A file name without a path, on any system.
_OWN_FILE = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)


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
        FileNotFoundError: The checkpoint holds no safetensors.
        ValueError: Its file cannot be read, or its index names files outside the checkpoint.
    """
    index, single = _find_weights(name_or_path, hub_kwargs)
    return set(_read_index(index)) if index is not None else set(_read_shapes(single))


def list_shapes(name_or_path: Any, **hub_kwargs: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's tensors by name, from the headers of its files.

    The arguments and errors are those of `list_tensors`; on the Hub every file is fetched.
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
            raise FileNotFoundError(
                f"{name_or_path}: its weights are not in the cache, and the Hub is not asked (HF_HUB_OFFLINE or "
                "local_files_only is set); connect, or give the folder of a checkpoint."
            )
        raise FileNotFoundError(
            f"{name_or_path}: holds neither {SINGLE_FILE} nor {INDEX_FILE}; only safetensors are read, for files of "
            "other kinds (.bin, .pt, .pth, .ckpt, .pkl) can run code when they are loaded: load the checkpoint with "
            "the library that wrote it, where you trust it, and save it with safe_serialization."
        )
    return index, single


def _read_index(path: str) -> dict[str, str]:
    """Return the file of each tensor; refuse files that are not beside the index or not safetensors."""
    try:
        with open(path, encoding="utf-8") as file:
            weight_map = json.load(file)["weight_map"]
        if not weight_map or not all(isinstance(name, str) for item in weight_map.items() for name in item):
            raise ValueError("weight_map is no mapping from tensors to files")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: is no index of safetensors files ({error}); download it again.") from error
    if strange := sorted(name for name in set(weight_map.values()) if not _OWN_FILE.fullmatch(name)):
        raise ValueError(
            f"{path}: names {strange[0]!r}; the files of a checkpoint lie beside its index and are safetensors."
        )
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
        found = "holds the attention pooler pooler.attn.*" if has_pooler else "holds no pooler.attn.*"
        required = "attention" if has_pooler else "mean or last_token"
        raise ValueError(f"{where}: {found}, but pooling_mode is {given!r}; give {required}, or leave it out.")
    return given


def check_keys(found: Iterable[str], expected: Iterable[str], where: Any) -> None:
    """Check that a checkpoint holds every tensor of the model and no other, omitted parts aside.

    Args:
        found (`Iterable[str]`): Names in the checkpoint, of any layout.
        expected (`Iterable[str]`): Names in the model.
        where (`Any`): Name of the checkpoint in an error.

    Raises:
        ValueError: Tensors are missing or unknown; the message counts and names them in the checkpoint's layout.
    """
    by_own_name = {to_native_key(name): name for name in found}
    by_own_name.pop(None, None)
    expected = set(expected)
    is_ours = any(own == name and own.startswith("model.") for own, name in by_own_name.items())
    lacking = expected - by_own_name.keys()
    if missing := sorted(lacking if is_ours else map(to_official_key, lacking)):
        raise ValueError(
            f"{where}: lacks {len(missing)} tensors of the model ({listed(missing)}); give a complete checkpoint, or "
            "start a new head from a pretrained thinker with SDiaRewardModel.from_backbone."
        )
    if unexpected := sorted(by_own_name[name] for name in by_own_name.keys() - expected):
        raise ValueError(
            f"{where}: holds {len(unexpected)} tensors that the model has no place for ({listed(unexpected)}); give a "
            "checkpoint of this model or of Qwen2.5-Omni."
        )


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
        ValueError: A tensor is missing, has no place, or has another shape.
    """
    required = {name for name in expected if not (may_lack and name.startswith(may_lack))}
    check_keys(found, required, where)
    for name, shape in found.items():
        if (wanted := expected.get(to_native_key(name) or "", shape)) != shape:
            raise ValueError(
                f"{where}: {name} has the shape {list(shape)}, its configuration asks for {list(wanted)}; the two "
                "belong to different models: download the checkpoint again."
            )


def read_foreign_config(
    config_dict: dict[str, Any], names: Iterable[str], where: Any, **fields: Any
) -> SDiaRewardConfig:
    """Make the configuration of a reward model from a foreign checkpoint's configuration and tensor names.

    Args:
        config_dict (`dict`): Content of its `config.json`.
        names (`Iterable[str]`): Names of its tensors.
        where (`Any`): Name of the checkpoint in a message.
        fields: Fields of [`SDiaRewardConfig`] that override those of the checkpoint.

    Raises:
        ValueError: There is no reward head, or `pooling_mode` contradicts the tensors.
    """
    names = list(names)
    if HEAD not in map(to_native_key, names):
        raise ValueError(
            f"{where}: holds no reward head (score_head.weight); start a new one on this thinker with "
            "SDiaRewardModel.from_backbone."
        )
    known = {**config_dict.get(OWN_FIELDS_KEY, {}), **fields}
    pooling_mode = choose_pooling(names, known.get("pooling_mode"), where)
    if "prompts" not in known:
        logger.warning(
            "%s: does not hold the system prompt that it was trained with, and rewards depend on it; this package's "
            "default prompts are used. Give the right one with prompts={criterion: text} or --prompt-file.",
            where,
        )
    return SDiaRewardConfig.from_dict(config_dict, **{**fields, "pooling_mode": pooling_mode})


def read_thinker_config(name_or_path: Any, **hub_kwargs: Any) -> Qwen2_5OmniThinkerConfig:
    """Return the thinker's configuration from a full or a thinker-only checkpoint.

    Args:
        name_or_path (`str` or `Path`): Folder or Hub id.
        hub_kwargs: `revision`, `token`, `cache_dir`, ... of the Hub.

    Raises:
        ValueError: It is no thinker, or one of sizes that are not built.
    """
    config_dict, _ = Qwen2_5OmniThinkerConfig.get_config_dict(name_or_path, **hub_kwargs)
    validate_sizes(config_dict)
    thinker = config_dict.get("thinker_config", config_dict)
    if thinker.get("model_type") != Qwen2_5OmniThinkerConfig.model_type:
        raise ValueError(
            f"{name_or_path}: its model_type is {thinker.get('model_type')!r}; a new head needs a checkpoint of "
            "Qwen2.5-Omni or of its thinker. Load a reward model with from_pretrained."
        )
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
    try:
        config_dict, _ = SDiaRewardConfig.get_config_dict(name_or_path, **hub_kwargs)
    # JSON that is no object, or has no end.
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{name_or_path}: its config.json is no JSON object ({error}); get it again.") from error
    if not isinstance(config_dict, dict):
        raise ValueError(f"{name_or_path}: its config.json is no JSON object; get it again.")
    is_reward_model = OWN_FIELDS_KEY in config_dict or config_dict.get("architectures") == [OFFICIAL_ARCHITECTURE]
    if config_dict.get("model_type") not in EXTERNAL_MODEL_TYPES or not is_reward_model:
        return None
    config = SDiaRewardConfig.from_dict(config_dict)
    return {name: getattr(config, name) for name in ("prompts", "prompt_version", "max_turn_s")}


def _require_reached(name_or_path: Any, **hub_kwargs: Any) -> None:
    """Raise if the Hub cannot be reached; for a feature extractor transformers would ask for another folder."""
    if os.path.isdir(name_or_path):
        return
    try:
        cached_file(name_or_path, "config.json", **hub_kwargs)
    except OSError as error:
        # Of huggingface_hub, which this file does not import.
        if type(error.__cause__).__name__ == "LocalEntryNotFoundError":
            raise OSError(
                f"{name_or_path}: is no folder here and not in the cache, and the Hub cannot be reached; connect, or "
                "give the folder of a checkpoint."
            ) from error


def reject_custom_code(name_or_path: Any, **hub_kwargs: Any) -> None:
    """Check that tokenizer and feature extractor of a checkpoint are of the supported kinds and sizes.

    Args:
        name_or_path (`str` or `Path`): Folder or Hub id.
        hub_kwargs: `revision`, `token`, `cache_dir`, ... of the Hub.

    Raises:
        OSError: The checkpoint is not in the cache, and the Hub cannot be reached.
        ValueError: One is of another kind, or the feature extractor is too large.
    """
    _require_reached(name_or_path, **hub_kwargs)
    problem = f"{name_or_path}: its tokenizer_config.json is no JSON object; get it again."
    try:
        tokenizer = get_tokenizer_config(name_or_path, **hub_kwargs)
    except (TypeError, RecursionError) as error:
        raise ValueError(problem) from error
    if not isinstance(tokenizer, dict):
        raise ValueError(problem)
    if (kind := tokenizer.get("tokenizer_class") or _TOKENIZERS[0]) not in _TOKENIZERS:
        raise ValueError(
            f"{name_or_path}: its tokenizer is a {kind!r}; only {', '.join(_TOKENIZERS)} are used here, and none that "
            "needs trust_remote_code."
        )
    features, _ = WhisperFeatureExtractor.get_feature_extractor_dict(name_or_path, **hub_kwargs)
    own = WhisperFeatureExtractor.__name__
    if (kind := features.get("feature_extractor_type", own)) != own:
        raise ValueError(f"{name_or_path}: its feature extractor is a {kind!r}; only {own} is used here.")
    for name, (least, largest) in _FEATURE_SIZES.items():
        value = features.get(name, least)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
            place = f"{name_or_path}: {name} of the feature extractor"
            raise ValueError(f"{place} is {value!r}; a whole number from {least} to {largest} is needed.")


def listed(names: list[str]) -> str:
    """Return the first few names for a message."""
    return ", ".join(names[:_NUM_LISTED]) + (", ..." if len(names) > _NUM_LISTED else "")


__all__ = [
    "list_shapes",
    "list_tensors",
    "to_official_key",
    "to_native_key",
    "read_foreign_config",
    "read_processor_fields",
    "read_thinker_config",
    "check_keys",
    "check_shapes",
    "reject_custom_code",
]
