"""Build the untrained nano model: the classes of the package at a size that trains and runs on one CPU core.

The audio tower is the encoder of Whisper tiny.en (MIT, OpenAI; Radford et al., 2022), whose blocks Qwen2.5-Omni's
tower shares. Text tower and projection are random. The score head is at zero, so every reward is 0 until it is
trained.

Notable choices:

- The tokenizer is a byte-level BPE of 4,096 tokens, trained on the package's own dialogue scripts and prompts, with
  Qwen2.5-Omni's special tokens after them in its order.
- Backbone tensors are stored in float16 (26 MB) while the configuration says float32, so they are widened on loading.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer, WhisperFeatureExtractor
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from sdiareward.chat_sdiareward import CHAT_TEMPLATE
from sdiareward.common.package_files import SCRIPTS
from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, SDiaRewardConfig
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .files import save_checkpoint
from .whisper import load_audio_tower, load_whisper_encoder_weights, make_tower_config


BPE_VOCAB_SIZE = 4096
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|box_end|>"),
    *("<|quad_start|>", "<|quad_end|>", "<|vision_bos|>", "<|vision_eos|>", "<|vision_pad|>", "<|IMAGE|>"),
    "<|VIDEO|>",
)
# Attention's cost grows with the square of a dialogue's length, which two CPU cores feel; most turns end before.
_MAX_TURN_S = 6.0


def build_nano(output_dir: str | Path, *, whisper: str | Path | None = None, seed: int = 0) -> Path:
    """Write the untrained nano model and its processor; `whisper` is a CTranslate2 folder, or a folder or Hub id."""
    tokenizer = train_tokenizer(read_training_texts())
    torch.manual_seed(seed)
    model = SDiaRewardModel(make_nano_config(tokenizer))
    load_audio_tower(model.model.audio_tower, load_whisper_encoder_weights(whisper))
    processor = SDiaRewardProcessor(
        WhisperFeatureExtractor(feature_size=80), tokenizer, max_turn_s=model.config.max_turn_s
    )
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
    """Return the configuration of a text model under Whisper's encoder; the tokenizer has the markers of audio."""
    audio, start, end, image, video, user = tokenizer.convert_tokens_to_ids(
        ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|IMAGE|>", "<|VIDEO|>", "user"]
    )
    return SDiaRewardConfig(
        audio_config=make_tower_config(text["hidden_size"]),
        text_config={
            "vocab_size": len(tokenizer),
            "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta, "mrope_section": [8, 12, 12]},
            "pad_token_id": tokenizer.pad_token_id,
            **text,
        },
        audio_token_index=audio,
        audio_start_token_id=start,
        audio_end_token_id=end,
        image_token_index=image,
        video_token_index=video,
        user_token_id=user,
        **fields,
    )


def train_tokenizer(texts: Iterator[str]) -> Qwen2Tokenizer:
    """Train a byte-level BPE with Qwen2.5-Omni's splitting rule, special tokens and ChatML template; deterministic."""
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
