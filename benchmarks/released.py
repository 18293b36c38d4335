"""The released way to score dialogues, with plain `transformers`: the baseline of every speed measurement.

The loop of SDiaReward's published code: Qwen2.5-Omni's processor and thinker, a mean over the tokens, a linear head in
float32. Choices in its favour: `use_cache=False`, gradients off, SDPA attention on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from transformers import Qwen2_5OmniProcessor, WhisperFeatureExtractor

from sdiareward.chat_sdiareward import CHAT_TEMPLATE
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


_TOKENS = ("IMAGE", "AUDIO", "VIDEO", "vision_bos", "vision_eos", "audio_bos", "audio_eos")


class ReleasedWay:
    """Score dialogues with the thinker of `model`; their clips are arrays padded to `chunk_length_s`."""

    def __init__(
        self, model: SDiaRewardModel, processor: SDiaRewardProcessor, chunk_length_s: int, batch_size: int = 1
    ):
        self.model, self.batch_size = model.eval(), batch_size
        self.processor = make_stock_processor(processor, chunk_length_s)
        self._with_prompt = processor.with_prompt
        # Required by Qwen2.5-Omni's code; without images any token works.
        model.model.config.vision_start_token_id = self.processor.tokenizer.vision_bos_token_id

    def score(self, dialogues: Sequence[Any]) -> list[float]:
        starts = range(0, len(dialogues), self.batch_size)
        inputs = (self.prepare(dialogues[start : start + self.batch_size]) for start in starts)
        return [reward for each in inputs for reward in self.forward(each.to(self.model.device))]

    def prepare(self, dialogues: Sequence[Any]) -> Any:
        return prepare(self.processor, [self._with_prompt(dialogue).to_messages() for dialogue in dialogues])

    @torch.inference_mode()
    def forward(self, inputs: Mapping[str, torch.Tensor]) -> list[float]:
        mask = inputs["attention_mask"]
        features = inputs["input_features"].to(self.model.dtype)
        hidden_states = self.model.model(**{**inputs, "input_features": features}, use_cache=False).last_hidden_state
        pooled = (hidden_states.float() * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return (self.model.score(pooled).squeeze(-1) * self.model.config.reward_scale).tolist()


def prepare(processor: Any, dialogues: Sequence[Any]) -> Any:
    # The library's chat templates require lists of items.
    items = [
        [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message["content"], str)
            else message
            for message in dialogue
        ]
        for dialogue in dialogues
    ]
    texts = [processor.apply_chat_template(messages, tokenize=False) for messages in items]
    contents = [item for messages in items for message in messages for item in message["content"]]
    clips = [item["audio"]["array"] for item in contents if item["type"] == "audio"]
    return processor(text=texts, audio=clips, padding=True, return_tensors="pt")


class _WithoutPictures(Qwen2_5OmniProcessor):
    """The parts for images and video need Pillow and torchvision; the audio path is unchanged."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)


def make_stock_processor(processor: SDiaRewardProcessor, chunk_length_s: int) -> Any:
    tokenizer = deepcopy(processor.tokenizer)
    for name in _TOKENS:
        attribute, token = f"{name.lower()}_token", f"<|{name}|>"
        setattr(tokenizer, attribute, token)
        setattr(tokenizer, f"{attribute}_id", tokenizer.convert_tokens_to_ids(token))
    num_bins = processor.feature_extractor.feature_size
    extractor = WhisperFeatureExtractor(feature_size=num_bins, chunk_length=chunk_length_s, return_attention_mask=True)
    return _WithoutPictures(None, None, extractor, tokenizer, tokenizer.chat_template or CHAT_TEMPLATE)
