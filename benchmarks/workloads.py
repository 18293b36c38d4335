"""Work for the speed benchmarks: dialogues of noise, models of the real sizes, and their operations.

Weights are random: the time of a matrix product does not depend on its values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import WhisperFeatureExtractor

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.common.package import NANO
from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, SDiaRewardConfig
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.packed_forward import compute_window_lengths


# Appendix B gives 14.51 h of real and 16.18 h of synthetic audio for the 1,476 modality pairs of ESDR-Bench.
MEAN_DIALOGUE_S = (14.51 + 16.18) * 3600 / (2 * 1_476)
# Qwen2.5-Omni's preprocessor_config.json: 128 mel bins, every clip padded to 300 s.
RELEASED_CHUNK_LENGTH_S = 300
_RELEASED_MEL_BINS = 128
_TEXT = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    "vocab_size",
)
_AUDIO = ("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")
# Sizes of the text tower and of the audio tower, in the order of these names; a vocabulary of None is the tokenizer's.
SIZES: dict[str, tuple[tuple[int | None, ...], tuple[int, ...]]] = {
    "tiny": ((256, 2, 2, 1, 512, None), (128, 2, 2, 256)),
    "middle": ((768, 12, 6, 1, 4064, None), (512, 6, 8, 2048)),
    "3b": ((2048, 36, 16, 2, 11008, 151936), (1280, 32, 20, 5120)),
    "7b": ((3584, 28, 28, 4, 18944, 152064), (1280, 32, 20, 5120)),
}
_TOKENS = {
    "audio_token_index": "<|AUDIO|>",
    "audio_start_token_id": "<|audio_bos|>",
    "audio_end_token_id": "<|audio_eos|>",
    "image_token_index": "<|IMAGE|>",
    "video_token_index": "<|VIDEO|>",
}
_TURN_COUNTS = (2, 4, 6, 8, 10)
_SPREAD = 0.6
_SHORTEST_TURN_S = 0.4
_WORDS_PER_S = 2.5
_NOISE_S = 120


class SyntheticDialogues(Sequence[Any]):
    """Pairs of dialogues of noise about as long as those of ESDR-Bench, made on access."""

    def __init__(self, num_dialogues: int, seed: int = 0, mean_s: float = MEAN_DIALOGUE_S, max_turn_s: float = 30.0):
        self._num_dialogues, self._seed, self._limits_s = num_dialogues, seed, (_SHORTEST_TURN_S, max_turn_s)
        # Log-normal durations: the mean is exp(mu + sigma ** 2 / 2).
        self._log_turn_s = math.log(mean_s / np.mean(_TURN_COUNTS)) - _SPREAD**2 / 2
        self._words = " ".join(DEFAULT_PROMPTS.values()).split()
        noise = np.random.default_rng(seed).standard_normal(_NOISE_S * SAMPLING_RATE, dtype=np.float32)
        self._noise = 0.05 * noise

    def __len__(self) -> int:
        return self._num_dialogues

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        of_pair = np.random.default_rng((self._seed, index // 2))
        of_side = np.random.default_rng((self._seed, 1, index))
        return [self._turn(number, of_pair, of_side) for number in range(int(of_pair.choice(_TURN_COUNTS)))]

    def _turn(self, number: int, of_pair: np.random.Generator, of_side: np.random.Generator) -> dict[str, Any]:
        duration_s = float(np.clip(of_pair.lognormal(self._log_turn_s, _SPREAD), *self._limits_s))
        words = of_pair.choice(self._words, size=max(1, round(duration_s * _WORDS_PER_S)))
        num_samples = round(duration_s * SAMPLING_RATE)
        start = int(of_side.integers(self._noise.size - num_samples))
        audio = {"array": self._noise[start : start + num_samples], "sampling_rate": SAMPLING_RATE}
        content = [{"type": "text", "text": " ".join(words)}, {"type": "audio", "audio": audio}]
        return {"role": ("user", "assistant")[number % 2], "content": content}


def list_clips(dialogues: Sequence[Any]) -> list[np.ndarray]:
    return [turn["content"][1]["audio"]["array"] for dialogue in dialogues for turn in dialogue]


def load_model(
    name: str, seed: int = 0, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[SDiaRewardModel, SDiaRewardProcessor]:
    """Return nano, small, or a model of `SIZES` with random weights, drawn on the device, and its processor."""
    if name not in SIZES:
        model = SDiaRewardModel.from_pretrained(find_checkpoint(name), dtype=dtype).eval().to(device)
        return model, SDiaRewardProcessor.from_pretrained(find_checkpoint(name))
    processor = make_processor()
    with drawn_on(device, dtype, seed):
        model = SDiaRewardModel(make_config(name, processor.tokenizer)).eval()
    for part in (model.score, model.pooler):
        part.float()
    with torch.no_grad():
        model.score.weight.normal_()
    return model, processor


def make_processor() -> SDiaRewardProcessor:
    """Return the processor of every size: nano's tokenizer, Qwen2.5-Omni's feature extractor."""
    extractor = WhisperFeatureExtractor(
        feature_size=_RELEASED_MEL_BINS, chunk_length=RELEASED_CHUNK_LENGTH_S, return_attention_mask=True
    )
    return SDiaRewardProcessor(extractor, SDiaRewardProcessor.from_pretrained(NANO).tokenizer, max_turn_s=30.0)


def make_config(size: str, tokenizer: Any) -> SDiaRewardConfig:
    text, audio = (
        dict(zip(names, sizes, strict=True)) for names, sizes in zip((_TEXT, _AUDIO), SIZES[size], strict=True)
    )
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    rest = {"rope_parameters": rope, "pad_token_id": tokenizer.pad_token_id, "tie_word_embeddings": False}
    mels = {"num_mel_bins": _RELEASED_MEL_BINS, "n_window": 100, "output_dim": text["hidden_size"]}
    return SDiaRewardConfig(
        audio_config=audio | mels,
        text_config=text | rest | {"vocab_size": text["vocab_size"] or len(tokenizer)},
        max_turn_s=30.0,
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in _TOKENS.items()},
    )


@contextmanager
def drawn_on(device: str, dtype: torch.dtype, seed: int) -> Iterator[None]:
    """Let modules made inside have random weights on the device and in the dtype at once."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def count_flops(
    model: SDiaRewardModel, processor: SDiaRewardProcessor, dialogues: Sequence[Any], text_passes: int = 1
) -> int:
    """Count `2 * m * k * n` per matrix product of both towers, and nothing else; a shared prompt counts once."""
    text, audio = model.config.text_config, model.config.audio_config
    num_before = processor.num_tokens([{"role": "system", "content": processor.prompts["joint"]}])
    tokens = [processor.num_tokens(dialogue) - num_before for dialogue in dialogues]
    frames = [-(-clip.size // processor.feature_extractor.hop_length) for clip in list_clips(dialogues)]
    text_total = sum(text_flops(text, each, num_before) for each in tokens)
    return text_passes * text_total + sum(audio_flops(audio, each) for each in frames)


def text_flops(config: Any, num_tokens: int, num_before: int = 0) -> int:
    """Count the operations of the text tower, causal, after `num_before` earlier tokens."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attended, kept = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    weights = config.hidden_size * (2 * attended + 2 * kept + 3 * config.intermediate_size)
    num_pairs = num_tokens * num_before + num_tokens * (num_tokens + 1) // 2
    return config.num_hidden_layers * (2 * num_tokens * weights + 4 * attended * num_pairs)


def audio_flops(config: Any, num_frames: int) -> int:
    """Count the operations of the audio tower and its projection for one clip of mel frames, 100 a second."""
    width, kernel = config.d_model, 3
    windows = compute_window_lengths([num_frames], config.n_window)
    positions = sum(windows)
    convolutions = 2 * kernel * width * (config.num_mel_bins * num_frames + width * positions)
    weights = 4 * width**2 + 2 * width * config.encoder_ffn_dim
    layer = 2 * positions * weights + 4 * width * sum(window**2 for window in windows)
    return convolutions + config.encoder_layers * layer + 2 * (positions // 2) * width * config.output_dim


def describe(model: SDiaRewardModel, dialogues: Sequence[Any]) -> dict[str, float]:
    num_weights = sum(weights.numel() for weights in model.parameters())
    audio_s = sum(clip.size for clip in list_clips(dialogues)) / SAMPLING_RATE
    return {"million_parameters": round(num_weights / 1e6, 1), "audio_s": round(audio_s, 1)}
