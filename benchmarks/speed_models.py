"""The models whose speed is measured: nano, small, a middle size, and the real sizes of Qwen2.5-Omni-3B and 7B.

The sizes have random weights: the time of a matrix product does not depend on its values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import WhisperFeatureExtractor

from sdiareward.checkpoint_io.builtin import find_checkpoint
from sdiareward.common.package_files import NANO
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


TRAINED = ("nano", "small")
# Qwen2.5-Omni's preprocessor_config.json: 128 mel bins, every clip padded to 300 s.
RELEASED_CHUNK_LENGTH_S = 300
RELEASED_MEL_BINS = 128
# Text tower: hidden, layers, heads, key/value heads, intermediate, vocabulary. Audio tower: width, layers, heads, ffn.
# Head size 128 and 64, as in the real models; the middle size has the 7B's proportions.
SIZES: dict[str, tuple[tuple[int, int, int, int, int, int | None], tuple[int, int, int, int]]] = {
    "tiny": ((256, 2, 2, 1, 512, None), (128, 2, 2, 256)),
    "middle": ((768, 12, 6, 1, 4064, None), (512, 6, 8, 2048)),
    "3b": ((2048, 36, 16, 2, 11008, 151936), (1280, 32, 20, 5120)),
    "7b": ((3584, 28, 28, 4, 18944, 152064), (1280, 32, 20, 5120)),
}


def load(name: str) -> tuple[SDiaRewardModel, SDiaRewardProcessor]:
    """Load a model of `TRAINED` and its processor, in float32."""
    checkpoint = find_checkpoint(name)
    model = SDiaRewardModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    return model, SDiaRewardProcessor.from_pretrained(checkpoint)


def build(
    size: str,
    *,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    max_turn_s: float = 30.0,
) -> tuple[SDiaRewardModel, SDiaRewardProcessor]:
    """Build a model of a size with random weights on the device, and its processor.

    Args:
        size (`str`): One of `SIZES`.
        seed (`int`, *optional*, defaults to 0): Seed of the weights.
        device (`str`, *optional*, defaults to `"cpu"`): Where the weights are drawn.
        dtype (`torch.dtype`, *optional*, defaults to float32): Of the backbone; pooling and head are float32.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds of each turn that the model hears.

    Returns:
        `tuple`: The model in evaluation mode and its processor: nano's tokenizer, Qwen2.5-Omni's feature extractor.
    """
    processor = make_processor(max_turn_s)
    model = _random_model(model_config(size, processor.tokenizer, max_turn_s), seed, device, dtype)
    return model, processor


def make_processor(max_turn_s: float = 30.0) -> SDiaRewardProcessor:
    """Return the processor of every size: nano's tokenizer, Qwen2.5-Omni's feature extractor."""
    tokenizer = SDiaRewardProcessor.from_pretrained(NANO).tokenizer
    feature_extractor = WhisperFeatureExtractor(
        feature_size=RELEASED_MEL_BINS, chunk_length=RELEASED_CHUNK_LENGTH_S, return_attention_mask=True
    )
    return SDiaRewardProcessor(feature_extractor, tokenizer, max_turn_s=max_turn_s)


def model_config(size: str, tokenizer: Any, max_turn_s: float = 30.0) -> SDiaRewardConfig:
    """Return the configuration of a size for a tokenizer with the special tokens of Qwen2.5-Omni."""
    (hidden, layers, heads, kv_heads, intermediate, vocab), (width, audio_layers, audio_heads, ffn) = SIZES[size]
    token_id = tokenizer.convert_tokens_to_ids
    return SDiaRewardConfig(
        audio_config={
            "num_mel_bins": RELEASED_MEL_BINS,
            "d_model": width,
            "encoder_layers": audio_layers,
            "encoder_attention_heads": audio_heads,
            "encoder_ffn_dim": ffn,
            "n_window": 100,
            "output_dim": hidden,
        },
        text_config={
            "vocab_size": vocab or len(tokenizer),
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
            "pad_token_id": tokenizer.pad_token_id,
            "tie_word_embeddings": False,
        },
        audio_token_index=token_id("<|AUDIO|>"),
        audio_start_token_id=token_id("<|audio_bos|>"),
        audio_end_token_id=token_id("<|audio_eos|>"),
        image_token_index=token_id("<|IMAGE|>"),
        video_token_index=token_id("<|VIDEO|>"),
        max_turn_s=max_turn_s,
    )


def _random_model(config: SDiaRewardConfig, seed: int, device: str, dtype: torch.dtype) -> SDiaRewardModel:
    """Draw the weights; the head is not zero and stays in float32."""
    with drawn_on(device, dtype, seed):
        model = SDiaRewardModel(config).eval()
    model.score.float()
    model.pooler.float()
    with torch.no_grad():
        model.score.weight.normal_()
    return model


@contextmanager
def drawn_on(device: str, dtype: torch.dtype, seed: int) -> Iterator[None]:
    """Let modules that are made inside have random weights on the device and in the dtype at once."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)
