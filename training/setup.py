"""Load what a training run starts from, and assemble a complete model from what it trained.

The one place for the ways to train: the whole model, adapters, the head through the backbone, the head on cached
features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel, TrainingArguments
from transformers import initialization as init
from transformers.integrations import deepspeed
from trl import RewardConfig

from sdiareward.checkpoint_io.adapters import add_adapters, continue_adapters, load_adapted
from sdiareward.checkpoint_io.files import list_checkpoint_tensors
from sdiareward.checkpoint_io.models import find_checkpoint, fingerprint_model
from sdiareward.checkpoint_io.nano import build_nano
from sdiareward.common.hub import fetch_snapshot, find_snapshot, split_commit
from sdiareward.configuration_sdiareward import SDiaRewardConfig, name_prompts
from sdiareward.loading_sdiareward import HEAD, check_shapes, list_shapes, read_thinker_config, to_native_key
from sdiareward.modeling_sdiareward import (
    Float32Linear,
    SDiaRewardModel,
    SDiaRewardOutput,
    SDiaRewardPooler,
    compute_reward,
)
from sdiareward.pairs.labels import draw_rows
from sdiareward.pairs.loading import list_ids
from sdiareward.pairs.schema import ID_COLUMNS
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.scorer import Scorer

from .arguments import OptionError, SDiaRewardModelConfig, SDiaRewardScriptArguments, choose_max_length
from .augmentation import AugmentedPairs
from .batches import FeatureCollator, PairCollator
from .precompute import READ_AHEAD, SkippedPair, cache_pairs, precompute_pairs


# Below the run's folder: cached features, and the first weights of a new model.
_FEATURES, _INITIAL_MODEL = "features", "init"
# Pairs drawn for each that the steps need: some cannot be used.
_SPARE = 1.05


class SDiaRewardHead(PreTrainedModel):
    """The pooler and the score head of `SDiaRewardModel`, under the same names."""

    config: SDiaRewardConfig
    config_class = SDiaRewardConfig
    base_model_prefix = ""
    # A head has no attention: any attention implementation of its model is accepted.
    _supports_sdpa = _supports_flash_attn = True
    _keep_in_fp32_modules_strict = ["score", "pooler"]
    # The rest of a checkpoint, in any layout.
    _keys_to_ignore_on_load_unexpected = [r"^(?!score\.|pooler\.)"]

    def __init__(self, config: SDiaRewardConfig):
        super().__init__(config)
        hidden_size = config.get_text_config().hidden_size
        self.pooler = SDiaRewardPooler(hidden_size, config.pooling_mode)
        self.score = Float32Linear(hidden_size, 1, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            init.zeros_(parameter)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the head of a checkpoint that `SDiaRewardModel.from_pretrained` takes, and nothing else of it."""
        kwargs = SDiaRewardModel.with_foreign_config(pretrained_model_name_or_path, kwargs)
        config = kwargs.get("config") or SDiaRewardConfig.from_pretrained(pretrained_model_name_or_path)
        with torch.device("meta"):
            expected = {name: tuple(tensor.shape) for name, tensor in cls(config).state_dict().items()}
        shapes = list_shapes(pretrained_model_name_or_path)
        names = [name for name in shapes if (to_native_key(name) or "").startswith(("score.", "pooler."))]
        check_shapes({name: shapes[name] for name in names}, expected, (), pretrained_model_name_or_path)
        kwargs |= {"key_mapping": {r"^score_head\.": "score."}, "use_safetensors": True}
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    @classmethod
    def from_backbone(cls, pretrained_model_name_or_path: Any, *, pooling_mode: str = "mean") -> SDiaRewardHead:
        """Make the head, at zero, that `SDiaRewardModel.from_backbone` puts on a pretrained thinker."""
        thinker = read_thinker_config(pretrained_model_name_or_path)
        return cls(SDiaRewardConfig.from_thinker(thinker, pooling_mode=pooling_mode))

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any) -> SDiaRewardOutput:
        """Compute rewards from features; a pooled vector is a sequence of one, kept by mean and last-token pooling."""
        with torch.autocast(hidden_states.device.type, enabled=False):
            pooled = self.pooler(hidden_states, attention_mask)
        return SDiaRewardOutput(logits=compute_reward(self.score, pooled, self.config.reward_scale), pooled=pooled)

    def put_into(self, model: SDiaRewardModel) -> None:
        model.pooler.load_state_dict(self.pooler.state_dict())
        model.score.load_state_dict(self.score.state_dict())


