"""Load what a training run starts from, and make a complete model of what it ends with.

One place for the ways to train: the whole model, adapters, the head through the backbone, the head on cached features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig
from trl import RewardConfig

from sdiareward.checkpoint_io.adapters import add_adapters, load_adapted
from sdiareward.checkpoint_io.fingerprint import fingerprint_model
from sdiareward.layouts_sdiareward import HEAD, list_tensors, to_native_key
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.scorer import Scorer

from .augmentation import augment
from .batches import PairCollator
from .head import FeatureCollator, SDiaRewardHead, cache_pairs
from .precompute import precompute_pairs


if TYPE_CHECKING:
    from .arguments import TrainArguments

# Below the run's folder: cached features and adapters stay when the run is finished.
READ_AHEAD, FEATURES, ADAPTER, TRAINED = "read_ahead", "features", "adapter", "trained"


@dataclass
class TrainingSetup:
    """Hold what a trainer is made of.

    Args:
        model (`PreTrainedModel`): What is trained.
        processor ([`SDiaRewardProcessor`]): Its processor.
        splits (`dict[str, datasets.Dataset]`): Rows by the name of the split.
        collator (`Callable`): Makes batches of them.
        skipped (`list[dict]`): Pairs that are not in the splits, with the reason.
    """

    model: Any
    processor: SDiaRewardProcessor
    splits: dict[str, Any]
    collator: Any
    skipped: list[dict[str, Any]] = field(default_factory=list)


def set_up(args: TrainArguments, training: RewardConfig, splits: dict[str, Any]) -> TrainingSetup:
    """Load the model and compute ahead of training what training does not change.

    Args:
        args ([`TrainArguments`]): What to train, and how.
        training (`trl.RewardConfig`): Decides dtype and device.
        splits (`dict[str, datasets.Dataset]`): Pairs as `loading.load_pairs` gives them.
    """
    if args.uses_cache:
        return _set_up_cached(args, training, splits)
    model, processor = load_model(args, training)
    model.to(training.device)
    splits = _augment(splits, args, training, processor)
    folder = Path(str(training.output_dir)) / READ_AHEAD
    rows, skipped = {}, []
    for split, pairs in splits.items():
        # A single pass over the training split would only store what it then reads once.
        is_encoded = args.keeps_audio_tower and (split != "train" or training.num_train_epochs > 1)
        encoding = (
            {"model": model.eval(), "model_revision": fingerprint_model(args.model_name_or_path)} if is_encoded else {}
        )
        rows[split], bad = precompute_pairs(pairs, processor, folder, split=split, **encoding)
        skipped += bad
    collator = PairCollator(processor, splits["train"])
    return TrainingSetup(prepare_for_training(model, args), processor, rows, collator, skipped)


def _set_up_cached(args: TrainArguments, training: RewardConfig, splits: dict[str, Any]) -> TrainingSetup:
    """Load the head alone; compute with the whole model, then let go of it, what the cache lacks."""
    head, processor = load_model(args, training, head_only=True)
    cache = FeatureCache(
        args.from_cache or Path(str(training.output_dir)) / FEATURES,
        head.config,
        processor,
        model_revision=fingerprint_model(args.model_name_or_path),
        dtype=str(_dtype(training)).removeprefix("torch."),
        per_token=head.config.pooling_mode == "attention",
    )
    splits = _augment(splits, args, training, processor)
    rows, skipped = cache_pairs(splits, cache, lambda: Scorer(*load_model(args, training), device=training.device))
    # A head alone has no activations worth computing twice. The second name is the older one, until transformers 6.
    training.activation_checkpointing = training.gradient_checkpointing = False
    if not cache.per_token:
        # A batch of vectors is too little to share out: threads would spend an epoch waiting for each other.
        torch.set_num_threads(1)
    return TrainingSetup(head, processor, rows, FeatureCollator(cache), skipped)


def _augment(
    splits: dict[str, Any], args: TrainArguments, training: RewardConfig, processor: SDiaRewardProcessor
) -> dict[str, Any]:
    """Add to the training pairs, and to no others."""
    settings = args.augmentation(training.seed)
    return {**splits, "train": augment(splits["train"], settings, processor.max_turn_s)}


def load_model(
    args: TrainArguments, training: RewardConfig, *, head_only: bool = False
) -> tuple[Any, SDiaRewardProcessor]:
    """Return the model to train, or its head alone, and its processor.

    Args:
        args ([`TrainArguments`]): Names the checkpoint.
        training (`trl.RewardConfig`): Decides the dtype of the backbone.
        head_only (`bool`, *optional*, defaults to `False`): Leave the backbone on disk.
    """
    name = args.model_name_or_path
    kind: Any = SDiaRewardHead if head_only else SDiaRewardModel
    options = {} if head_only else {"dtype": _dtype(training)}
    if HEAD in map(to_native_key, list_tensors(name)):
        model = kind.from_pretrained(name, **options)
    else:
        model = kind.from_backbone(name, pooling_mode=args.pooling_mode, **options)
    # It belongs to the weights as they were.
    model.config.calibration = None
    if AutoConfig.from_pretrained(name).model_type == model.config.model_type:
        return model, SDiaRewardProcessor.from_pretrained(name)
    config = model.config
    return model, SDiaRewardProcessor.from_backbone(
        name, prompts=config.prompts, prompt_version=config.prompt_version, max_turn_s=config.max_turn_s
    )


def prepare_for_training(model: SDiaRewardModel, args: TrainArguments) -> Any:
    """Freeze what `args.train` leaves alone and add adapters where it asks for them."""
    if args.train == "head":
        model.freeze_backbone()
        return model
    if args.train == "lora":
        return add_adapters(model, r=args.lora_r, alpha=args.lora_alpha)
    if args.freeze_audio_tower:
        model.freeze_audio_tower()
    if args.freeze_text_model:
        model.model.language_model.requires_grad_(False)
    return model


def complete_model(folder: Path, args: TrainArguments, training: RewardConfig) -> SDiaRewardModel:
    """Return the complete model with what was trained in it: adapters merged, a head put on its backbone.

    Args:
        folder (`Path`): What the trainer saved.
        args ([`TrainArguments`]): Of the run.
        training (`trl.RewardConfig`): Of the run.
    """
    if args.uses_cache:
        model, _ = load_model(args, training)
        SDiaRewardHead.from_pretrained(folder).put_into(model)
        return model
    if args.train == "lora":
        return load_adapted(folder, base_model=args.model_name_or_path, dtype=_dtype(training))
    return SDiaRewardModel.from_pretrained(folder, dtype=_dtype(training))


def _dtype(training: RewardConfig) -> torch.dtype:
    return torch.bfloat16 if training.bf16 else torch.float32
