"""Write the files beside the tensors of a checkpoint for the authors' code and for vLLM.

Both read the thinker's configuration of `transformers` 4, in which the text model's rotary settings are two fields.
Settings that these layouts lack (pooling, prompts, seconds per turn) are stored under a separate key of `config.json`,
which they ignore and this package reads back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.chat_sdiareward import CHAT_TEMPLATE
from sdiareward.configuration_sdiareward import OWN_FIELDS_KEY, SDiaRewardConfig
from sdiareward.loading_sdiareward import HEAD, OFFICIAL_ARCHITECTURE, to_official_key


if TYPE_CHECKING:
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

# The names of sentence-transformers, whose files tell vLLM how to pool; its default is the last token.
_VLLM_POOLING = {"mean": "pooling_mode_mean_tokens", "last_token": "pooling_mode_lasttoken"}
_SENTENCE_TRANSFORMERS = "sentence_transformers.models"
# Both loaders require settings for images, though no dialogue has any.
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


def require_one_token_a_vector(config: SDiaRewardConfig, where: str) -> None:
    """Check that a model does not stack audio vectors, which foreign code does not support."""
    if config.stack_factor != 1:
        raise ValueError(
            f"{where}: joins {config.stack_factor} vectors of the audio tower to one token, which neither the "
            "authors' code nor vLLM does: score with this checkpoint through Scorer."
        )


def require_vllm_pooling(config: SDiaRewardConfig, where: str) -> None:
    if config.pooling_mode not in _VLLM_POOLING:
        raise ValueError(
            f"{where}: pools by {config.pooling_mode}, which vLLM cannot; only {' and '.join(_VLLM_POOLING)} pooling "
            "can be exported: score with this checkpoint through Scorer."
        )


def to_vllm_key(name: str) -> str:
    """Return the name of a tensor of `SDiaRewardModel` for vLLM's thinker, whose text model holds the classifier."""
    return "language_model.score.weight" if name == HEAD else f"thinker.{to_official_key(name)}"


RENAMES: dict[str, Callable[[str], str]] = {"official": to_official_key, "vllm": to_vllm_key}


def write_config_files(config: SDiaRewardConfig, processor: SDiaRewardProcessor, layout: str, folder: Path) -> None:
    _save_processor(processor, folder)
    if layout == "vllm":
        _write_vllm_pooling(config, folder)
    exported = make_official_config(config, processor) if layout == "official" else make_vllm_config(config, processor)
    _write_json(folder / "config.json", exported)


def make_official_config(config: SDiaRewardConfig, processor: SDiaRewardProcessor) -> dict[str, Any]:
    return {
        "architectures": [OFFICIAL_ARCHITECTURE],
        **_make_thinker_config(config, processor),
        OWN_FIELDS_KEY: _read_own_fields(config),
    }


def make_vllm_config(config: SDiaRewardConfig, processor: SDiaRewardProcessor) -> dict[str, Any]:
    """Return a full Qwen2.5-Omni's configuration with one label, also in the thinker, which vLLM classifies with."""
    thinker = _make_thinker_config(config, processor)
    label = {"id2label": {"0": "reward"}, "label2id": {"reward": 0}, "problem_type": "regression"}
    thinker["text_config"] = {**thinker["text_config"], **label}
    return {
        "architectures": ["Qwen2_5OmniForConditionalGeneration"],
        "model_type": "qwen2_5_omni",
        "enable_audio_output": False,
        "enable_talker": False,
        **label,
        "thinker_config": thinker,
        "dtype": thinker["dtype"],
        OWN_FIELDS_KEY: _read_own_fields(config),
    }


def _write_vllm_pooling(config: SDiaRewardConfig, folder: Path) -> None:
    """Write the pooling, and that nothing follows the head, as the files of a sentence-transformers model."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{_SENTENCE_TRANSFORMERS}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{_SENTENCE_TRANSFORMERS}.Pooling"},
    ]
    _write_json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    pooling = {name: mode == config.pooling_mode for mode, name in _VLLM_POOLING.items()}
    text_config: Any = config.text_config
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": text_config.hidden_size, **pooling})


def _make_thinker_config(config: SDiaRewardConfig, processor: SDiaRewardProcessor) -> dict[str, Any]:
    """Return the thinker's configuration in the fields that `transformers` 4 and 5 both read."""
    from transformers import Qwen2_5OmniThinkerConfig

    text_config: Any = config.text_config
    text, rope = _read_declared(text_config), text_config.rope_parameters
    sections = {"mrope_section": rope["mrope_section"], "rope_type": "default", "type": "default"}
    # There is no output matrix that could be tied.
    text |= {"rope_theta": rope["rope_theta"], "rope_scaling": sections, "tie_word_embeddings": False}
    tokenizer = processor.tokenizer
    dtype = str(config.dtype).removeprefix("torch.")
    scalars = {
        name: getattr(config, name)
        for name in Qwen2_5OmniThinkerConfig.__annotations__
        if not name.endswith("_config")
    }
    return {
        **scalars,
        "model_type": "qwen2_5_omni_thinker",
        "text_config": text,
        "audio_config": _read_declared(config.audio_config),
        "vision_config": _read_declared(config.vision_config),
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_bos|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_eos|>"),
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": dtype,
    }


def _read_declared(config: Any) -> dict[str, Any]:
    """Return the fields that a configuration's class declares in every version of `transformers`."""
    names = type(config).__annotations__.keys() - {"rope_parameters"}
    return {"model_type": config.model_type} | {name: getattr(config, name) for name in sorted(names)}


def _read_own_fields(config: SDiaRewardConfig) -> dict[str, Any]:
    """Return the fields of `SDiaRewardConfig`; the score head was multiplied by the scale already."""
    fields = {name: getattr(config, name) for name in SDiaRewardConfig.__annotations__}
    return {**fields, "reward_scale": 1.0}


def _save_processor(processor: SDiaRewardProcessor, folder: Path) -> None:
    """Write tokenizer, chat template and feature extractor as a `Qwen2_5OmniProcessor` reads them."""
    processor.tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    path = folder / "tokenizer_config.json"
    _write_json(path, _for_transformers_4(json.loads(path.read_text(encoding="utf-8"))))
    features = {**processor.feature_extractor.to_dict(), **_IMAGE_PROCESSOR}
    _write_json(folder / "preprocessor_config.json", {**features, "processor_class": "Qwen2_5OmniProcessor"})


def _for_transformers_4(tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer's configuration with the list of special tokens under the name that version 4 knows."""
    converted = {key: value for key, value in tokenizer_config.items() if key not in ("auto_map", "processor_class")}
    if isinstance(converted.get("extra_special_tokens"), list):
        converted["additional_special_tokens"] = converted.pop("extra_special_tokens")
    return converted


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
