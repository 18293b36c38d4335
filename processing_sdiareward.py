"""Turn spoken dialogues into the inputs of `SDiaRewardModel`: the only place where that happens.

A dialogue is a `Dialogue`, or what `make_dialogue` reads as one, such as messages: `{"role", "content"}` with a string
or a list of `{"type": "text", "text"}` and `{"type": "audio", "audio"}` items, which the model reads in their order.

Notable choices:

- A tokenizer and a `WhisperFeatureExtractor` are enough; nothing for images is needed or loaded.
- Mel features are computed at the true length of the clips. Padding every clip to the feature extractor's 300 s gives
  the same frames and takes 15 MB for each turn.
- The prompts travel with the processor, as they do with the model's configuration.
- Rendered texts with placeholders (`text=`, `audio=`) go through the library's own `__call__`. Dialogues do not: it
  would tokenize every placeholder.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoProcessor, AutoTokenizer, BatchFeature, WhisperFeatureExtractor
from transformers.processing_utils import ProcessorMixin

from .audio_sdiareward import Clip, Heard, is_silent
from .chat_sdiareward import (
    AUDIO_TOKEN,
    CHAT_TEMPLATE,
    Dialogue,
    DialogueError,
    as_batch,
    expand_criteria,
    make_dialogue,
    read_padding_options,
    render_dialogue,
    require_special_tokens,
    shorten,
)
from .configuration_sdiareward import (
    DEFAULT_PROMPTS,
    PROMPT_VERSION,
    SDiaRewardConfig,
    name_prompts,
    validate_max_turn_s,
    validate_prompts,
    validate_stack_factor,
)
from .loading_sdiareward import HUB_KWARGS, find_checkpoint, read_processor_fields


logger = logging.getLogger(__name__)

# A fast tokenizer keeps the padding that one call asks for, which another thread's call would take away.
_tokenizing = threading.Lock()
# Zeros after a clip that keep the reflection at its end, and the frame behind its last one, out of the frames kept.
_MARGIN_FRAMES = 3


_SYSTEM_TURN = (
    "a dialogue begins with a system turn, which the model reads in place of the prompt of its criterion; remove it "
    "unless it is meant for the reward model."
)


@cache
def _warn_once(text: str) -> None:
    logger.warning(text)


@dataclass(frozen=True)
class PreparedDialogue:
    """Hold one dialogue as tokens and audio.

    Args:
        input_ids (`np.ndarray` of shape `(num_tokens,)`): int64, one placeholder for each vector of the audio tower.
        clips (`list[np.ndarray]`): Its recordings, each of shape `(num_samples,)`, float32.
        heard ([`Heard`]): Seconds given and heard, turns that are cut, silent turns.
    """

    input_ids: np.ndarray
    clips: list[np.ndarray]
    heard: Heard = Heard()


class SDiaRewardProcessor(ProcessorMixin):
    """Turn dialogues into token ids and mel features.

    Args:
        feature_extractor (`WhisperFeatureExtractor`): Computes the log-mel features.
        tokenizer (`PreTrainedTokenizerBase`): Tokenizer with the special tokens of Qwen2.5-Omni.
        prompts (`dict[str, str]`, *optional*): System prompt of each criterion; by default `DEFAULT_PROMPTS`.
        prompt_version (`str`, *optional*, defaults to `"1"`): Name of this set of prompts.
        max_turn_s (`float`, *optional*, defaults to 30.0): Seconds kept of each audio item.
        stack_factor (`int`, *optional*, defaults to 1): Vectors of the audio tower that are joined to one token.

    Raises:
        ValueError: A prompt, `max_turn_s` or `stack_factor` is invalid, or the tokenizer lacks a special token.

    Examples:
        >>> processor = SDiaRewardProcessor.from_pretrained("checkpoints/nano")  # doctest: +SKIP
        >>> inputs = processor(messages, criterion="joint")  # doctest: +SKIP
    """

    audio_token = AUDIO_TOKEN

    def __init__(
        self,
        feature_extractor: WhisperFeatureExtractor | None = None,
        tokenizer: Any = None,
        prompts: dict[str, str] | None = None,
        prompt_version: str = PROMPT_VERSION,
        max_turn_s: float = 30.0,
        stack_factor: int = 1,
        **kwargs: Any,
    ):
        # Not the template of a checkpoint's file: this class decides what the model reads.
        super().__init__(feature_extractor, tokenizer, chat_template=CHAT_TEMPLATE, **kwargs)
        self.prompts = copy(DEFAULT_PROMPTS if prompts is None else prompts)
        self.prompt_version = prompt_version
        self.max_turn_s = max_turn_s
        validate_prompts(self.prompts, prompt_version)
        self.stack_factor = stack_factor
        validate_max_turn_s(max_turn_s)
        validate_stack_factor(stack_factor)
        require_special_tokens(tokenizer)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the processor of a native checkpoint or of one that the authors released; as in `transformers`.

        With the package, `"nano"` and `"small"` name checkpoints as well.

        Prompts that override the checkpoint's are named after their hash, as [`SDiaRewardConfig`] does, unless
        `prompt_version` names them.
        """
        hub_kwargs = {name: kwargs[name] for name in HUB_KWARGS if name in kwargs}
        prompts = kwargs.pop("prompts", None)
        pretrained_model_name_or_path = find_checkpoint(pretrained_model_name_or_path)
        fields = read_processor_fields(pretrained_model_name_or_path, **hub_kwargs)
        if fields is None:
            kwargs.setdefault("trust_remote_code", False)
            loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        else:
            given = {name: kwargs[name] for name in fields if name in kwargs}
            loaded = cls.from_backbone(pretrained_model_name_or_path, **{**fields, **given}, **hub_kwargs)
        processor = loaded[0] if isinstance(loaded, tuple) else loaded
        if prompts is not None and prompts != processor.prompts:
            processor.prompts = copy(prompts)
            processor.prompt_version = kwargs.get("prompt_version") or name_prompts(prompts)
            validate_prompts(processor.prompts, processor.prompt_version)
        return loaded

    @classmethod
    def from_backbone(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> SDiaRewardProcessor:
        """Build a processor from the tokenizer and the feature extractor of a Qwen2.5-Omni checkpoint.

        Args:
            pretrained_model_name_or_path (`str` or `Path`): Hub id or folder.
            kwargs: `prompts`, `prompt_version` and `max_turn_s`, as in the constructor, and `revision`, `token`,
                `cache_dir`, ... of the Hub.
        """
        hub_kwargs = {name: kwargs.pop(name) for name in HUB_KWARGS if name in kwargs}
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
        dialogues: Sequence[Any] | None = None,
        criterion: str | Sequence[str] | None = None,
        *,
        conversation: Sequence[Any] | None = None,
        text: str | list[str] | None = None,
        audio: Any = None,
        **kwargs: Any,
    ) -> BatchFeature:
        """Prepare one dialogue or a batch of them.

        Args:
            dialogues (`list[dict]` or `list[list[dict]]`, *optional*): The messages of one dialogue, or of several, or
                their turns as rows of a data set have them. A dialogue that begins with a system turn keeps it; to any
                other the prompt of its criterion is added. The lists given are not changed.
            criterion (`str` or `list[str]`, *optional*): One for all dialogues, or one for each; by default `"joint"`.
            conversation (`list`, *optional*): Another name of `dialogues`.
            text (`str` or `list[str]`, *optional*): In the place of dialogues: texts that `apply_chat_template`
                rendered. They are taken as they are: no prompt is added.
            audio (`np.ndarray` or `list[np.ndarray]`, *optional*): The recordings of the placeholders in `text`, in
                order: mono, at the processor's rate.
            kwargs: Options of every processor of `transformers`. Dialogues are padded to the longest, and returned as
                tensors of PyTorch, by default; they are never truncated.

        Returns:
            [`BatchFeature`] with `input_ids` and `attention_mask` of shape `(batch_size, sequence_length)` and, if
            there is audio, `input_features` of shape `(num_clips, num_mel_bins, num_frames)` and
            `feature_attention_mask` of shape `(num_clips, num_frames)`: the clips of all dialogues in order.

        Raises:
            TypeError: An option is unknown, or would cut a dialogue.
            ValueError: The criterion is unknown, a dialogue has no messages, an item is neither text nor audio, or the
                texts have another number of placeholders than there are recordings.
            AudioError: A recording cannot be used.
        """
        if dialogues is None and conversation is None:
            if criterion is not None:
                raise ValueError("criterion is for dialogues: apply_chat_template takes it, a rendered text has it.")
            with _tokenizing:
                return super().__call__(text=text, audio=audio, **kwargs)
        if (dialogues is not None and conversation is not None) or text is not None or audio is not None:
            raise ValueError("give one of dialogues, conversation and text; audio belongs to a text only.")
        dialogues = as_batch(conversation if dialogues is None else dialogues)
        criteria = expand_criteria("joint" if criterion is None else criterion, len(dialogues))
        options, return_tensors = read_padding_options(kwargs)
        prepared = [self.prepare(dialogue, name) for dialogue, name in zip(dialogues, criteria, strict=True)]
        for each in prepared:
            self._warn_of_unheard(each.heard)
        return self.collate(prepared, return_tensors, **options)

    def collate(
        self, prepared: Sequence[PreparedDialogue], return_tensors: str | None = "pt", **options: Any
    ) -> BatchFeature:
        """Return what `__call__` returns, of prepared dialogues.

        Args:
            prepared (`list[PreparedDialogue]`): What `prepare` returned for each dialogue.
            return_tensors (`str`, *optional*, defaults to `"pt"`): Kind of tensors.
            options: Options of padding, as in `transformers`.
        """
        rows = {"input_ids": [each.input_ids.tolist() for each in prepared]}
        batch = dict(self.tokenizer.pad(rows, **{"padding": True, **options}))
        clips = [clip for dialogue in prepared for clip in dialogue.clips]
        if clips:
            batch["input_features"], batch["feature_attention_mask"] = self.log_mel(clips)
        return BatchFeature(batch, tensor_type=return_tensors)

    def apply_chat_template(  # type: ignore[override]
        self,
        conversation: Sequence[Any],
        chat_template: str | None = None,
        *,
        criterion: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Render dialogues as the text that the model reads, with the prompt of their criterion; or prepare them.

        Args:
            conversation (`list[dict]` or `list[list[dict]]`): As `dialogues` of `__call__`. The recording of an audio
                item may also be a file under `path` or `url`.
            chat_template (`str`, *optional*): Another template; the messages are then rendered without a prompt.
            criterion (`str` or `list[str]`, *optional*): As in `__call__`.
            kwargs: Options of `transformers`; `tokenize=True, return_dict=True` returns what `__call__` does.

        Returns:
            `str`, or `list[str]` for several dialogues; with `tokenize=True` as in `transformers`.

        Raises:
            ValueError, AudioError: As `__call__`.
        """
        dialogues = as_batch(conversation)
        is_single = dialogues is not conversation
        criteria = expand_criteria("joint" if criterion is None else criterion, len(dialogues))
        rendered = []
        for given, name in zip(dialogues, criteria, strict=True):
            dialogue = make_dialogue(given, is_whole=False)
            dialogue = self.with_prompt(dialogue, name) if chat_template is None else dialogue
            _, recordings = render_dialogue(dialogue, self.tokenizer)
            clips: list[Any] = [None] * len(recordings)
            if kwargs.get("tokenize"):
                clips, heard = self._load_clips(recordings)
                self._warn_of_unheard(heard)
            messages, following = dialogue.to_messages(), iter(clips)
            for item in (item for message in messages for item in message["content"] if item["type"] == "audio"):
                item["audio"] = next(following)
            rendered.append(messages)
        if kwargs.get("tokenize"):
            kwargs["processor_kwargs"] = {"padding": True, **(kwargs.get("processor_kwargs") or {})}
            kwargs["return_tensors"] = {"auto": "pt"}.get(found := kwargs.get("return_tensors", "auto"), found)
        return super().apply_chat_template(rendered[0] if is_single else rendered, chat_template, **kwargs)

    @property
    def model_input_names(self) -> list[str]:
        """Names of what `__call__` returns."""
        return [*super().model_input_names, "feature_attention_mask"]

    def _process_audio(self, audio: Any, **kwargs: Any) -> tuple[dict[str, Any], list[str]]:
        """Return the mel features of recordings at the processor's rate, and the placeholders of each."""
        rate = kwargs.get("sampling_rate")
        if rate not in (None, self.sampling_rate):
            raise ValueError(f"sampling_rate is {rate}; resample the audio to {self.sampling_rate} Hz.")
        arrays = [np.asarray(clip, dtype=np.float32) for clip in audio]
        recordings = [(Clip(array), number, f"recording {number}") for number, array in enumerate(arrays)]
        clips, heard = self._load_clips(recordings)
        self._warn_of_unheard(heard)
        features, mask = self.log_mel(clips)
        placeholders = [AUDIO_TOKEN * self.num_audio_tokens(clip.size) for clip in clips]
        return {"input_features": features, "feature_attention_mask": mask}, placeholders

    def prepare(self, dialogue: Any, criterion: str = "joint") -> PreparedDialogue:
        """Return the token ids of one dialogue, audio placeholders included, its clips, and what is heard of them.

        Args:
            dialogue ([`Dialogue`] or `list[dict]`): The dialogue, or its messages; the list is not changed.
            criterion (`str`, *optional*, defaults to `"joint"`): Whose system prompt is added, unless the dialogue
                begins with a system turn.

        Raises:
            ValueError: The criterion is unknown, there are no messages, or an item is neither text nor audio.
            AudioError: A recording cannot be used.
        """
        text, recordings = render_dialogue(self.with_prompt(dialogue, criterion), self.tokenizer)
        clips, heard = self._load_clips(recordings)
        ids = np.asarray(self._tokenize(text), dtype=np.int64)
        repeats = np.ones(len(ids), dtype=np.int64)
        repeats[ids == self.audio_token_id] = [self.num_audio_tokens(clip.size) for clip in clips]
        return PreparedDialogue(np.repeat(ids, repeats), clips, heard)

    def _load_clips(self, recordings: Sequence[tuple[Clip, int, str]]) -> tuple[list[np.ndarray], Heard]:
        """Return the samples of recordings, which have a turn and a name, and what is heard of them."""
        given_s, sounding, cut, clips = 0.0, set(), set(), []
        for clip, turn, name in recordings:
            array = clip.read(sampling_rate=self.sampling_rate, max_duration_s=self.max_turn_s, name=name)
            is_full = array.size >= round(self.max_turn_s * self.sampling_rate)
            duration_s = clip.duration_s if is_full else array.size / self.sampling_rate
            given_s += duration_s
            clips.append(array)
            if duration_s > self.max_turn_s:
                cut.add(turn)
            if not is_silent(array):
                sounding.add(turn)
        heard_s = sum(array.size for array in clips) / self.sampling_rate
        silent = {turn for _, turn, _ in recordings} - sounding
        return clips, Heard(max(given_s, heard_s), heard_s, len(clips), tuple(sorted(cut)), tuple(sorted(silent)))

    def _warn_of_unheard(self, heard: Heard) -> None:
        where = "`SDiaRewardProcessor.prepare` and the pipeline name such turns."
        if heard.cut_turns:
            _warn_once(f"a turn is longer than the {self.max_turn_s:g} s that this model hears of each; {where}")
        if heard.silent_turns:
            _warn_once(f"nothing above -70 dB of full scale is heard in a turn; {where}")

    def num_tokens(self, dialogue: Any, criterion: str = "joint") -> int:
        """Return the number of tokens that `prepare` would return, from the headers of the recordings.

        The header of a compressed file may be off by a few samples, and so the length by a token.

        Raises:
            ValueError: As `prepare`, as far as headers tell.
        """
        text, recordings = render_dialogue(self.with_prompt(dialogue, criterion), self.tokenizer)
        durations_s = [min(clip.duration_s, self.max_turn_s) for clip, _, _ in recordings]
        num_vectors = [self.num_audio_tokens(math.ceil(duration * self.sampling_rate)) for duration in durations_s]
        return len(self._tokenize(text)) + sum(num_vectors) - len(num_vectors)

    def _tokenize(self, text: str) -> list[int]:
        with _tokenizing:
            ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

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

    def with_prompt(self, dialogue: Any, criterion: str = "joint") -> Dialogue:
        """Return the dialogue with the criterion's system prompt, unless it begins with a system turn.

        Raises:
            ValueError: The criterion is unknown, or there are no messages.
        """
        dialogue = make_dialogue(dialogue, is_whole=False)
        if not dialogue.turns and dialogue.system is None:
            raise DialogueError("a dialogue has no messages; give at least one turn.")
        if criterion not in self.prompts:
            known = ", ".join(sorted(self.prompts))
            raise ValueError(f"criterion is {shorten(criterion)!r}; this checkpoint has {known}.")
        if dialogue.system is None:
            return replace(dialogue, system=self.prompts[criterion])
        if dialogue.system not in self.prompts.values():
            _warn_once(_SYSTEM_TURN)
        return dialogue

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
        """Return the number of tokens that a clip of `num_samples` samples becomes."""
        num_frames = -(-num_samples // self.feature_extractor.hop_length)
        # Behind the convolutions, which halve the frames, two and two are averaged.
        num_vectors = ((num_frames - 1) // 2 - 1) // 2 + 1
        return -(-num_vectors // self.stack_factor)


SDiaRewardProcessor.register_for_auto_class()
AutoProcessor.register(SDiaRewardConfig, SDiaRewardProcessor, exist_ok=True)

__all__ = ["PreparedDialogue", "SDiaRewardProcessor"]
