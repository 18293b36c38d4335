"""Load what a training run starts from, and make a complete model of what it ends with.

One place for the ways to train: the whole model, adapters, the head through the backbone, the head on cached features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig
from trl import RewardConfig

from .feature_cache import FeatureCache
from .head_training import FeatureCollator, SDiaRewardHead, cache_pairs
from .layouts_sdiareward import HEAD, list_tensors, own_name
from .modeling_sdiareward import SDiaRewardModel
from .processing_sdiareward import SDiaRewardProcessor
from .records import fingerprint_model
from .scoring import Scorer
from .trainer import PairCollator, encode_pairs


if TYPE_CHECKING:
    from .train import TrainArguments

# The text model only: the names of its projections occur in the audio tower too.
_LORA_TARGETS = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"


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
        splits (`dict[str, datasets.Dataset]`): Pairs as `pairs.load_pairs` gives them.
    """
    if args.from_cache is not None:
        return _set_up_cached(args, training, splits)
    model, processor = load_model(args, training)
    if args.train == "full" and args.freeze_audio_tower:
        splits = {name: encode_pairs(pairs, model, processor) for name, pairs in splits.items()}
    return TrainingSetup(prepare_for_training(model, args), processor, splits, PairCollator(processor))


def _set_up_cached(args: TrainArguments, training: RewardConfig, splits: dict[str, Any]) -> TrainingSetup:
    """Load the head alone; compute with the whole model, then let go of it, what the cache lacks."""
    head, processor = load_model(args, training, head_only=True)
    cache = FeatureCache(
        str(args.from_cache),
        head.config,
        processor,
        model_revision=fingerprint_model(args.model_name_or_path),
        dtype=str(_dtype(training)).removeprefix("torch."),
        per_token=head.config.pooling_mode == "attention",
    )
    rows, skipped = cache_pairs(splits, cache, lambda: Scorer(*load_model(args, training), device=training.device))
    # A head alone has no activations worth computing twice. The second name is the older one, until transformers 6.
    training.activation_checkpointing = training.gradient_checkpointing = False
    if not cache.per_token:
        # A batch of vectors is too little to share out: threads would spend an epoch waiting for each other.
        torch.set_num_threads(1)
    return TrainingSetup(head, processor, rows, FeatureCollator(cache), skipped)


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
    options = {} if head_only else {"dtype": _dtype(training), "attn_implementation": args.attn_implementation}
    if HEAD in map(own_name, list_tensors(name)):
        model = kind.from_pretrained(name, **options)
    else:
        model = kind.from_backbone(name, pooling_mode=args.pooling_mode, **options)
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
        from peft import LoraConfig, get_peft_model

        saved = ["score", "pooler"] if model.config.pooling_mode == "attention" else ["score"]
        lora = LoraConfig(
            r=args.lora_r, lora_alpha=args.lora_alpha, target_modules=_LORA_TARGETS, modules_to_save=saved
        )
        return get_peft_model(model, lora)
    if args.freeze_audio_tower:
        model.freeze_audio_tower()
    return model


def complete_model(trained: Any, args: TrainArguments, training: RewardConfig) -> SDiaRewardModel:
    """Return the complete model with what was trained in it: adapters merged, a head put on its backbone."""
    if args.from_cache is not None:
        model, _ = load_model(args, training)
        trained.put_into(model)
        return model
    return trained.merge_and_unload() if args.train == "lora" else trained


def _dtype(training: RewardConfig) -> torch.dtype:
    return torch.bfloat16 if training.bf16 else torch.float32
