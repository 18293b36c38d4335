"""Score many dialogues in batches; a reward does not depend on the batch.

Batches are filled to a budget of tokens and computed without padding (`packed_forward`). On an accelerator the next
batches are prefetched meanwhile. Each of these can be switched off; none changes a reward.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat, takewhile
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import torch
from tqdm.auto import tqdm

from sdiareward.audio_sdiareward import Heard, describe_unheard
from sdiareward.chat_sdiareward import DialogueError, expand_criteria
from sdiareward.checkpoint_io.adapters import load_adapted
from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.common.hub import split_commit
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pairs.messages import DialogueLike, is_single
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .batching import (
    DialoguePreparer,
    PreparedBatch,
    Read,
    ReadDialogue,
    choose_batch_tokens,
    count_tokens,
    note_skipped,
    plan_batches,
    prefetch,
)
from .calibration import Calibration
from .packed_forward import ClipCache, encode_clips, run_packed_batch


logger = logging.getLogger(__name__)

# Dialogues that are sorted by length together, decoded: enough to fill batches well, few enough to start soon.
_PLANNED_AT_A_TIME, _PLANNED_BYTES = 1024, 256 * 2**20
# Clips recur mostly within a batch: the two sides of a pair, the candidates of a group.
_CLIP_CACHE_BYTES = 64 * 2**20
Criteria = str | Sequence[str]
Groups = Sequence[Hashable] | None
# What would make model and processor compute different rewards.
_SHARED_SETTINGS = ("prompts", "prompt_version", "max_turn_s", "sampling_rate", "stack_factor")
# Of all scorers, so that one can be copied.
_counting = threading.Lock()
# A dtype: products and convolutions in bfloat16, everything between in float32. In bfloat16 throughout, every layer
# rounds the residual stream to eight bits, and the errors add up over the layers.
FAST = "fast"


def has_bfloat16(device_type: str) -> bool:
    if device_type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def require_device(device: str | torch.device | None) -> None:
    """Raise `ValueError` for a device that PyTorch cannot use here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        remedy = "give another device, such as cpu, or omit it"
        raise ValueError(f"device is {str(device)!r}, which PyTorch cannot use here ({reason}); {remedy}.") from error


class ScorerOptions(TypedDict, total=False):
    """The options of [`Scorer`]."""

    batch_tokens: int | None
    num_workers: int | None
    pack: bool
    share_prefixes: bool
    share_clips: bool
    compile: bool


class ScoreOptions(TypedDict, total=False):
    """The options of `Scorer.score`."""

    progress: bool
    calibrated: bool
    subsets: str | Sequence[str] | None
    heard: MutableMapping[int, Heard] | None


