"""Score dialogues with plain `transformers`: the baseline of every speed measurement.

This is the loop of its documentation and of SDiaReward's published code: the processor of
Qwen2.5-Omni, the thinker, a mean over the tokens, a linear head; dialogue after dialogue, or in batches.

Choices in its favour:

- The thinker is called with `use_cache=False`; by default it would store unused keys and values.
- Gradients are off (`torch.inference_mode`), SDPA attention is on.
- Pooling and head run in float32.
- It shares the weights of the reward model in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch

from sdiareward.chat_sdiareward import CHAT_TEMPLATE
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


_TOKEN_NAMES = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}


class PlainTransformers:
    """Score dialogues with `Qwen2_5OmniProcessor` and `Qwen2_5OmniThinkerModel`.

    Args:
        model (`SDiaRewardModel`): Its thinker, pooling and head are used.
        processor (`SDiaRewardProcessor`): Its tokenizer and prompts are used.
        chunk_length_s (`int`): Seconds that every clip is padded to: `chunk_length` of the feature extractor, 300 in
            Qwen2.5-Omni's `preprocessor_config.json`.
        batch_size (`int`, *optional*, defaults to 1): Dialogues in one forward pass.
    """

    def __init__(
        self, model: SDiaRewardModel, processor: SDiaRewardProcessor, *, chunk_length_s: int, batch_size: int = 1
    ):
        self.model = model.eval()
        self.processor = stock_processor(processor, chunk_length_s)
        self.batch_size = batch_size
        self._with_prompt = processor.with_prompt
        # Required by Qwen2.5-Omni's code; without images any token works.
        model.model.config.vision_start_token_id = self.processor.tokenizer.vision_bos_token_id

    def score(self, dialogues: Sequence[Any], criterion: str = "joint") -> list[float]:
        """Return the reward of each dialogue, in order; clips are paths of 16 kHz mono files, or arrays."""
        rewards: list[float] = []
        for start in range(0, len(dialogues), self.batch_size):
            indices = range(start, min(start + self.batch_size, len(dialogues)))
            inputs = self.prepare([dialogues[index] for index in indices], criterion)
            rewards += self.forward(inputs.to(self.model.device))
        return rewards

    def prepare(self, dialogues: Sequence[Any], criterion: str = "joint") -> Any:
        """Return the inputs of dialogues in one forward pass."""
        return prepare(self.processor, [self._with_prompt(dialogue, criterion) for dialogue in dialogues])

    @torch.inference_mode()
    def forward(self, inputs: Mapping[str, torch.Tensor]) -> list[float]:
        """Return the rewards of prepared inputs."""
        mask = inputs["attention_mask"]
        features = inputs["input_features"].to(self.model.dtype)
        hidden_states = self.model.model(**{**inputs, "input_features": features}, use_cache=False).last_hidden_state
        pooled = (hidden_states.float() * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return (self.model.score(pooled).squeeze(-1) * self.model.config.reward_scale).tolist()


def prepare(processor: Any, dialogues: Sequence[Any]) -> Any:
    """Turn dialogues, system prompts included, into the model's inputs with the library's processor."""
    conversations = [as_items(dialogue) for dialogue in dialogues]
    texts = [processor.apply_chat_template(messages, tokenize=False) for messages in conversations]
    items = [item for messages in conversations for message in messages for item in message["content"]]
    clips = [_read(item["audio"]) for item in items if item["type"] == "audio"]
    return processor(text=texts, audio=clips, padding=True, return_tensors="pt")


def stock_processor(processor: SDiaRewardProcessor, chunk_length_s: int) -> Any:
    """Build the library's own processor on our tokenizer, with clips padded to `chunk_length_s`.

    Its parts for images and video need Pillow and torchvision and are omitted; the audio path is unchanged.
    """
    from transformers import Qwen2_5OmniProcessor, WhisperFeatureExtractor

    class WithoutPictures(Qwen2_5OmniProcessor):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)

    tokenizer = deepcopy(processor.tokenizer)
    for name, token in _TOKEN_NAMES.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    feature_extractor = WhisperFeatureExtractor(
        feature_size=processor.feature_extractor.feature_size, chunk_length=chunk_length_s, return_attention_mask=True
    )
    return WithoutPictures(None, None, feature_extractor, tokenizer, tokenizer.chat_template or CHAT_TEMPLATE)


def as_items(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert the content of messages to lists of items, which the library's chat templates require."""
    return [
        {"role": message["role"], "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message["content"], str)
        else dict(message)
        for message in messages
    ]


def _read(audio: Any) -> Any:
    if isinstance(audio, Mapping):
        return audio["array"]
    import soundfile

    return soundfile.read(audio, dtype="float32")[0]
