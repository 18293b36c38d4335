"""Turn spoken dialogues into the inputs of `SDiaRewardModel`: the only place where that happens.

A dialogue is a list of messages, `{"role", "content"}`, whose content is a string or a list of
`{"type": "text", "text"}` and `{"type": "audio", "audio"}` items in the order in which the model reads them.

Notable choices:

- A tokenizer and a `WhisperFeatureExtractor` are enough; nothing for images is needed or loaded.
- Mel features are computed at the true length of the clips. Padding every clip to the feature extractor's 300 s gives
  the same frames and takes 15 MB for each turn.
- The prompts travel with the processor, as they do with the model's configuration.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, BatchFeature, WhisperFeatureExtractor
from transformers.processing_utils import ProcessorMixin

from .audio_sdiareward import (
    DialogueError,
    audio_duration_s,
    read_audio,
    validate_form,
)
from .configuration_sdiareward import DEFAULT_PROMPTS, PROMPT_VERSION, validate_max_turn_s, validate_prompts
from .layouts_sdiareward import HUB_KWARGS, read_processor_fields, reject_custom_code


logger = logging.getLogger(__name__)

AUDIO_TOKEN, AUDIO_BOS_TOKEN, AUDIO_EOS_TOKEN = "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"
# Zeros after a clip that keep the reflection at its end, and the frame behind its last one, out of the frames kept.
_MARGIN_FRAMES = 3


@dataclass(frozen=True)
class PreparedDialogue:
    """Hold one dialogue as tokens and audio.

    Args:
        input_ids (`np.ndarray` of shape `(num_tokens,)`): int64, one placeholder for each vector of the audio tower.
        clips (`list[np.ndarray]`): Its recordings, each of shape `(num_samples,)`, float32.
    """

    input_ids: np.ndarray
    clips: list[np.ndarray]


class SDiaRewardProcessor(ProcessorMixin):
    """Turn dialogues into token ids and mel features.

    Args:
        feature_extractor (`WhisperFeatureExtractor`): Computes the log-mel features.
        tokenizer (`PreTrainedTokenizerBase`): Tokenizer with the special tokens of Qwen2.5-Omni.
        prompts (`dict[str, str]`, *optional*): System prompt of each criterion; by default `DEFAULT_PROMPTS`.
        prompt_version (`str`, *optional*, defaults to `"1"`): Name of this set of prompts.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds kept of each audio item.

    Raises:
        ValueError: A prompt or `max_turn_s` is invalid, or the tokenizer lacks a special token.

    Example:
        >>> processor = SDiaRewardProcessor.from_pretrained("checkpoints/nano")  # doctest: +SKIP
        >>> inputs = processor(messages, criterion="joint")  # doctest: +SKIP
    """

    def __init__(
        self,
        feature_extractor: WhisperFeatureExtractor | None = None,
        tokenizer: Any = None,
        prompts: dict[str, str] | None = None,
        prompt_version: str = PROMPT_VERSION,
        max_turn_s: float = 30.0,
        **kwargs: Any,
    ):
        super().__init__(feature_extractor, tokenizer, **kwargs)
        self.prompts = copy(DEFAULT_PROMPTS if prompts is None else prompts)
        self.prompt_version = prompt_version
        self.max_turn_s = max_turn_s
        validate_prompts(self.prompts, prompt_version)
        validate_max_turn_s(max_turn_s)
        _validate_special_tokens(tokenizer)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the processor of a native checkpoint or of one that the authors released; as in `transformers`."""
        hub_kwargs = {name: kwargs[name] for name in HUB_KWARGS if name in kwargs}
        fields = read_processor_fields(pretrained_model_name_or_path, **hub_kwargs)
        if fields is None:
            reject_custom_code(pretrained_model_name_or_path, **hub_kwargs)
            kwargs.setdefault("trust_remote_code", False)
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        given = {name: kwargs[name] for name in fields if name in kwargs}
        return cls.from_backbone(pretrained_model_name_or_path, **{**fields, **given}, **hub_kwargs)

    @classmethod
    def from_backbone(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> SDiaRewardProcessor:
        """Build a processor from the tokenizer and the feature extractor of a Qwen2.5-Omni checkpoint.

        Args:
            pretrained_model_name_or_path (`str` or `Path`): Hub id or folder.
            kwargs: `prompts`, `prompt_version` and `max_turn_s`, as in the constructor, and `revision`, `token`,
                `cache_dir`, ... of the Hub.
        """
        hub_kwargs = {name: kwargs.pop(name) for name in HUB_KWARGS if name in kwargs}
        reject_custom_code(pretrained_model_name_or_path, **hub_kwargs)
        return cls(
            WhisperFeatureExtractor.from_pretrained(pretrained_model_name_or_path, **hub_kwargs),
            AutoTokenizer.from_pretrained(pretrained_model_name_or_path, trust_remote_code=False, **hub_kwargs),
            **kwargs,
        )

    @property
    def sampling_rate(self) -> int:
        """Rate of the audio behind the mel features, in Hz."""
        return self.feature_extractor.sampling_rate

    def __call__(
        self,
        dialogues: Sequence[Any],
        criterion: str | Sequence[str] = "joint",
        padding_side: str | None = None,
    ) -> BatchFeature:
        """Prepare one dialogue or a batch of them.

        Args:
            dialogues (`list[dict]` or `list[list[dict]]`): The messages of one dialogue, or of several. A dialogue
                that begins with a system turn keeps it; to any other the prompt of its criterion is added. The lists
                given are not changed.
            criterion (`str` or `list[str]`, *optional*, defaults to `"joint"`): One for all dialogues, or one for
                each.
            padding_side (`str`, *optional*): `"left"` or `"right"`; by default the tokenizer's.

        Returns:
            [`BatchFeature`] with `input_ids` and `attention_mask` of shape `(batch_size, sequence_length)` and, if
            there is audio, `input_features` of shape `(num_clips, num_mel_bins, num_frames)` and
            `feature_attention_mask` of shape `(num_clips, num_frames)`: the clips of all dialogues in order.

        Raises:
            ValueError: The criterion is unknown, a dialogue has no messages, or an item is neither text nor audio.
            AudioError: A recording cannot be used.
        """
        dialogues = _as_batch(dialogues)
        criteria = expand_criteria(criterion, len(dialogues))
        prepared = [self.prepare(dialogue, name) for dialogue, name in zip(dialogues, criteria, strict=True)]
        batch = self.pad([dialogue.input_ids for dialogue in prepared], padding_side=padding_side)
        clips = [clip for dialogue in prepared for clip in dialogue.clips]
        if clips:
            batch["input_features"], batch["feature_attention_mask"] = self.log_mel(clips)
        return BatchFeature(batch, tensor_type="pt")

    def prepare(self, dialogue: Sequence[Mapping[str, Any]], criterion: str = "joint") -> PreparedDialogue:
        """Return the token ids of one dialogue, audio placeholders included, and its clips.

        Args:
            dialogue (`list[dict]`): Its messages; the list is not changed.
            criterion (`str`, *optional*, defaults to `"joint"`): Whose system prompt is added, unless the dialogue
                begins with a system turn.

        Raises:
            ValueError: The criterion is unknown, there are no messages, or an item is neither text nor audio.
            AudioError: A recording cannot be used.
        """
        text, recordings = self._render(self.with_prompt(dialogue, criterion))
        clips = [self.load_clip(audio, name=name) for audio, name in recordings]
        ids = np.asarray(self.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int64)
        repeats = np.ones(len(ids), dtype=np.int64)
        repeats[ids == self.audio_token_id] = [self.num_audio_tokens(clip.size) for clip in clips]
        return PreparedDialogue(np.repeat(ids, repeats), clips)

    def num_tokens(self, dialogue: Sequence[Mapping[str, Any]], criterion: str = "joint") -> int:
        """Return the number of tokens that `prepare` would return, from the headers of the recordings.

        The header of a compressed file may be off by a few samples, and so the length by a token.

        Raises:
            ValueError: As `prepare`, as far as headers tell.
        """
        text, recordings = self._render(self.with_prompt(dialogue, criterion))
        durations_s = [min(audio_duration_s(audio), self.max_turn_s) for audio, _ in recordings]
        num_vectors = [self.num_audio_tokens(math.ceil(duration * self.sampling_rate)) for duration in durations_s]
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"]) + sum(num_vectors) - len(num_vectors)

    def pad(self, input_ids: Sequence[np.ndarray], padding_side: str | None = None) -> dict[str, Any]:
        """Pad the token ids of dialogues to one length.

        Args:
            input_ids (`list[np.ndarray]`): Of each dialogue.
            padding_side (`str`, *optional*): `"left"` or `"right"`; by default the tokenizer's.

        Returns:
            `dict`: `input_ids` and `attention_mask`, tensors of shape `(batch_size, sequence_length)`.
        """
        rows = {"input_ids": [ids.tolist() for ids in input_ids]}
        return dict(self.tokenizer.pad(rows, padding_side=padding_side, return_tensors="pt"))

    def with_prompt(self, dialogue: Sequence[Mapping[str, Any]], criterion: str = "joint") -> list[Mapping[str, Any]]:
        """Return the messages with the criterion's system prompt before them, unless they begin with a system turn.

        Raises:
            ValueError: The criterion is unknown, or there are no messages.
        """
        validate_form(dialogue)
        if not dialogue:
            raise DialogueError("a dialogue has no messages; give at least one turn.")
        if criterion not in self.prompts:
            raise ValueError(f"criterion is {criterion!r}; this checkpoint has {', '.join(sorted(self.prompts))}.")
        if dialogue[0]["role"] == "system":
            return list(dialogue)
        return [{"role": "system", "content": self.prompts[criterion]}, *dialogue]

    def load_clip(self, audio: Any, name: str | None = None) -> np.ndarray:
        """Read one recording as mono float32 at the processor's rate, cut to `max_turn_s`, which is logged (`INFO`).

        Args:
            audio: Anything `audio_sdiareward.read_audio` takes.
            name (`str`, *optional*): What to call the recording in a message.

        Returns:
            `np.ndarray` of shape `(num_samples,)`.
        """
        lasts_s = audio_duration_s(audio)
        if lasts_s > self.max_turn_s:
            logger.info("%s lasts %.1f s; only its first %g s are judged.", name or "a turn", lasts_s, self.max_turn_s)
        return read_audio(audio, sampling_rate=self.sampling_rate, max_duration_s=self.max_turn_s, name=name)

    @property
    def audio_token_id(self) -> int:
        """Token id of the audio placeholder."""
        return self.tokenizer.convert_tokens_to_ids(AUDIO_TOKEN)

    def log_mel(self, clips: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Compute Whisper's log-mel features at the true length of the clips.

        Args:
            clips (`list[np.ndarray]`): Mono signals at the processor's rate.

        Returns:
            `tuple`: features of shape `(num_clips, num_mel_bins, num_frames)`, float32, and their mask of shape
            `(num_clips, num_frames)`, int64, 1 on the `ceil(num_samples / hop_length)` frames of each clip.
        """
        hop_length = self.feature_extractor.hop_length
        num_frames = np.array([-(-clip.size // hop_length) for clip in clips])
        padded = np.zeros((len(clips), (num_frames.max() + _MARGIN_FRAMES) * hop_length), dtype=np.float32)
        for row, clip in zip(padded, clips, strict=True):
            row[: clip.size] = clip
        features = self.feature_extractor(
            list(padded), sampling_rate=self.sampling_rate, padding=False, truncation=False, return_tensors="np"
        ).input_features
        mask = np.arange(num_frames.max()) < num_frames[:, None]
        return features[..., : num_frames.max()], mask.astype(np.int64)

    def num_audio_tokens(self, num_samples: int) -> int:
        """Return the number of vectors that the audio tower computes of a clip of `num_samples` samples."""
        num_frames = -(-num_samples // self.feature_extractor.hop_length)
        after_convolution = (num_frames - 1) // 2 + 1
        return (after_convolution - 2) // 2 + 1

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[tuple[Any, str]]]:
        """Return the ChatML text of a dialogue, one audio placeholder for each recording, and these with names."""
        recordings: list[tuple[Any, str]] = []
        turns = []
        for index, message in enumerate(messages):
            content = message["content"]
            items = [{"type": "text", "text": content}] if isinstance(content, str) else content
            rendered = self._render_items(items, index, recordings)
            self._require_plain(message["role"], "role", index)
            turns.append(f"<|im_start|>{message['role']}\n{rendered}<|im_end|>\n")
        return "".join(turns), recordings

    def _render_items(self, items: Sequence[Mapping[str, Any]], turn: int, recordings: list[tuple[Any, str]]) -> str:
        """Return the text of one turn, a placeholder for each recording; append these to `recordings`."""
        pieces = [None if item.get("audio") is not None else item.get("text") or "" for item in items]
        recordings += [
            (item["audio"], _clip_name(item["audio"], turn))
            for item, piece in zip(items, pieces, strict=True)
            if piece is None
        ]
        # As one text: two that are harmless could be a control token together, with no recording between them.
        self._require_plain("".join("\n" if piece is None else piece for piece in pieces), "text", turn)
        return "".join(AUDIO_BOS_TOKEN + AUDIO_TOKEN + AUDIO_EOS_TOKEN if piece is None else piece for piece in pieces)

    def _require_plain(self, text: str, field: str, turn: int) -> None:
        """Raise unless a text is of whole characters and holds no control token."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise DialogueError(f"its {field} holds half a character; save the transcript as UTF-8 again.", turn)
        if forged := [token for token in self.tokenizer.all_special_tokens if token in text]:
            raise DialogueError(
                f"its {field} holds the control token {forged[0]!r}; take it out of the transcript.", turn
            )


def expand_criteria(criterion: str | Sequence[str], num_dialogues: int) -> list[str]:
    """Return the criterion of each dialogue.

    Args:
        criterion (`str` or `list[str]`): One for all dialogues, or one for each.
        num_dialogues (`int`): How many there are.

    Raises:
        ValueError: There are not as many criteria as dialogues.
    """
    criteria = [criterion] * num_dialogues if isinstance(criterion, str) else list(criterion)
    if len(criteria) != num_dialogues:
        raise ValueError(f"got {len(criteria)} criteria for {num_dialogues} dialogues; give one for all or for each.")
    return criteria


def _validate_special_tokens(tokenizer: Any) -> None:
    vocabulary = tokenizer.get_vocab()
    for token in ("<|im_start|>", "<|im_end|>", AUDIO_TOKEN, AUDIO_BOS_TOKEN, AUDIO_EOS_TOKEN):
        if token not in vocabulary:
            raise ValueError(f"the tokenizer has no token {token}; use the tokenizer of a Qwen2.5-Omni checkpoint.")


def _as_batch(dialogues: Sequence[Any]) -> Sequence[Sequence[Mapping[str, Any]]]:
    if not dialogues:
        raise ValueError("no dialogues were given; give the messages of at least one.")
    return [dialogues] if isinstance(dialogues[0], Mapping) else dialogues


def _clip_name(audio: Any, turn: int) -> str:
    path = audio.get("path") if isinstance(audio, Mapping) else audio
    return f"turn {turn} ({path})" if isinstance(path, (str, Path)) else f"turn {turn}"


SDiaRewardProcessor.register_for_auto_class()

__all__ = [
    "PreparedDialogue",
    "SDiaRewardProcessor",
    "expand_criteria",
]