@dataclass
class TrainingSetup:
    """The parts of a trainer; `collator` makes batches from the rows of `splits`."""

    model: Any
    processor: SDiaRewardProcessor
    splits: dict[str, Any]
    collator: Any
    base_model: str
    model_args: SDiaRewardModelConfig
    skipped: list[SkippedPair] = field(default_factory=list)

    @property
    def num_cut_turns(self) -> int:
        """Number of turns, of pairs that are used, that the model hears only the beginning of."""
        return sum(sum(rows["num_cut"]) for rows in self.splits.values())

    @property
    def gives_rewards(self) -> bool:
        """Whether the model was trained before: a new score head is zero."""
        return any(bool(each.any()) for name, each in self.model.named_parameters() if "score" in name.split("."))

    def select_used(self, pairs: Any) -> Any:
        """Return the training pairs that can be used and that the steps need, and all without an id."""
        used, ids = {None, *self.splits["train"]["pair_id"]}, list_ids(pairs, ID_COLUMNS)
        return pairs.select([row for row, pair_id in enumerate(ids) if pair_id in used])


def resolve_base_model(name: str, training: TrainingArguments) -> str:
    """Return the checkpoint to start from: `"small"` is part of the package, `"nano"` is built anew."""
    if name != "nano":
        found = find_checkpoint(name)
        if not Path(found).is_dir():
            fetch_snapshot(found, ["config.json"])
        return found
    folder = Path(str(training.output_dir)) / _INITIAL_MODEL
    with training.main_process_first(local=False):
        if not training.process_index:
            build_nano(folder, seed=training.seed)
    return str(folder)


def set_up(
    args: SDiaRewardScriptArguments,
    training: RewardConfig,
    model_args: SDiaRewardModelConfig,
    base_model: str,
    splits: Mapping[str, Any],
) -> TrainingSetup:
    """Load what is trained, and compute before training what training does not change."""
    # Most updates of a trained weight are less than half a step of bfloat16; autocast computes in bfloat16
    # nevertheless. DeepSpeed keeps float32 copies by itself.
    is_float32 = model_args.mode == "full" and training.deepspeed_plugin is None
    dtype = torch.float32 if is_float32 else choose_backbone_dtype(training)
    options = _choose_model_options(model_args)
    model, processor = load_model(base_model, dtype, head_only=model_args.uses_cache, **options)
    if args.augmentations or args.hard_negatives:
        splits = {**splits, "train": AugmentedPairs(splits["train"], args, processor.max_turn_s, training.seed)}
    output, revision = Path(str(training.output_dir)), fingerprint_model(base_model)
    reading: dict[str, Any] = {"max_length": choose_max_length(training)}
    reading["num_workers"] = training.dataloader_num_workers
    if model_args.uses_cache:
        folder, is_per_token = model_args.from_cache or output / _FEATURES, model.config.pooling_mode == "attention"
        known = {"model_revision": revision, "dtype": str(dtype).removeprefix("torch."), "per_token": is_per_token}
        cache = FeatureCache(folder, model.config, processor, **known)

        def load_scorer() -> Scorer:
            return Scorer(*load_model(base_model, dtype, **options), device=training.device)

        rows, skipped = cache_pairs(splits, cache, load_scorer, **reading)
        # A head alone has no activations worth recomputing. The second name is the older one, until transformers 6.
        training.activation_checkpointing = training.gradient_checkpointing = False
        if not is_per_token:
            # A batch of vectors is too small to distribute: threads would spend an epoch waiting for each other.
            torch.set_num_threads(1)
        return TrainingSetup(model, processor, rows, FeatureCollator(cache), base_model, model_args, skipped)
    model.to(training.device)
    splits = {**splits, "train": draw_needed(splits["train"], training)}
    rows, skipped = {}, []
    for split, pairs in splits.items():
        # A single pass over the training split would only store what it then reads once.
        is_encoded = model_args.keeps_audio_tower and (split != "train" or training.num_train_epochs > 1)
        encoding = {"model": model.eval(), "model_revision": revision} if is_encoded else {}
        rows[split], bad = precompute_pairs(pairs, processor, output / READ_AHEAD, split=split, **reading, **encoding)
        skipped += bad
    trained, collator = prepare_for_training(model, model_args), PairCollator(processor, splits["train"])
    return TrainingSetup(trained, processor, rows, collator, base_model, model_args, skipped)


def _choose_model_options(model_args: SDiaRewardModelConfig) -> dict[str, Any]:
    """Return the options of `load_model`; adapters that are trained further bring what they were trained to hear."""
    prompts, max_turn_s = model_args.read_prompts(), model_args.max_turn_s
    if model_args.adapter_name_or_path is not None:
        config = SDiaRewardConfig.from_pretrained(find_snapshot(model_args.adapter_name_or_path))
        prompts, max_turn_s = {**(config.prompts or {}), **(prompts or {})}, max_turn_s or config.max_turn_s
    return {"pooling_mode": model_args.pooling_mode, "prompts": prompts, "max_turn_s": max_turn_s}


