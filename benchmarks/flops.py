"""Count the multiplications and additions that scoring a dialogue needs, from the model's sizes alone.

A matrix product of shapes `(m, k)` and `(k, n)` counts `2 * m * k * n`. Norms, activations, softmax and rotations do
not count, so a utilisation from these numbers is a lower bound.
"""

from __future__ import annotations

from typing import Any

from sdiareward.scoring.packed_forward import compute_window_lengths


def text_flops(config: Any, num_tokens: int, num_before: int = 0) -> int:
    """Count the operations of the text tower for tokens that attend causally to themselves and all earlier ones.

    Args:
        config (`Qwen2_5OmniTextConfig`): Sizes of the tower.
        num_tokens (`int`): Tokens computed.
        num_before (`int`, *optional*, defaults to 0): Earlier tokens with cached keys and values.
    """
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attended, kept = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    weights = config.hidden_size * (2 * attended + 2 * kept + 3 * config.intermediate_size)
    num_pairs = num_tokens * num_before + num_tokens * (num_tokens + 1) // 2
    return config.num_hidden_layers * (2 * num_tokens * weights + 4 * attended * num_pairs)


def audio_flops(config: Any, num_frames: int) -> int:
    """Count the operations of the audio tower for one clip, including its projection into the text model.

    Args:
        config (`Qwen2_5OmniAudioEncoderConfig`): Sizes of the tower.
        num_frames (`int`): Mel frames of the clip, 100 a second.
    """
    width, kernel = config.d_model, 3
    windows = compute_window_lengths([num_frames], config.n_window)
    positions = sum(windows)
    convolutions = 2 * kernel * width * (config.num_mel_bins * num_frames + width * positions)
    weights = 4 * width**2 + 2 * width * config.encoder_ffn_dim
    layer = 2 * positions * weights + 4 * width * sum(window**2 for window in windows)
    return convolutions + config.encoder_layers * layer + 2 * (positions // 2) * width * config.output_dim