@dataclass(frozen=True)
class Features:
    pooled: np.ndarray  # Shape `(hidden_size,)`, float32.
    reward: float
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
            default 2 on an accelerator and 0 on a CPU: the model keeps its cores busy.
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
        >>> from sdiareward import Scorer, SDiaRewardModel, SDiaRewardProcessor, example_dialogues
        >>> model, processor = SDiaRewardModel.from_pretrained("nano"), SDiaRewardProcessor.from_pretrained("nano")
        >>> scorer = Scorer(model, processor, batch_tokens=8192)
        >>> human, synthetic = scorer.score(example_dialogues(), criterion="modality")
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
        for name in _SHARED_SETTINGS:
            of_model, of_processor = getattr(model.config, name), getattr(processor, name)
            if of_model != of_processor:
                found = f"{of_model!r} in the model's configuration but {of_processor!r} in the processor"
                raise ValueError(f"{name} is {found}; load both from one checkpoint.")
        if device is not None:
            require_device(device)
            torch.nn.Module.to(model, device)
        self.model = model.eval()
        self.processor = processor
        self.batch_tokens = choose_batch_tokens(model.device.type) if batch_tokens is None else batch_tokens
        self.num_workers = 2 * (model.device.type != "cpu") if num_workers is None else num_workers
        if self.batch_tokens < 1 or self.num_workers < 0:
            raise ValueError(f"batch_tokens is {batch_tokens} and num_workers {num_workers}; give at least 1 and 0.")
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
        pretrained_model_name_or_path: str | Path = "nano",
        *,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        device_map: Any = None,
        prompts: Mapping[str, str] | None = None,
        **options: Unpack[ScorerOptions],
    ) -> Scorer:
        """Load a checkpoint's model and processor.

        Args:
            pretrained_model_name_or_path (`str` or `Path`, *optional*, defaults to `"nano"`): Folder or Hub id of a
                checkpoint or of adapters, or `"nano"` or `"small"`, the models of the package.
            dtype (`str` or `torch.dtype`, *optional*): Dtype of the backbone; by default as in the checkpoint's
                configuration. `"fast"` computes products in bfloat16 where the hardware does, and everything between
                them in float32. Pooling and head are always float32.
            device (`str` or `torch.device`, *optional*): Where to compute; by default the accelerator if there is one.
            device_map (*optional*): Spread the model over devices, as in `transformers`; instead of `device`.
            prompts (`dict[str, str]`, *optional*): System prompts by criterion that replace the checkpoint's, for
                instance those that released weights were trained with.
            options: Options of the constructor.

        Raises:
            FileNotFoundError, OSError: There is no such checkpoint, or the Hub does not answer.
            ValueError: The checkpoint is damaged, or PyTorch cannot use the device here.

        Examples:
            >>> from sdiareward import Scorer
            >>> Scorer.from_pretrained("nano", device="cpu")
            Scorer(nano, float32, cpu)
        """
        require_device(device)
        checkpoint = find_checkpoint(pretrained_model_name_or_path)
        if device is None and device_map is None:
            device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
        given: dict[str, Any] = {}
        if prompts:
            given["prompts"] = {**SDiaRewardProcessor.from_pretrained(checkpoint).prompts, **prompts}
        stored = "float32" if dtype == FAST else dtype or "auto"
        model = load_adapted(checkpoint, dtype=stored, device_map=device_map, **given)
        if split_commit(str(pretrained_model_name_or_path))[1]:
            model.config.name_or_path = str(pretrained_model_name_or_path)
        processor = SDiaRewardProcessor.from_pretrained(checkpoint, **given)
        return cls(model, processor, device=device, mixed_precision=dtype == FAST, **options)

    def __repr__(self) -> str:
        name = Path(self.model.config.name_or_path).name or type(self.model).__name__
        return f"Scorer({name}, {self.dtype}, {self.model.device})"

    @property
    def dtype(self) -> str:
        """Name of the dtype of the backbone: `"fast"`, or `"float32"` and the like."""
        return FAST if self.mixed_precision else str(self.model.dtype).removeprefix("torch.")

    # A text is a sequence of texts, too.
    @overload
    def score(  # type: ignore[overload-overlap]
        self, dialogues: DialogueLike, criterion: str = ..., **options: Unpack[ScoreOptions]
    ) -> float: ...

    @overload
    def score(
        self,
        dialogues: Sequence[DialogueLike],
        criterion: Criteria = ...,
        groups: Groups = ...,
        **options: Unpack[ScoreOptions],
    ) -> list[float]: ...

    def score(
        self, dialogues: Any, criterion: Criteria = "joint", groups: Groups = None, **options: Unpack[ScoreOptions]
    ) -> float | list[float]:
        """Return the reward of a dialogue, or of each of several in the order given; higher is better.

        Args:
            dialogues (`DialogueLike` or `list[DialogueLike]`): A dialogue or several, each in a form of
                [`read_dialogue`]: the path of a JSON file or a folder, a tuple of the user's recording and the answer,
                a list of turns or messages such as a side of a row, or a `Dialogue`.
            criterion (`str` or `list[str]`, *optional*, defaults to `"joint"`): One for all, or one for each.
            groups (`list`, *optional*): A value for each dialogue; dialogues of equal value are computed together.
            options: `calibrated`, `subsets`, `heard` and `progress`, as in `iter_scores`.

        Returns:
            `float` for a dialogue, `list[float]` for a list of dialogues.

        Raises:
            ValueError, OSError: As in `iter_scores`.

        Examples:
            >>> from sdiareward import Scorer, example_dialogues
            >>> scorer = Scorer.from_pretrained("nano", device="cpu")
            >>> human, synthetic = example_dialogues()
            >>> rewards = scorer.score([human, synthetic], criterion="modality")
            >>> rewards[0] > rewards[1]
            True
        """
        is_one = is_single(dialogues)
        several = [dialogues] if is_one else dialogues
        rewards = dict(self.iter_scores(several, criterion, groups=groups, **options))
        return rewards[0] if is_one else [rewards[index] for index in range(len(several))]

    def iter_scores(
        self,
        dialogues: Sequence[Any],
        criterion: Criteria = "joint",
        *,
        groups: Groups = None,
        skipped: MutableMapping[int, str] | None = None,
        progress: bool = False,
        calibrated: bool = False,
        subsets: str | Sequence[str] | None = None,
        heard: MutableMapping[int, Heard] | None = None,
    ) -> Iterator[tuple[int, float]]:
        """Yield `(index, reward)` as each batch is finished, longer dialogues before shorter ones.

        Args:
            dialogues (`Sequence[DialogueLike]`): Each in a form of [`read_dialogue`]; audio may stay encoded or on
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
            ValueError: The number of criteria, groups or subsets is not the number of dialogues, a dialogue cannot be
                used or its reward is not finite, or the model has no calibration for all or for a subset.
            OSError: A recording cannot be read.
        """
        if subsets is not None and not calibrated:
            raise ValueError("subsets are for calibrated rewards; give calibrated=True too, or omit them.")
        criteria = expand_criteria(criterion, len(dialogues))
        calibrate = Calibration.of(self.model.config).for_each(criteria, subsets) if calibrated else None
        options: dict[str, Any] = {"groups": groups, "skipped": skipped, "progress": progress}
        found = self.iter_features(dialogues, criteria, is_whole=True, **options)

        def iter_rewards() -> Iterator[tuple[int, float]]:
            noted: MutableMapping[int, Heard] = {} if heard is None else heard
            for index, features in found:
                if heard is not None or features.heard.cut_turns or features.heard.silent_turns:
                    noted[index] = features.heard
                if math.isfinite(features.reward):
                    yield index, calibrate(index, features.reward) if calibrate else features.reward
                else:
                    problem = f"its reward is {features.reward}; score with dtype float32, or check the checkpoint."
                    note_skipped(index, DialogueError(problem), skipped)
            named = [(f"dialogues[{index}]", each) for index, each in sorted(noted.items())]
            for notice in describe_unheard(named if heard is None else []):
                logger.warning(notice)

        return iter_rewards()

    def iter_features(
        self,
        dialogues: Sequence[Any],
        criterion: Criteria = "joint",
        *,
        per_token: bool = False,
        groups: Groups = None,
        skipped: MutableMapping[int, str] | None = None,
        progress: bool = False,
        is_whole: bool = False,
    ) -> Iterator[tuple[int, Features]]:
        """Yield `(index, Features)`, on which a head on a frozen backbone is trained, as `iter_scores` yields rewards.

        Args:
            dialogues (`Sequence[DialogueLike]`): As in `iter_scores`.
            criterion (`str` or `list[str]`, *optional*, defaults to `"joint"`): As in `iter_scores`.
            per_token (`bool`, *optional*, defaults to `False`): Add the last hidden states of each token.
            groups (`list`, *optional*): As in `iter_scores`.
            skipped (`dict[int, str]`, *optional*): As in `iter_scores`.
            progress (`bool`, *optional*, defaults to `False`): As in `iter_scores`.
            is_whole (`bool`, *optional*, defaults to `False`): Refuse what is only the beginning of a dialogue.

        Raises:
            ValueError: As `iter_scores`; or `per_token` is requested without `pack`.
        """
        criteria = expand_criteria(criterion, len(dialogues))
        if per_token and not self.pack:
            raise ValueError("hidden states of tokens are requested; they require pack=True.")
        if groups is not None and len(groups) != len(dialogues):
            raise ValueError(f"got {len(groups)} groups for {len(dialogues)} dialogues; give one for each.")
        members: dict[Hashable, list[int]] = {}
        for index, group in enumerate(range(len(dialogues)) if groups is None else groups):
            members.setdefault(group, []).append(index)

        read = partial(self._prepare.read_each, dialogues=dialogues, criteria=criteria, is_whole=is_whole)
        plan = self._plan(prefetch(read, members.values(), self.num_workers), skipped)
        # The next batches are planned in a thread, which may have to wait until dialogues are read.
        planned = takewhile(bool, prefetch(lambda _: next(plan, None), repeat(None), min(self.num_workers, 1)))
        with tqdm(
            total=len(dialogues), desc="scoring" if is_whole else "features", disable=not progress, unit="dialogue"
        ) as bar:
            for batch in prefetch(self._prepare.join, planned, self.num_workers):
                with _counting:
                    self.audio_s += sum(each.heard.heard_s for each in batch.read.values())
                with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.mixed_precision):
                    features = self._compute(batch, per_token)
                for (index, dialogue), each in zip(batch.read.items(), features, strict=True):
                    yield index, replace(each, heard=dialogue.heard)
                bar.update(len(features))
            # What was skipped.
            bar.update(len(dialogues) - bar.n)

    def _plan(
        self, groups: Iterator[Read], skipped: MutableMapping[int, str] | None
    ) -> Iterator[dict[int, ReadDialogue]]:
        """Yield the dialogues of each batch; those that are sorted by length together are held decoded."""
        window: dict[int, ReadDialogue] = {}
        members: list[list[int]] = []
        num_bytes = 0
        for read, failures in chain(groups, [({}, {})]):
            for index, error in failures.items():
                note_skipped(index, error, skipped)
            window |= read
            num_bytes += sum(clip.nbytes for each in read.values() for clip in each.clips.values())
            if read:
                members.append(list(read))
            is_end = not (read or failures)
            if window and (is_end or len(window) >= _PLANNED_AT_A_TIME or num_bytes >= _PLANNED_BYTES):
                lengths = {index: count_tokens(each.messages) for index, each in window.items()}
                for batch in plan_batches(lengths, members, self.batch_tokens, not self.pack):
                    yield {index: window.pop(index) for index in batch}
                members, num_bytes = [], 0

    @torch.inference_mode()
    def _compute(self, batch: PreparedBatch, per_token: bool) -> list[Features]:
        if not self.pack:
            return self._compute_padded(batch)
        encode, shares = partial(self._encode, batch), self.share_prefixes
        output = run_packed_batch(self.model, batch.dialogues, encode, share_prefixes=shares)
        features = list(map(Features, output.pooled.cpu().numpy(), output.rewards.squeeze(-1).tolist()))
        if not per_token:
            return features
        tokens = (output.layout.take_along(output.hidden_states, end, 0).float().cpu().numpy() for end in output.last)
        return [replace(each, hidden_states=states) for each, states in zip(features, tokens, strict=True)]

    def _compute_padded(self, batch: PreparedBatch) -> list[Features]:
        clips = self._encode(batch, [key for messages in batch.dialogues for each in messages for key in each.clips])
        rows = [np.concatenate([message.input_ids for message in messages]) for messages in batch.dialogues]
        # On the right, where the model needs no attention mask.
        inputs = self.processor.pad(rows, padding_side="right")
        inputs = {name: tensor.to(self.model.device) for name, tensor in inputs.items()}
        output = self.model(**inputs, audio_features=torch.cat(clips) if clips else None)
        return list(map(Features, output.pooled.cpu().numpy(), output.logits.squeeze(-1).tolist()))

    def _encode(self, batch: PreparedBatch, digests: list[bytes]) -> list[torch.Tensor]:
        wanted = list(dict.fromkeys(digests)) if self.share_clips else digests
        found = {digest: vectors for digest in wanted if (vectors := self._encoded.find(digest)) is not None}
        missing = [digest for digest in wanted if digest not in found]
        # A clip may have left the cache after its mel features were omitted.
        late = self._prepare.compute_mels({key: batch.clips[key] for key in missing if key not in batch.mels})
        mels = batch.mels | late
        encoded = encode_clips(self.model, [mels[digest] for digest in missing]) if missing else []
        if not self.share_clips:
            return encoded
        for digest, vectors in zip(missing, encoded, strict=True):
            found[digest] = vectors
            self._encoded.add(digest, vectors)
        return [found[digest] for digest in digests]
