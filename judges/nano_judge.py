"""Build the untrained nano judge: the thinker of `transformers` at the size of the nano model.

The audio tower is Whisper tiny.en's encoder; the text model is random and writes gibberish before training. The unused
vision tower is as small as the class allows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    GenerationConfig,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from sdiareward.checkpoint_io.nano import (
    load_audio_tower,
    load_whisper_encoder_weights,
    make_nano_config,
    read_training_texts,
    train_tokenizer,
)
from sdiareward.configuration_sdiareward import SDiaRewardConfig

from .thinker import MAX_RECORDING_S, ThinkerProcessor


_NO_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "fullatt_block_indexes": [0]}


def build_nano_judge(output_dir: str | Path, *, whisper: str | Path | None = None, seed: int = 0) -> Path:
    """Write the untrained nano judge and its processor."""
    tokenizer = train_tokenizer(read_training_texts())
    torch.manual_seed(seed)
    model = Qwen2_5OmniThinkerForConditionalGeneration(make_thinker_config(make_nano_config(tokenizer), tokenizer))
    load_audio_tower(model.model.audio_tower, load_whisper_encoder_weights(whisper))
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"), pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(output_dir)
    processor = ThinkerProcessor(WhisperFeatureExtractor(feature_size=80), tokenizer, max_turn_s=MAX_RECORDING_S)
    processor.save_pretrained(output_dir)
    return Path(output_dir)


def make_thinker_config(reward: SDiaRewardConfig, tokenizer: Any) -> Qwen2_5OmniThinkerConfig:
    """Make the configuration of a thinker with the towers and tokens of a reward model and a minimal vision tower."""
    # The parts of a configuration are typed as the union of their sources.
    text, audio = cast(Any, reward.text_config), cast(Any, reward.audio_config)
    names = ("audio_token_id", "image_token_id", "video_token_id", "audio_start_token_id", "audio_end_token_id")
    return Qwen2_5OmniThinkerConfig(
        audio_config=audio.to_dict(),
        vision_config={**_NO_VISION, "out_hidden_size": text.hidden_size},
        text_config=text.to_dict(),
        user_token_id=reward.user_token_id,
        **{name: getattr(reward, name) for name in names},
        # Not a field of the class, but read when positions are computed.
        **{"vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_bos|>")},
    )
