"""Score many dialogues in batches; a reward does not depend on the batch.

Batches are filled to a budget of tokens and computed without padding (`packed_forward`). On an accelerator the next
batches are prefetched meanwhile. Each of these can be switched off; none changes a reward.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdiareward.audio_sdiareward import Heard, describe_unheard
from sdiareward.chat_sdiareward import DialogueError, expand_criteria, make_dialogue
from sdiareward.checkpoint_io.adapter_files import is_adapter
from sdiareward.checkpoint_io.adapters import load_adapted
from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.common.hub import split_commit
from sdiareward.configuration_sdiareward import name_prompts, validate_prompts
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .batching import (
    DIALOGUE_ERRORS,
    DialoguePreparer,
    PreparedBatch,
    ReadDialogue,
    check_agreement,
    choose_batch_tokens,
    format_reason,
    list_members,
    plan_batches,
    prefetch,
    read_ahead,
)
from .calibration import Calibration
from .packed_forward import ClipCache, encode_clips, run_packed_batch


logger = logging.getLogger(__name__)

_NUM_WORKERS = {"cpu": 0}
_NUM_WORKERS_ACCELERATOR = 2
# Dialogues that are sorted by length together, decoded: enough to fill batches well, few enough to start soon.
_PLANNED_AT_A_TIME, _PLANNED_BYTES = 1024, 256 * 2**20
# Clips recur mostly within a batch: the two sides of a pair, the candidates of a group.
_CLIP_CACHE_BYTES = 64 * 2**20
# Of all scorers, so that one can be copied.
_counting = threading.Lock()
# A dtype: products and convolutions in bfloat16, everything between in float32. In bfloat16 throughout, every layer
# rounds the residual stream to eight bits, and the errors add up over the layers.
FAST = "fast"


def has_bfloat16(device_type: str) -> bool:
    if device_type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


@dataclass(frozen=True)
class Features:
    pooled: np.ndarray  # Shape `(hidden_size,)`, float32.
    reward: float  # NaN for another layer than the last.
    hidden_states: np.ndarray | None = None  # Shape `(num_tokens, hidden_size)`, float32.
    heard: Heard = Heard()


class Scorer:
    """Score spoken dialogues with a model and its processor.

    Threads may share a scorer, and several scorers and other code a model: a call changes neither. A copy, or one that
    was pickled, begins with an empty cache of clips.

    Args:
        model (`SDiaRewardModel`): The reward model; it is put in evaluation mode.
        processor (`SDiaRewardProcessor`): Its processor.
        batch_tokens (`int`, *optional*): Tokens in one forward pass; by default 16,384 on an accelerator and 4,096 on
            a CPU. A longer dialogue, or a longer group of dialogues, is a batch by itself.
        num_workers (`int`, *optional*): Threads that prefetch the next batches; 0 reads between the batches. By
            default 2 on an accelerator and 0 on a CPU, whose cores the model keeps busy by itself.
        pack (`bool`, *optional*, defaults to `True`): Compute a batch without padding. Otherwise shorter dialogues are
            padded on the right, and identical dialogues of a batch may differ in their last digits.
        share_prefixes (`bool`, *optional*, defaults to `True`): Compute the messages that several dialogues of a batch
            begin with once; requires `pack`.
        share_clips (`bool`, *optional*, defaults to `True`): Encode each distinct clip once.
        compile (`bool`, *optional*, defaults to `False`): Compile feed-forward blocks and norms (`torch.compile`).
        mixed_precision (`bool`, *optional*, defaults to `False`): Compute products in bfloat16 where the hardware
            does; the model is changed.
        device (`str` or `torch.device`, *optional*): Where to compute; by default the model's device.

    Attributes:
        audio_s (`float`): Seconds of audio scored so far; of each turn, what the model hears.

    Raises:
        ValueError: Model and processor disagree on a setting that changes rewards, or an option is out of range.

    Examples:
        >>> scorer = Scorer.from_pretrained("checkpoints/nano")  # doctest: +SKIP
        >>> chosen, rejected = scorer.score([chosen_messages, rejected_messages])  # doctest: +SKIP
    """

    def __init__(
        self,
        model: SDiaRewardModel,
        processor: SDiaRewardProcessor,
        *,
        batch_tokens: int | None = None,
        num_workers: int | None = None,
        pack: bool = True,
        share_prefixes: bool = True,
        share_clips: bool = True,
        compile: bool = False,
        mixed_precision: bool = False,
        device: str | torch.device | None = None,
    ):
        check_agreement(model, processor)
        if device is not None:
            torch.nn.Module.to(model, device)
        if batch_tokens is None:
            batch_tokens = choose_batch_tokens(model.device.type)
        if num_workers is None:
            num_workers = _NUM_WORKERS.get(model.device.type, _NUM_WORKERS_ACCELERATOR)
        for name, value, least in (("batch_tokens", batch_tokens, 1), ("num_workers", num_workers, 0)):
            if value < least:
                raise ValueError(f"{name} is {value}; give at least {least}.")
        self.model = model.eval()
        self.processor = processor
        self.batch_tokens = batch_tokens
        self.num_workers = num_workers
        self.pack = pack
        self.share_prefixes = share_prefixes and pack
        self.share_clips = share_clips
        self.audio_s = 0.0
        self.mixed_precision = mixed_precision and has_bfloat16(model.device.type)
        if self.mixed_precision:
            # As they are read under autocast.
            for module in model.model.modules():
                if isinstance(module, (torch.nn.Linear, torch.nn.Conv1d)):
                    module.to(torch.bfloat16)
        self._encoded = ClipCache(_CLIP_CACHE_BYTES if share_clips else 0)
        self._prepare = DialoguePreparer(processor, self._encoded)
        if compile:
            for layer in model.model.language_model.layers:
                for block in (layer.input_layernorm, layer.post_attention_layernorm, layer.mlp):
                    block.compile(dynamic=True)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        device_map: Any = None,
        prompts: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Scorer:
        """Load a checkpoint's model and processor.

        Args:
            pretrained_model_name_or_path (`str` or `Path`): Folder or Hub id of a checkpoint or of adapters; `"nano"`.
            dtype (`str` or `torch.dtype`, *optional*): Dtype of the backbone; by default that of the checkpoint's
                configuration. `"fast"` computes products in bfloat16 where the hardware does, and everything between
                them in float32. Pooling and head are always float32.
            device (`str` or `torch.device`, *optional*): Where to compute; by default the accelerator if there is one.
            device_map (*optional*): Spread the model over devices, as in `transformers`; instead of `device`.
            prompts (`dict[str, str]`, *optional*): System prompts by criterion that replace the checkpoint's, for
                instance those that released weights were trained with.
            options: Options of the constructor.
        """
        checkpoint = find_checkpoint(pretrained_model_name_or_path)
        if device is None and device_map is None:
            device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
        processor: SDiaRewardProcessor | None = None
        fields: dict[str, Any] = {}
        if prompts is not None:
            processor = SDiaRewardProcessor.from_pretrained(checkpoint)
            merged = {**processor.prompts, **prompts}
            # The checkpoint's own keep their version.
            if merged != processor.prompts:
                fields = {"prompts": merged, "prompt_version": name_prompts(merged)}
                validate_prompts(**fields)
                processor.prompts, processor.prompt_version = dict(merged), fields["prompt_version"]
        load = load_adapted if is_adapter(checkpoint) else SDiaRewardModel.from_pretrained
        model = load(
            checkpoint, dtype="float32" if dtype == FAST else dtype or "auto", device_map=device_map, **fields
        )
        if split_commit(str(pretrained_model_name_or_path))[1]:
            model.config.name_or_path = str(pretrained_model_name_or_path)
        processor = processor or SDiaRewardProcessor.from_pretrained(checkpoint)
        return cls(model, processor, device=device, mixed_precision=dtype == FAST, **options)

    @property
    def dtype(self) -> str:
        """Name of the dtype of the backbone: `"fast"`, or `"float32"` and the like."""
        return FAST if self.mixed_precision else str(self.model.dtype).removeprefix("torch.")

    def score(
        self,
        dialogues: Sequence[Any],
        criterion: str | Sequence[str] = "joint",
        groups: Sequence[Hashable] | None = None,
        *,
        calibrated: bool = False,
        subsets: str | Sequence[str] | None = None,
        heard: MutableMapping[int, Heard] | None = None,
    ) -> list[float]:
        """Return the reward of each dialogue, in the order given; higher is better.

        Args:
            dialogues (`list[list[dict]]`): Messages of each dialogue, as the processor takes them.
            criterion (`str` or `list[str]`, *optional*, defaults to `"joint"`): One for all, or one for each.
            groups (`list`, *optional*): A value for each dialogue; those of equal value are computed together.
            calibrated (`bool`, *optional*, defaults to `False`): As in `iter_scores`.
            subsets (`str` or `list[str]`, *optional*): As in `iter_scores`.
            heard (`dict[int, Heard]`, *optional*): As in `iter_scores`.
        """
        options: dict[str, Any] = {"calibrated": calibrated, "subsets": subsets, "heard": heard}
        rewards = dict(self.iter_scores(dialogues, criterion, groups=groups, **options))
        return [rewards[index] for index in range(len(dialogues))]

    def iter_scores(
        self,
        dialogues: Sequence[Any],
        criterion: str | Sequence[str] = "joint",
        *,
        groups: Sequence[Hashable] | None = None,
        skipped: MutableMapping[int, str] | None = None,
        progress: bool = False,
        calibrated: bool = False,
        subsets: str | Sequence[str] | None = None,
        heard: MutableMapping[int, Heard] | None = None,
    ) -> Iterator[tuple[int, float]]:
        """Yield `(index, reward)` as each batch is finished, longer dialogues before shorter ones.

        Args:
            dialogues (`Sequence[list[dict]]`): A [`Dialogue`] or the messages of each; audio may stay encoded or on
                disk. Items are read once, when they are needed, from several threads.
            criterion (`str` or `list[str]`, *optional*, defaults to `"joint"`): One for all, or one for each.
            groups (`list`, *optional*): A value for each dialogue. Those of equal value, such as the two sides of a
                pair or the completions of a prompt, are computed together and yielded one after the other.
            skipped (`dict[int, str]`, *optional*): Receives the reason for each dialogue that has no reward, by its
                index. Without it the first one raises.
            progress (`bool`, *optional*, defaults to `False`): Show a progress bar.
            calibrated (`bool`, *optional*, defaults to `False`): Yield rewards calibrated by the checkpoint's
                `calibration`: without `subsets` the share of a reference set's rewards that are lower.
            subsets (`str` or `list[str]`, *optional*): With `calibrated`, the subset of all dialogues or of each; then
                log-odds by the subset's offset and temperature are yielded.
            heard (`dict[int, Heard]`, *optional*): Receives what the model heard of each dialogue, by its index:
                seconds given and heard, turns that are cut, silent turns. Without it a warning at the end names these.

        Raises:
            ValueError: The number of criteria, groups or subsets differs from that of dialogues, a dialogue cannot be
                used or its reward is not finite, or the model has no calibration for all or for a subset.
            OSError: A recording cannot be read.
        """
        value_of = self._make_calibrator(expand_criteria(criterion, len(dialogues)), calibrated, subsets)
        options: dict[str, Any] = {"groups": groups, "skipped": skipped, "progress": progress}
        found = self.iter_features(dialogues, criterion, is_whole=True, **options)
        noted = self._note_heard(found, heard)
        return ((index, value_of(index, reward)) for index, reward in _iter_finite(noted, skipped))

    def _note_heard(
        self, found: Iterator[tuple[int, Features]], heard: MutableMapping[int, Heard] | None
    ) -> Iterator[tuple[int, Features]]:
        unheard: dict[int, Heard] = {}
        for index, features in found:
            if heard is not None:
                heard[index] = features.heard
            elif features.heard.cut_turns or features.heard.silent_turns:
                unheard[index] = features.heard
            yield index, features
        named = ((f"dialogues[{index}]", each) for index, each in sorted(unheard.items()))
        for notice in describe_unheard(named):
            logger.warning(notice)

    def _make_calibrator(
        self, criteria: list[str], calibrated: bool, subsets: str | Sequence[str] | None
    ) -> Callable[[int, float], float]:
        if calibrated:
            return Calibration.of(self.model.config).for_each(criteria, subsets)
        if subsets is not None:
            raise ValueError("subsets are for calibrated rewards; give calibrated=True too, or omit them.")
        return lambda index, reward: reward

    def iter_features(
        self,
        dialogues: Sequence[Any],
        criterion: str | Sequence[str] = "joint",
        *,
        layer: int = -1,
        per_token: bool = False,
        groups: Sequence[Hashable] | None = None,
        skipped: MutableMapping[int, str] | None = None,
        progress: bool = False,
        is_whole: bool = False,
    ) -> Iterator[tuple[int, Features]]:
        """Yield `(index, Features)`, on which a head on a frozen backbone is trained, as `iter_scores` yields rewards.

        Args:
            dialogues (`Sequence[list[dict]]`): As in `iter_scores`.
            criterion (`str` or `list[str]`, *optional*, defaults to `"joint"`): As in `iter_scores`.
            layer (`int`, *optional*, defaults to -1): -1 for the last hidden states, after the final norm, from which
                rewards are computed; `k >= 0` for the output of text layer `k`, 0 being the embeddings.
            per_token (`bool`, *optional*, defaults to `False`): Add the hidden states of each token.
            groups (`list`, *optional*): As in `iter_scores`.
            skipped (`dict[int, str]`, *optional*): As in `iter_scores`.
            progress (`bool`, *optional*, defaults to `False`): As in `iter_scores`.
            is_whole (`bool`, *optional*, defaults to `False`): Refuse what is only the beginning of a dialogue.

        Raises:
            ValueError: As `iter_scores`; or the model has no such layer; or `pack` is off and anything but pooled
                vectors of the last layer is requested.
        """
        from tqdm.auto import tqdm

        criteria = expand_criteria(criterion, len(dialogues))
        num_layers = self.model.model.language_model.config.num_hidden_layers
        if not -1 <= layer < num_layers:
            raise ValueError(
                f"layer is {layer}; this model has the layers 0 to {num_layers - 1}, and -1 for the last."
            )
        if not self.pack and (layer >= 0 or per_token):
            raise ValueError("hidden states of tokens or of other layers are requested; they require pack=True.")

        def read(group: Sequence[int]) -> dict[int, ReadDialogue | Exception]:
            found: dict[int, ReadDialogue | Exception] = {}
            for index in group:
                try:
                    dialogue = make_dialogue(dialogues[index], is_whole=is_whole)
                    found[index] = self._prepare.read(dialogue, criteria[index])
                except DIALOGUE_ERRORS as error:
                    found[index] = error
            return found

        read_groups = prefetch(read, list_members(groups, len(dialogues)), self.num_workers)
        with tqdm(total=len(dialogues), desc="features", disable=not progress, unit="dialogue") as bar:
            plan = self._plan(read_groups, skipped)
            batches = prefetch(self._prepare.join, read_ahead(plan) if self.num_workers else plan, self.num_workers)
            for batch in batches:
                with _counting:
                    self.audio_s += sum(each.heard_s for each in batch.heard.values())
                with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.mixed_precision):
                    features = self._compute(batch, layer, per_token)
                for index, each in zip(batch.indices, features, strict=True):
                    yield index, replace(each, heard=batch.heard[index])
                bar.update(len(batch.indices))
            # What was skipped.
            bar.update(len(dialogues) - bar.n)

    def _plan(
        self, groups: Iterator[dict[int, ReadDialogue | Exception]], skipped: MutableMapping[int, str] | None
    ) -> Iterator[dict[int, ReadDialogue]]:
        """Yield the dialogues of each batch; those that are sorted by length together are held decoded."""
        window: dict[int, ReadDialogue] = {}
        members: list[list[int]] = []
        num_bytes = 0
        for group in chain(groups, [None]):
            for index, found in (group or {}).items():
                if isinstance(found, Exception):
                    _skip(index, found, skipped)
                else:
                    window[index] = found
                    num_bytes += found.num_bytes
            if group is not None:
                members.append([index for index in group if index in window])
            if window and (group is None or len(window) >= _PLANNED_AT_A_TIME or num_bytes >= _PLANNED_BYTES):
                lengths = {index: each.num_tokens for index, each in window.items()}
                for batch in plan_batches(lengths, list(filter(None, members)), self.batch_tokens, not self.pack):
                    yield {index: window.pop(index) for index in batch}
                members, num_bytes = [], 0

    @torch.inference_mode()
    def _compute(self, batch: PreparedBatch, layer: int, per_token: bool) -> list[Features]:
        if not self.pack:
            return self._compute_padded(batch)
        output = run_packed_batch(
            self.model,
            batch.dialogues,
            lambda digests: self._encode(digests, batch),
            layer=layer,
            share_prefixes=self.share_prefixes,
        )
        features = list(map(Features, output.pooled.cpu().numpy(), output.rewards.squeeze(-1).tolist()))
        if not per_token:
            return features
        tokens = (output.layout.take_along(output.hidden_states, end, 0).float().cpu().numpy() for end in output.last)
        return [replace(each, hidden_states=states) for each, states in zip(features, tokens, strict=True)]

    def _compute_padded(self, batch: PreparedBatch) -> list[Features]:
        digests = [digest for messages in batch.dialogues for message in messages for digest in message.clips]
        clips = self._encode(digests, batch)
        rows = [np.concatenate([message.input_ids for message in messages]) for messages in batch.dialogues]
        # On the right, where the model needs no attention mask.
        inputs = self.processor.pad(rows, padding_side="right")
        inputs = {name: tensor.to(self.model.device) for name, tensor in inputs.items()}
        output = self.model(**inputs, audio_features=torch.cat(clips) if clips else None)
        pooled, rewards = output.pooled.cpu().numpy(), output.logits.squeeze(-1).tolist()
        return list(map(Features, pooled, rewards))

    def _encode(self, digests: list[bytes], batch: PreparedBatch) -> list[torch.Tensor]:
        wanted = list(dict.fromkeys(digests)) if self.share_clips else digests
        known = {digest: self._encoded.find(digest) for digest in wanted}
        found = {digest: vectors for digest, vectors in known.items() if vectors is not None}
        missing = [digest for digest in wanted if digest not in found]
        # A clip may have left the cache after its mel features were omitted.
        batch.mels |= self._prepare.compute_mels({key: batch.clips[key] for key in set(missing) - set(batch.mels)})
        encoded = encode_clips(self.model, [batch.mels[digest] for digest in missing]) if missing else []
        if not self.share_clips:
            return encoded
        for digest, vectors in zip(missing, encoded, strict=True):
            found[digest] = vectors
            self._encoded.add(digest, vectors)
        return [found[digest] for digest in digests]


def _skip(index: int, error: Exception, skipped: MutableMapping[int, str] | None) -> None:
    if skipped is None:
        raise error
    skipped[index] = format_reason(error)


def _iter_finite(
    found: Iterator[tuple[int, Features]], skipped: MutableMapping[int, str] | None
) -> Iterator[tuple[int, float]]:
    for index, features in found:
        if math.isfinite(features.reward):
            yield index, features.reward
        else:
            problem = f"its reward is {features.reward}; score with dtype float32, or check the checkpoint."
            _skip(index, DialogueError(problem), skipped)
