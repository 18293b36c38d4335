"""Convert the authors' checkpoints to the native layout; export native checkpoints for the authors' code and vLLM.

Tensor names and shapes are checked before anything is written; the output folder is renamed into place when complete.
The authors' code and vLLM read the thinker's configuration in the form of `transformers` 4, with two fields for the
text model's rotary settings. `config.json` keeps the settings that these layouts lack (pooling, prompts, seconds per
turn) under a separate key, which they ignore and this package reads back.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from transformers import Qwen2_5OmniThinkerConfig

from sdiareward.chat_sdiareward import CHAT_TEMPLATE
from sdiareward.common.files import replace_atomically, require_new_folder
from sdiareward.common.hub import MODEL_FILES, fetch_snapshot
from sdiareward.configuration_sdiareward import EXTERNAL_MODEL_TYPES, OWN_FIELDS_KEY, SDiaRewardConfig
from sdiareward.loading_sdiareward import (
    HEAD,
    OFFICIAL_ARCHITECTURE,
    check_shapes,
    list_shapes,
    list_tensors,
    read_foreign_config,
    to_native_key,
    to_official_key,
)
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .files import list_weight_files
from .models import find_checkpoint
from .training_record import PAIRS_RECORD


logger = logging.getLogger(__name__)

ExportFormat = Literal["official", "vllm"]
_DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}
_PROCESSOR_FIELDS = ("prompts", "prompt_version", "max_turn_s", "stack_factor")
# File names of sentence-transformers. vLLM reads there how to pool; its default is the last token.
_VLLM_POOLING = {"mean": "pooling_mode_mean_tokens", "last_token": "pooling_mode_lasttoken"}
# Both loaders require image settings, although dialogues have no images.
_IMAGE_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}


def convert_checkpoint(
    source: str | Path, output_dir: str | Path, *, dtype: str | None = None, max_shard_size: str = "5GB", **fields: Any
) -> Path:
    """Convert a checkpoint of the authors, or a native one, to a native checkpoint.

    A Qwen2.5-Omni backbone without a score head gets one with zero weights.
    """
    folder, output = _find(source), Path(output_dir)
    if HEAD in map(to_native_key, list_tensors(folder)):
        return export_checkpoint(source, output, layout=None, dtype=dtype, max_shard_size=max_shard_size, **fields)
    require_new_folder(output)
    model = SDiaRewardModel.from_backbone(folder, dtype=dtype or "auto", **fields)
    logger.warning("%s: has no score head; the output gets one with zero weights: train it.", source)
    with replace_atomically(output) as temporary:
        model.save_pretrained(temporary, max_shard_size=max_shard_size)
        _load_processor(folder, model.config).save_pretrained(temporary)
    return output


def export_checkpoint(
    source: str | Path,
    output_dir: str | Path,
    *,
    layout: ExportFormat | None,
    dtype: str | None = None,
    max_shard_size: str = "5GB",
    **fields: Any,
) -> Path:
    """Export a checkpoint for the authors' code or as a vLLM classifier; `reward_scale` multiplies the score head.

    Without a layout the checkpoint stays native, with changed `fields` in its configuration.
    """
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"dtype is {dtype!r}; choose one of {', '.join(_DTYPES)}.")
    folder, output = _find(source), Path(output_dir)
    require_new_folder(output)
    config = read_config(source, **fields)
    if layout is not None and config.stack_factor != 1:
        found = f"joins {config.stack_factor} vectors of the audio tower into one token"
        raise ValueError(f"{source}: {found}; the authors' code and vLLM cannot: score with Scorer.")
    if layout == "vllm" and config.pooling_mode not in _VLLM_POOLING:
        raise ValueError(f"{source}: pooling is {config.pooling_mode}; vLLM supports only mean and last_token.")
    with torch.device("meta"):
        model = SDiaRewardModel(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    check_shapes(list_shapes(folder), shapes, (), source)
    tensors = _map_tensors(folder, source)
    config.dtype = dtype or config.dtype or str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    state = {}
    for name, tensor in tensors.items():
        if layout is not None and name.startswith("score.") and config.reward_scale != 1.0:
            tensor = (tensor.double() * config.reward_scale).to(tensor.dtype)
        state[_RENAME[layout](name)] = tensor.to(_DTYPES[dtype]) if dtype and name.startswith("model.") else tensor
    processor = _load_processor(folder, config)
    output.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(output) as temporary:
        temporary.mkdir()
        if layout is None:
            model.to(_DTYPES[str(config.dtype).removeprefix("torch.")]).save_pretrained(temporary, state_dict={})
            processor.save_pretrained(temporary)
        else:
            _write_exported_files(config, processor, layout, temporary)
        save_torch_state_dict(state, temporary, max_shard_size=max_shard_size)
        for path in temporary.glob("*.safetensors"):
            # The library makes them readable by the owner only.
            path.chmod(0o644)
        if (hashes := folder / PAIRS_RECORD).is_file():
            shutil.copy(hashes, temporary)
    return output


def _find(source: str | Path) -> Path:
    folder = Path(find_checkpoint(source))
    return folder if folder.is_dir() else fetch_snapshot(str(source), MODEL_FILES)


def read_config(source: str | Path, **fields: Any) -> SDiaRewardConfig:
    """Return a checkpoint's configuration with changed `fields`; drop a calibration that they invalidate."""
    folder = _find(source)
    config_dict, _ = SDiaRewardConfig.get_config_dict(folder)
    is_foreign = config_dict.get("model_type") in EXTERNAL_MODEL_TYPES
    given = (config_dict, list_tensors(folder), source) if is_foreign else (config_dict,)
    read = partial(read_foreign_config if is_foreign else SDiaRewardConfig.from_dict, *given)
    config = read(**fields)
    if config.calibration is not None and "calibration" not in fields:
        before = read()
        if changed := [name for name in fields if getattr(config, name, None) != getattr(before, name, None)]:
            logger.warning("a new %s changes the rewards: the calibration is removed.", ", ".join(changed))
            config.calibration = None
    return config


