"""Load what a training run starts from, and assemble a complete model from what it trained.

The one place for the ways to train: the whole model, adapters, the head through the backbone, the head on cached
features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from trl import RewardConfig

from sdiareward.checkpoint_io.adapters import add_adapters, continue_adapters, load_adapted
from sdiareward.checkpoint_io.files import list_checkpoint_tensors
from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.common.hub import find_snapshot, split_commit
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.loading_sdiareward import HEAD, to_native_key
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pairs.loading import list_ids
from sdiareward.pairs.sampling import draw_rows
from sdiareward.pairs.schema import ID_COLUMNS
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.scorer import Scorer

from .arguments import TrainArguments
from .augmentation import augment
from .batches import PairCollator
from .head import FeatureCollator, SDiaRewardHead, cache_pairs
from .options import OptionError
from .precompute import READ_AHEAD, precompute_pairs
from .prompts import apply_heard
from .sharding import loads_whole_weights
from .usable_pairs import SkippedPair


# Cached features, below the run's folder.
FEATURES = "features"
# Pairs drawn for each that the steps need: some cannot be used.
_SPARE = 1.05


@dataclass
class TrainingSetup:
    """What a trainer is made of; `splits` are rows, of which `collator` makes batches."""

    model: Any
    processor: SDiaRewardProcessor
    splits: dict[str, Any]
    collator: Any
    skipped: list[SkippedPair] = field(default_factory=list)

    @property
    def num_cut_turns(self) -> int:
        """Number of turns, of pairs that are used, that the model hears only the beginning of."""
        return sum(sum(rows["num_cut"]) for rows in self.splits.values())

    def select_used(self, pairs: Any) -> Any:
        """Return the training pairs that can be used and that the steps need, and all without an id."""
        used, ids = {None, *self.splits["train"]["pair_id"]}, list_ids(pairs, ID_COLUMNS)
        return pairs.select([row for row, pair_id in enumerate(ids) if pair_id in used])


def set_up(args: TrainArguments, base_model: str, splits: Mapping[str, Any], training: RewardConfig) -> TrainingSetup:
    """Load what `args.train` trains, and compute before training what training does not change."""
    set_up_mode = _set_up_head if args.uses_cache else _set_up_model
    return set_up_mode(args, base_model, splits, training)


def _set_up_model(
    args: TrainArguments, base_model: str, splits: Mapping[str, Any], training: RewardConfig
) -> TrainingSetup:
    """Load a complete model and read all pairs once; encode their clips where the audio tower is frozen."""
    options = _choose_model_options(args)
    model, processor = load_model(base_model, _choose_weights_dtype(args, training), **options)
    model.to(training.device)
    splits = _augment_training(splits, args, training, processor)
    splits = {**splits, "train": draw_needed(splits["train"], training)}
    folder = Path(str(training.output_dir)) / READ_AHEAD
    rows, skipped = {}, []
    for split, pairs in splits.items():
        # A single pass over the training split would only store what it then reads once.
        is_encoded = args.keeps_audio_tower and (split != "train" or training.num_train_epochs > 1)
        encoding = {"model": model.eval(), "model_revision": fingerprint_model(base_model)} if is_encoded else {}
        workers = training.dataloader_num_workers
        rows[split], bad = precompute_pairs(pairs, processor, folder, split=split, num_workers=workers, **encoding)
        skipped += bad
    collator = PairCollator(processor, splits["train"])
    return TrainingSetup(prepare_for_training(model, args), processor, rows, collator, skipped)


def _set_up_head(
    args: TrainArguments, base_model: str, splits: Mapping[str, Any], training: RewardConfig
) -> TrainingSetup:
    """Load the head alone; compute missing features with the whole model, which is released afterwards."""
    dtype = choose_backbone_dtype(training)
    options = _choose_model_options(args)
    head, processor = load_model(base_model, dtype, head_only=True, **options)
    cache = FeatureCache(
        args.from_cache or Path(str(training.output_dir)) / FEATURES,
        head.config,
        processor,
        model_revision=fingerprint_model(base_model),
        dtype=str(dtype).removeprefix("torch."),
        per_token=head.config.pooling_mode == "attention",
    )

    def load_scorer() -> Scorer:
        return Scorer(*load_model(base_model, dtype, **options), device=training.device)

    rows, skipped = cache_pairs(_augment_training(splits, args, training, processor), cache, load_scorer)
    # A head alone has no activations worth recomputing. The second name is the older one, until transformers 6.
    training.activation_checkpointing = training.gradient_checkpointing = False
    if not cache.per_token:
        # A batch of vectors is too small to distribute: threads would spend an epoch waiting for each other.
        torch.set_num_threads(1)
    return TrainingSetup(head, processor, rows, FeatureCollator(cache), skipped)


def _choose_model_options(args: TrainArguments) -> dict[str, Any]:
    """Return the options of `load_model`; adapters that are trained further bring what they were trained to hear."""
    options: dict[str, Any] = {"prompts": args.read_prompts(), "max_turn_s": args.max_turn_s}
    if args.adapter_name_or_path is not None:
        config = SDiaRewardConfig.from_pretrained(find_snapshot(args.adapter_name_or_path))
        options["prompts"] = {**(config.prompts or {}), **(options["prompts"] or {})}
        options["max_turn_s"] = args.max_turn_s or config.max_turn_s
    return {"pooling_mode": args.pooling_mode, **options}


def _augment_training(
    splits: Mapping[str, Any], args: TrainArguments, training: RewardConfig, processor: SDiaRewardProcessor
) -> Mapping[str, Any]:
    augmentation = args.make_augmentation(training.seed)
    return {**splits, "train": augment(splits["train"], augmentation, processor.max_turn_s)}


def draw_needed(pairs: Any, training: RewardConfig) -> Any:
    """Draw as many pairs as `max_steps` need, by the seed; all pairs if these are no more than needed."""
    pairs_per_step = training.per_device_train_batch_size * training.gradient_accumulation_steps * training.world_size
    num_needed = math.ceil(_SPARE * training.max_steps * pairs_per_step)
    if training.max_steps <= 0 or num_needed >= len(pairs):
        return pairs
    return pairs.select(draw_rows(len(pairs), num_needed, training.seed))


@loads_whole_weights()
def load_model(
    base_model: str,
    dtype: torch.dtype,
    *,
    pooling_mode: str = "mean",
    head_only: bool = False,
    prompts: Mapping[str, str] | None = None,
    max_turn_s: float | None = None,
) -> tuple[Any, SDiaRewardProcessor]:
    """Return the model to train, or its head alone, and its processor; `pooling_mode` is that of a new head."""
    kind: Any = SDiaRewardHead if head_only else SDiaRewardModel
    options = {} if head_only else {"dtype": dtype}
    if HEAD in map(to_native_key, list_checkpoint_tensors(base_model)):
        model = kind.from_pretrained(base_model, **options)
        # "mean" is the default, which a checkpoint may override.
        if pooling_mode not in ("mean", model.config.pooling_mode):
            raise OptionError(
                f"pooling_mode is {pooling_mode!r}, but the head of {base_model} pools by "
                f"{model.config.pooling_mode!r}; omit it, or start from a backbone without a head."
            )
    else:
        model = kind.from_backbone(base_model, pooling_mode=pooling_mode, **options)
    # Training invalidates it.
    model.config.calibration = None
    processor = _load_processor(base_model, model.config)
    apply_heard(model.config, processor, prompts, max_turn_s)
    return model, processor


def _load_processor(base_model: str, config: Any) -> SDiaRewardProcessor:
    if AutoConfig.from_pretrained(base_model).model_type == config.model_type:
        return SDiaRewardProcessor.from_pretrained(base_model)
    return SDiaRewardProcessor.from_backbone(
        base_model, prompts=config.prompts, prompt_version=config.prompt_version, max_turn_s=config.max_turn_s
    )


def prepare_for_training(model: SDiaRewardModel, args: TrainArguments) -> Any:
    if args.train == "head":
        model.freeze_backbone()
        return model
    if args.train == "lora":
        return _put_adapters(model, args)
    if args.freeze_audio_tower:
        model.freeze_audio_tower()
    if args.freeze_text_model:
        model.model.language_model.requires_grad_(False)
    return model


def _put_adapters(model: SDiaRewardModel, args: TrainArguments) -> Any:
    if args.adapter_name_or_path is not None:
        return continue_adapters(model, find_snapshot(args.adapter_name_or_path))
    # PEFT records it as their base.
    if split_commit(args.model_name_or_path)[1]:
        model.name_or_path = args.model_name_or_path
    return add_adapters(model, r=args.lora_r, alpha=args.lora_alpha, train_projection=args.train_projection)


@loads_whole_weights()
def assemble_full_model(
    trained: Path, args: TrainArguments, base_model: str, training: RewardConfig
) -> SDiaRewardModel:
    """Return the complete model with what was trained in it: adapters merged, or the head on its backbone."""
    dtype = choose_backbone_dtype(training)
    if args.uses_cache:
        model, _ = load_model(base_model, dtype, pooling_mode=args.pooling_mode)
        SDiaRewardHead.from_pretrained(trained).put_into(model)
        return model
    if args.train == "lora":
        return load_adapted(trained, base_model=base_model, dtype=dtype)
    return SDiaRewardModel.from_pretrained(trained, dtype=dtype)


def _choose_weights_dtype(args: TrainArguments, training: RewardConfig) -> torch.dtype:
    """Return float32 for weights that are trained: most updates are less than half a step of bfloat16.

    Autocast computes in bfloat16 nevertheless. DeepSpeed keeps float32 copies by itself.
    """
    has_float32_copies = training.deepspeed_plugin is not None
    return torch.float32 if args.train == "full" and not has_float32_copies else choose_backbone_dtype(training)


def choose_backbone_dtype(training: RewardConfig) -> torch.dtype:
    return torch.bfloat16 if training.bf16 else torch.float32
