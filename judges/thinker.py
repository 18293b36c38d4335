"""Generate text with Qwen2.5-Omni's thinker, an audio language model and the base of every local judge.

Notable choices:

- `SDiaRewardProcessor.prepare` makes the inputs, as for the reward model.
- Conversations are sorted by length, so that batches have similar lengths, and padded on the left.
- A recording shared by several rows of a batch, such as the answers of a group, is encoded once, to the same vectors.
- Placeholders of audio, image or video are never sampled, because the model would expect a recording.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from transformers import (
    BatchFeature,
    GenerationConfig,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from sdiareward.chat_sdiareward import Dialogue, make_dialogue
from sdiareward.checkpoint_io.adapter_files import put_adapters, reject_custom_adapters
from sdiareward.checkpoint_io.files import ADAPTER_CONFIG
from sdiareward.common.hub import find_snapshot, split_commit
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.loading_sdiareward import HUB_KWARGS
from sdiareward.processing_sdiareward import SDiaRewardProcessor


Conversation = Sequence[Mapping[str, Any]]
# Whole recordings are scored: ChatReward's are up to 35 s long (section 3.2.2), others longer.
MAX_RECORDING_S = 60.0
ASSISTANT = "<|im_start|>assistant\n"
# The smallest unused vision tower that the class allows.
_NO_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "fullatt_block_indexes": [0]}
_CONTROL_TOKENS = ("<|AUDIO|>", "<|IMAGE|>", "<|VIDEO|>")


class Generation(NamedTuple):
    """An answer without control tokens; `num_tokens` includes the end token, `seconds` is its share of the batch."""

    text: str
    num_tokens: int
    seconds: float
    is_cut: bool = False  # Cut at the token limit.


class ThinkerProcessor(SDiaRewardProcessor):
    """Turn conversations that end with a user turn into token ids and mel features; `max_turn_s` defaults to 60."""

    # This class is not part of a reward model's remote code.
    _auto_class = None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> ThinkerProcessor:
        """Load a saved processor, or build one for a Qwen2.5-Omni checkpoint (folder or Hub id)."""
        hub_kwargs = {name: kwargs[name] for name in HUB_KWARGS if name in kwargs}
        saved, _ = cls.get_processor_dict(pretrained_model_name_or_path, **hub_kwargs)
        if saved.get("processor_class") == cls.__name__:
            return cast(Any, super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs))
        options = {"max_turn_s": MAX_RECORDING_S, **kwargs}
        return cast(ThinkerProcessor, cls.from_backbone(pretrained_model_name_or_path, **options))

    def apply_chat_template(  # type: ignore[override]
        self,
        conversation: Conversation | Sequence[Conversation],
        chat_template: None = None,
        add_generation_prompt: bool = False,
        padding: bool = False,
        tools: None = None,
        tokenize: bool = True,
        return_dict: bool = True,
    ) -> BatchFeature:
        """Prepare ChatML for trainers; `padding` pads on the left and returns tensors instead of lists."""
        if chat_template is not None or tools or not (tokenize and return_dict):
            raise ValueError("conversations are rendered as ChatML to token ids, without tools; omit other options.")
        conversations: Any = [conversation] if isinstance(conversation[0], Mapping) else conversation
        prepared = [self.prepare(each) for each in conversations]
        begin = np.array(self.encode_text(ASSISTANT if add_generation_prompt else ""), dtype=np.int64)
        rows = [np.concatenate([each.input_ids, begin]) for each in prepared]
        unpadded = {"input_ids": [row.tolist() for row in rows], "attention_mask": [[1] * row.size for row in rows]}
        batch: dict[str, Any] = self.pad(rows, padding_side="left") if padding else unpadded
        clips = [clip for each in prepared for clip in each.clips]
        if clips:
            features, mask = self.log_mel(clips)
            batch["input_features"], batch["feature_attention_mask"] = torch.tensor(features), torch.tensor(mask)
        return BatchFeature(batch)

    def with_prompt(self, dialogue: Any, criterion: str = "joint") -> Dialogue:
        """Return the conversation unchanged: it already has the judge's task."""
        return make_dialogue(dialogue, is_whole=False)

    def encode_text(self, text: str) -> list[int]:
        """Return the token ids of a text, which may contain control tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def list_control_token_ids(self) -> list[int]:
        """Return the ids of placeholders, which never occur in an answer."""
        vocabulary = self.tokenizer.get_vocab()
        return [vocabulary[token] for token in _CONTROL_TOKENS if token in vocabulary]


class Thinker:
    def __init__(
        self, model: Qwen2_5OmniThinkerForConditionalGeneration, processor: ThinkerProcessor, batch_size: int = 8
    ):
        self.model = model.eval()
        self.processor = processor
        self.batch_size = batch_size

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, dtype: str | None = None, device: str | None = None, batch_size: int = 8
    ) -> Thinker:
        """Load a thinker from a folder or a Hub id such as `Qwen/Qwen2.5-Omni-7B`; only the thinker is read."""
        model = load_thinker_model(path, dtype=dtype)
        if device is None:
            device = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
        torch.nn.Module.to(model, device)
        return cls(model, ThinkerProcessor.from_pretrained(find_snapshot(path)), batch_size)

    def generate(
        self,
        conversations: Sequence[Conversation],
        *,
        max_new_tokens: int = 512,
        temperature: float = 0.0,
        num_return_sequences: int = 1,
        seed: int = 0,
    ) -> list[list[Generation]]:
        """Answer each conversation once or several times; the caller's random state is preserved."""
        if num_return_sequences > 1 and temperature == 0:
            found = f"{num_return_sequences} answers at temperature 0 would be the same"
            raise ValueError(f"{found}; give a temperature, such as 1.")
        tokenizer = self.processor.tokenizer
        options: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
            "pad_token_id": tokenizer.pad_token_id,
            "suppress_tokens": self.processor.list_control_token_ids(),
            "do_sample": temperature > 0,
        }
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        lengths = [self.processor.num_tokens(conversation) for conversation in conversations]
        order = sorted(range(len(conversations)), key=lambda index: -lengths[index])
        rows = [index for index in order for _ in range(num_return_sequences)]
        answers: list[list[Generation]] = [[] for _ in conversations]
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            for start in range(0, len(rows), self.batch_size):
                batch = rows[start : start + self.batch_size]
                for index, answer in zip(batch, self._answer([conversations[i] for i in batch], options), strict=True):
                    answers[index].append(answer)
        return answers

    @torch.inference_mode()
    def _answer(self, conversations: Sequence[Conversation], options: Mapping[str, Any]) -> list[Generation]:
        start = time.perf_counter()
        inputs = self.prepare(conversations)
        ids = self.model.generate(**inputs, **options)[:, inputs["input_ids"].shape[1] :]
        texts = self.processor.tokenizer.batch_decode(ids, skip_special_tokens=True)
        # An answer includes its first end token.
        is_end = ids == options["eos_token_id"]
        lengths = (is_end.cumsum(dim=1) - is_end.int() == 0).sum(dim=1).tolist()
        is_cut = (~is_end.any(dim=1)).tolist()
        seconds = (time.perf_counter() - start) / len(conversations)
        return [Generation(text, num, seconds, cut) for text, num, cut in zip(texts, lengths, is_cut, strict=True)]

    def prepare(self, conversations: Sequence[Conversation], answers: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the model's inputs on its device, padded on the left, with the start of each answer."""
        batch = self.processor.apply_chat_template(conversations, add_generation_prompt=True)
        begun = [self.processor.encode_text(answer) for answer in answers or [""] * len(conversations)]
        rows = [np.array(ids + more) for ids, more in zip(batch["input_ids"], begun, strict=True)]
        inputs = {**batch, **self.processor.pad(rows, padding_side="left")}
        if "input_features" in inputs:
            inputs["input_features"] = inputs["input_features"].to(self.model.dtype)
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

    @torch.inference_mode()
    def compute_next_token_probabilities(
        self, conversations: Sequence[Conversation], answers: Sequence[str], tokens: Sequence[str]
    ) -> torch.Tensor:
        """Return the probabilities of the next token, `(num_conversations, num_tokens)`; each row sums to 1."""
        encoded = [self.processor.encode_text(token) for token in tokens]
        for token, ids in zip(tokens, encoded, strict=True):
            if len(ids) != 1:
                raise ValueError(f"{token!r} is {len(ids)} tokens of this tokenizer; it must be one.")
        found = []
        for start in range(0, len(conversations), self.batch_size):
            part = slice(start, start + self.batch_size)
            hidden_states = self.model.model(**self.prepare(conversations[part], answers[part])).last_hidden_state
            logits = self.model.lm_head(hidden_states[:, -1])[:, [ids[0] for ids in encoded]]
            found.append(logits.float().softmax(dim=-1).cpu())
        return torch.cat(found)


def load_thinker_model(
    path: str | Path, *, dtype: str | torch.dtype | None = None
) -> Qwen2_5OmniThinkerForConditionalGeneration:
    """Load the thinker of a folder or Hub id, by default in its dtype; adapters are merged into their base model."""
    base, *adapters = map(find_snapshot, _find_base(find_snapshot(path)))
    # Checkpoints in other formats could run code.
    model = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(
        base, dtype=dtype or "auto", use_safetensors=True
    )
    if split_commit(str(path))[1]:
        model.name_or_path = model.config.name_or_path = str(path)
    for folder in adapters:
        adapted: Any = put_adapters(model, folder)
        # Merging leaves the weights frozen.
        model = adapted.merge_and_unload().requires_grad_(True)
        # Adapters trained on merged adapters have these as their base.
        model.name_or_path = model.config.name_or_path = folder
    encode_each_clip_once(model.model.audio_tower)
    return model


def _find_base(path: str | Path) -> list[str]:
    """Return the base model of `path` and its adapters, in training order."""
    chain = [str(path)]
    while (Path(chain[0]) / ADAPTER_CONFIG).is_file():
        base = reject_custom_adapters(chain[0])
        if base is None or base in chain:
            raise ValueError(f"{chain[0]}: its base model is {base or 'missing'}; name a model in {ADAPTER_CONFIG}.")
        chain.insert(0, base)
    return chain


def encode_each_clip_once(audio_tower: Any) -> None:
    """Patch a Qwen2.5-Omni audio tower to encode repeated clips once; gradients stay the same."""
    original = audio_tower.forward

    @wraps(original)
    def forward(
        input_features: torch.Tensor, feature_lens: torch.Tensor, aftercnn_lens: torch.Tensor, **kwargs: Any
    ) -> Any:
        clips = input_features.split(feature_lens.tolist(), dim=1)
        firsts, sources = find_repeats(clips)
        if len(firsts) == len(sources):
            return original(input_features, feature_lens=feature_lens, aftercnn_lens=aftercnn_lens, **kwargs)
        distinct = torch.cat([clips[index] for index in firsts], dim=1)
        lengths, after = feature_lens[firsts], aftercnn_lens[firsts]
        outputs = original(distinct, feature_lens=lengths, aftercnn_lens=after, **kwargs)
        _, num_vectors = audio_tower._get_feat_extract_output_lengths(lengths)
        parts = outputs.last_hidden_state.split(num_vectors.tolist())
        outputs.last_hidden_state = torch.cat([parts[source] for source in sources])
        return outputs

    audio_tower.forward = forward


def find_repeats(clips: Sequence[torch.Tensor]) -> tuple[list[int], list[int]]:
    """Return the first index of each distinct clip, and for each clip its position in that list."""
    firsts: list[int] = []
    sources: list[int] = []
    for index, clip in enumerate(clips):
        equal = (place for place, first in enumerate(firsts) if torch.equal(clips[first], clip))
        sources.append(next(equal, len(firsts)))
        if sources[-1] == len(firsts):
            firsts.append(index)
    return firsts, sources


def build_nano_judge(output_dir: str | Path, *, seed: int = 0) -> Path:
    """Write the untrained nano judge (Whisper tiny.en's encoder, a random text model) and its processor."""
    from sdiareward.checkpoint_io.nano import load_audio_tower, make_nano_config, read_training_texts, train_tokenizer

    tokenizer = train_tokenizer(read_training_texts())
    torch.manual_seed(seed)
    model = Qwen2_5OmniThinkerForConditionalGeneration(make_thinker_config(make_nano_config(tokenizer), tokenizer))
    load_audio_tower(model.model.audio_tower)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"), pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(output_dir)
    processor = ThinkerProcessor(WhisperFeatureExtractor(feature_size=80), tokenizer, max_turn_s=MAX_RECORDING_S)
    processor.save_pretrained(output_dir)
    return Path(output_dir)


def make_thinker_config(reward: SDiaRewardConfig, tokenizer: Any) -> Qwen2_5OmniThinkerConfig:
    """Make a thinker's configuration with a reward model's towers and tokens and a minimal vision tower."""
    # The parts of a configuration are typed as the union of their sources.
    text, audio = cast(Any, reward.text_config), cast(Any, reward.audio_config)
    names = ("audio_token_id", "image_token_id", "video_token_id", "audio_start_token_id", "audio_end_token_id")
    return Qwen2_5OmniThinkerConfig(
        audio_config=audio.to_dict(),
        vision_config={**_NO_VISION, "out_hidden_size": text.hidden_size},
        text_config=text.to_dict(),
        user_token_id=reward.user_token_id,
        **{name: getattr(reward, name) for name in names},
        # Not a field of the class, but read for positions.
        **{"vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_bos|>")},
    )