def _map_tensors(folder: Path, source: str | Path) -> dict[str, torch.Tensor]:
    """Return the tensors by native name, memory-mapped."""
    tensors = {}
    for file in list_weight_files(folder):
        for name, tensor in load_file(folder / file).items():
            if (native := to_native_key(name)) is None:
                continue
            if tensor.dtype not in _DTYPES.values():
                raise ValueError(f"{source}: {name} is {tensor.dtype}; only {', '.join(_DTYPES)} can be converted.")
            tensors[native] = tensor
    return tensors


def _load_processor(folder: Path, config: SDiaRewardConfig) -> SDiaRewardProcessor:
    return SDiaRewardProcessor.from_backbone(folder, **{name: getattr(config, name) for name in _PROCESSOR_FIELDS})


# From tensor names of `SDiaRewardModel`; in vLLM the classifier is part of the text model.
_RENAME: dict[ExportFormat | None, Callable[[str], str]] = {
    None: str,
    "official": to_official_key,
    "vllm": lambda name: "language_model.score.weight" if name == HEAD else f"thinker.{to_official_key(name)}",
}


def _write_exported_files(
    config: SDiaRewardConfig, processor: SDiaRewardProcessor, layout: ExportFormat, folder: Path
) -> None:
    """Write the other files: a `Qwen2_5OmniProcessor`, vLLM's pooling and the configuration."""
    processor.tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    path = folder / "tokenizer_config.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    tokenizer_config = {key: value for key, value in saved.items() if key not in ("auto_map", "processor_class")}
    if isinstance(saved.get("extra_special_tokens"), list):
        # The name in version 4.
        tokenizer_config["additional_special_tokens"] = tokenizer_config.pop("extra_special_tokens")
    _write_json(path, tokenizer_config)
    features = {**processor.feature_extractor.to_dict(), **_IMAGE_PROCESSOR}
    _write_json(folder / "preprocessor_config.json", {**features, "processor_class": "Qwen2_5OmniProcessor"})
    thinker = _make_thinker_config(config, processor)
    # The scale is already in the score head.
    own = {name: getattr(config, name) for name in SDiaRewardConfig.__annotations__} | {"reward_scale": 1.0}
    if layout == "official":
        exported = {"architectures": [OFFICIAL_ARCHITECTURE], **thinker}
    else:
        # As files of a sentence-transformers model: the pooling, and no activation after the head.
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
        ]
        _write_json(folder / "modules.json", modules)
        (folder / "1_Pooling").mkdir()
        pooling = {name: mode == config.pooling_mode for mode, name in _VLLM_POOLING.items()}
        size = {"word_embedding_dimension": thinker["text_config"]["hidden_size"]}
        _write_json(folder / "1_Pooling" / "config.json", {**size, **pooling})
        # A full Qwen2.5-Omni with one label, also in the thinker, which vLLM uses as the classifier.
        label = {"id2label": {"0": "reward"}, "label2id": {"reward": 0}, "problem_type": "regression"}
        exported = {
            "architectures": ["Qwen2_5OmniForConditionalGeneration"],
            "model_type": "qwen2_5_omni",
            "enable_audio_output": False,
            "enable_talker": False,
            **label,
            "thinker_config": {**thinker, "text_config": {**thinker["text_config"], **label}},
            "dtype": thinker["dtype"],
        }
    _write_json(folder / "config.json", {**exported, OWN_FIELDS_KEY: own})


def _make_thinker_config(config: SDiaRewardConfig, processor: SDiaRewardProcessor) -> dict[str, Any]:
    """Return the thinker's configuration in the fields that `transformers` 4 and 5 both read."""
    text_config: Any = config.text_config
    text, rope = _read_declared(text_config), text_config.rope_parameters
    sections = {"mrope_section": rope["mrope_section"], "rope_type": "default", "type": "default"}
    # There is no output matrix to tie.
    text |= {"rope_theta": rope["rope_theta"], "rope_scaling": sections, "tie_word_embeddings": False}
    tokenizer = processor.tokenizer
    scalars = [name for name in Qwen2_5OmniThinkerConfig.__annotations__ if not name.endswith("_config")]
    return {
        **{name: getattr(config, name) for name in scalars},
        "model_type": "qwen2_5_omni_thinker",
        "text_config": text,
        "audio_config": _read_declared(config.audio_config),
        "vision_config": _read_declared(config.vision_config),
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_bos|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_eos|>"),
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": str(config.dtype).removeprefix("torch."),
    }


def _read_declared(config: Any) -> dict[str, Any]:
    """Return the fields that a configuration class declares in every version of `transformers`."""
    names = type(config).__annotations__.keys() - {"rope_parameters"}
    return {"model_type": config.model_type} | {name: getattr(config, name) for name in sorted(names)}


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