def draw_needed(pairs: Any, training: RewardConfig) -> Any:
    """Draw as many pairs as `max_steps` need, by the seed; all pairs if these are no more than needed."""
    pairs_per_step = training.per_device_train_batch_size * training.gradient_accumulation_steps * training.world_size
    num_needed = math.ceil(_SPARE * training.max_steps * pairs_per_step)
    if training.max_steps <= 0 or num_needed >= len(pairs):
        return pairs
    return pairs.select(draw_rows(len(pairs), num_needed, training.seed))


@contextmanager
def _loads_whole_weights() -> Iterator[None]:
    """Hide ZeRO-3 from `from_pretrained`; a context manager and a decorator.

    transformers shards what `from_pretrained` loads under ZeRO-3, whatever accelerate's `zero3_init_flag` is. A
    sharded model runs in DeepSpeed's engine only. Our model also encodes recordings before training, and is assembled
    and saved after it. The engine shards a whole model when training starts.
    """
    hidden = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = hidden


@_loads_whole_weights()
def load_model(
    base_model: str,
    dtype: torch.dtype,
    *,
    pooling_mode: str = "mean",
    head_only: bool = False,
    prompts: Mapping[str, str] | None = None,
    max_turn_s: float | None = None,
) -> tuple[Any, SDiaRewardProcessor]:
    """Return the model to train, or its head alone, and its processor; a new head pools by `pooling_mode`."""
    kind: Any = SDiaRewardHead if head_only else SDiaRewardModel
    options = {} if head_only else {"dtype": dtype}
    if HEAD in map(to_native_key, list_checkpoint_tensors(base_model)):
        model = kind.from_pretrained(base_model, **options)
        # "mean" is the default, which a checkpoint may override.
        if pooling_mode not in ("mean", model.config.pooling_mode):
            found = f"pooling_mode is {pooling_mode!r}, but the head of {base_model} pools by"
            raise OptionError(f"{found} {model.config.pooling_mode!r}; omit it, or start from a backbone.")
    else:
        model = kind.from_backbone(base_model, pooling_mode=pooling_mode, **options)
    config = model.config
    # Training invalidates it.
    config.calibration = None
    if AutoConfig.from_pretrained(base_model).model_type == config.model_type:
        processor = SDiaRewardProcessor.from_pretrained(base_model)
    else:
        known = {name: getattr(config, name) for name in ("prompts", "prompt_version", "max_turn_s")}
        processor = SDiaRewardProcessor.from_backbone(base_model, **known)
    # Criteria without a new prompt keep theirs.
    merged = {**processor.prompts, **(prompts or {})}
    if merged != processor.prompts:
        processor.prompts, processor.prompt_version = merged, name_prompts(merged)
    processor.max_turn_s = max_turn_s or processor.max_turn_s
    copy_heard(config, processor)
    return model, processor


def copy_heard(config: Any, processor: SDiaRewardProcessor) -> None:
    """Copy to a configuration what the model is trained to hear: the prompts, and the seconds of each turn."""
    config.prompts, config.prompt_version = dict(processor.prompts), processor.prompt_version
    config.max_turn_s = processor.max_turn_s


def prepare_for_training(model: SDiaRewardModel, model_args: SDiaRewardModelConfig) -> Any:
    """Freeze what is not trained, or add adapters."""
    if model_args.mode == "head":
        model.freeze_backbone()
    elif model_args.adapter_name_or_path is not None:
        return continue_adapters(model, find_snapshot(model_args.adapter_name_or_path))
    elif model_args.mode == "lora":
        # PEFT records it as their base.
        if split_commit(str(model_args.model_name_or_path))[1]:
            model.name_or_path = model_args.model_name_or_path
        sizes = {"r": model_args.lora_r, "alpha": model_args.lora_alpha}
        return add_adapters(model, **sizes, train_projection=model_args.train_projection)
    elif model_args.freeze_audio_tower:
        model.freeze_audio_tower()
    if model_args.freeze_text_model:
        model.model.language_model.requires_grad_(False)
    return model


@_loads_whole_weights()
def assemble_full_model(trained: Path, setup: TrainingSetup, training: RewardConfig) -> SDiaRewardModel:
    """Return the complete model with what was trained in it: adapters merged, or the head on its backbone."""
    dtype, model_args = choose_backbone_dtype(training), setup.model_args
    if model_args.uses_cache:
        model, _ = load_model(setup.base_model, dtype, pooling_mode=model_args.pooling_mode)
        SDiaRewardHead.from_pretrained(trained).put_into(model)
        return model
    if model_args.mode == "lora":
        return load_adapted(trained, base_model=setup.base_model, dtype=dtype)
    return SDiaRewardModel.from_pretrained(trained, dtype=dtype)


def choose_backbone_dtype(training: RewardConfig) -> torch.dtype:
    return torch.bfloat16 if training.bf16 else torch.float32
