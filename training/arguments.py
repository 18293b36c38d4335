"""The options of `sdiareward train`: the options of TRL's reward script, and what spoken pairs add to them.

An option that would change nothing is refused before anything is loaded.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from transformers import Trainer
from transformers.integrations import get_reporting_integration_callbacks
from transformers.utils import is_torch_bf16_gpu_available
from trl import ModelConfig, RewardConfig, ScriptArguments

from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.common.commands import PAIR_HELP, parse_trl
from sdiareward.common.errors import UserError
from sdiareward.common.hub import resolve_revision
from sdiareward.common.package import NANO
from sdiareward.configuration_sdiareward import name_prompts, validate_max_turn_s
from sdiareward.pairs.prompts import read_prompts

from .augmentation import AugmentationSettings, make_option


# Options of TRL without an effect here: pairs are packed by `batch_tokens`, the tokenizer is saved as it is, the model
# is loaded in the dtype that fits its training, and only the finished folder is pushed, with the token of the login.
_UNUSED = re.compile(
    "average_tokens_across_devices|auto_find_batch_size|chat_template_path|dataset_num_proc|do_predict|eos_token"
    "|hub_token|ignore_data_skip|include_num_input_tokens_seen|label_names|length_column_name|liger_kernel_config"
    "|model_init_kwargs|pad_to_multiple_of|pad_token|push_to_hub|train_sampling_strategy|trust_remote_code"
    "|use_liger_kernel"
    "|dataset_streaming|ignore_bias_buffers"
    "|attn_implementation|bnb_.*|dtype|load_in_.*|lora_(?!r|alpha|task_type).*|use_bnb_.*|use_dora|use_rslora"
)
# Options in the help; all others work, too.
_SHOWN = (
    *("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "audio_root", "criterion"),
    *("validation_share", "max_eval_samples", "folds", "augmentations"),
    *("model_name_or_path", "freeze_backbone", "use_peft", "lora_r", "pooling_mode"),
    *("output_dir", "learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size"),
    *("bf16", "use_cpu", "seed", "resume", "push_to_hub"),
)
# What is trained -> the option that chooses it, and the options that have an effect with it only.
_CHOSEN_BY = {"head": "freeze_backbone", "lora": "use_peft", "full": "neither use_peft nor freeze_backbone"}
_MODE_OF = {
    "through_backbone": "head",
    "from_cache": "head",
    "lora_r": "lora",
    "lora_alpha": "lora",
    "adapter_name_or_path": "lora",
    "train_projection": "lora",
    "freeze_audio_tower": "full",
    "freeze_text_model": "full",
}
# By what is trained: learning rate, least steps and least epochs. A head on cached features is cheap to train.
# On 18 pairs it learns in 300 steps of 8; in 9 steps at 1e-4 its margins do not change.
_SCHEDULES = {"head": (1e-3, 300, 3), "lora": (2e-4, 200, 1), "full": (1e-4, 100, 1)}


class OptionError(UserError, ValueError):
    """Raised for an option of training that is refused."""


@dataclass
class SDiaRewardScriptArguments(AugmentationSettings, ScriptArguments):
    """Pairs to train on, and how a run begins and ends; the help of each field describes it."""

    dataset_test_split: str = make_option("validation", "Split to validate on, by which the checkpoint is selected.")
    dataset_revision: str | None = make_option(None, "Branch, tag or commit of the data set on the Hub.")
    more_datasets: list[str] = make_option(list, "Further data sets; their pairs are added split by split.")
    more_revisions: list[str] | None = make_option(None, "Revision of each of these on the Hub.")
    audio_root: str | None = make_option(None, "Folder of recordings that are not found beside the table.")
    criterion: str | None = make_option(
        None, "Criterion of all pairs, such as modality, colloquialness or joint; by default the column criterion."
    )
    validation_share: float = make_option(0.1, "Share of a file's pairs to validate on, in complete groups.")
    max_eval_samples: int | None = make_option(None, "Validate on a draw of at most this many pairs.")
    batch_tokens: int | None = make_option(
        None, "Tokens in one forward pass, a micro-batch; by default 16384 on an accelerator, 4096 on a CPU."
    )
    early_stopping_patience: int | None = make_option(None, "Evaluations without a lower loss after which to stop.")
    resume: bool = make_option(False, "Resume from the newest checkpoint in output_dir.")
    save_compact: bool = make_option(False, "Store the backbone of the final checkpoint in float16.")
    # TRL's option of that name, under which the library would push every checkpoint; here the finished folder is.
    push_to_hub: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        # A key of YAML may have one value in place of a list.
        for name in ("augmentations", "hard_negatives", "more_datasets"):
            if isinstance(value := getattr(self, name), str):
                setattr(self, name, [value])
        super().__post_init__()
        _refuse_unused(self)
        if not 0 < self.validation_share < 1:
            raise OptionError(f"validation_share is {self.validation_share:g}; it must be between 0 and 1.")
        for name in ("max_eval_samples", "early_stopping_patience", "batch_tokens"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise OptionError(f"{name} is {number}; it must be at least 1, or omitted.")


@dataclass
class SDiaRewardModelConfig(ModelConfig):
    """The model to begin from, and what of it is trained: all, with `use_peft` adapters, or the head alone."""

    model_name_or_path: str = make_option(
        NANO.name,
        "nano, small, or a checkpoint or Qwen2.5-Omni backbone (Hub id or folder); new-nano for an untrained nano.",
    )
    freeze_backbone: bool = make_option(False, "Train the head alone: score, and attention pooler if there is one.")
    folds: int | None = make_option(
        None, "Cross-validate the head on this number of folds of groups, then train it on all pairs."
    )
    through_backbone: bool = make_option(False, "Train a head without cached features: run the backbone in each step.")
    from_cache: str | None = make_option(None, "Folder of a head's cached features; by default output_dir/features.")
    freeze_audio_tower: bool = make_option(True, "Freeze the audio tower up to its projection, if all is trained.")
    freeze_text_model: bool = make_option(False, "Freeze the text model, if all is trained.")
    adapter_name_or_path: str | None = make_option(None, "Adapters to train further: the folder adapter of a run.")
    adapter_revision: str | None = make_option(None, "Branch, tag or commit of these adapters on the Hub.")
    train_projection: bool = make_option(False, "Train the audio tower's projection beside adapters.")
    pooling_mode: str = make_option("mean", "Pooling of a new head.", choices=["mean", "attention", "last_token"])
    prompt_file: str | None = make_option(
        None, "System prompts to train with: YAML (reward_* of configs/prompts.yaml), JSON by criterion, or one text."
    )
    max_turn_s: float | None = make_option(None, "Seconds of each turn to hear; by default the start model's.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_unused(self)
        if self.max_turn_s is not None:
            validate_max_turn_s(self.max_turn_s)
        if self.folds is not None:
            if self.folds < 2:
                raise OptionError(f"folds is {self.folds}; it must be at least 2, or omitted.")
            if other := [name for name in ("use_peft", "through_backbone") if getattr(self, name)]:
                what = f"{other[0]} and folds are both given; folds train heads on cached features"
                raise OptionError(f"{what}: omit one.")
            self.freeze_backbone = True
        if self.use_peft and self.freeze_backbone:
            raise OptionError("use_peft and freeze_backbone are both given; adapters are in the backbone: omit one.")
        for name in _list_changed(self):
            if (mode := _MODE_OF.get(name, self.mode)) != self.mode:
                given = f"{name} is {getattr(self, name)!r} and would have no effect"
                raise OptionError(f"{given}; it is for training with {_CHOSEN_BY[mode]}: use that, or omit it.")
        if self.from_cache and self.through_backbone:
            raise OptionError("from_cache has no effect with through_backbone; omit one of them.")

    @property
    def mode(self) -> str:
        """What is trained: `"head"`, `"lora"` or `"full"`."""
        return "head" if self.freeze_backbone else "lora" if self.use_peft else "full"

    @property
    def uses_cache(self) -> bool:
        return self.freeze_backbone and not self.through_backbone

    @property
    def keeps_audio_tower(self) -> bool:
        """Whether the audio tower stays frozen up to its projection."""
        return self.mode != "full" or self.freeze_audio_tower

    def read_prompts(self) -> dict[str, str] | None:
        return None if self.prompt_file is None else read_prompts(self.prompt_file)


@dataclass
class RewardTrainingConfig(RewardConfig):
    """`trl.RewardConfig` whose precision fits the machine and whose schedule fits what is trained, on how many pairs.

    Without a GPU for bfloat16, training runs in float32. `choose_schedule` sets what is not given.
    """

    learning_rate: float | None = make_option(None, "Largest rate; by default by what is trained.")  # type: ignore
    num_train_epochs: float | None = make_option(None, "Passes; by default by the number of pairs.")  # type: ignore
    max_length: int | None = make_option(None, "Skip pairs with a side of more tokens; by default none.")

    def __post_init__(self) -> None:
        if self.activation_checkpointing is None:
            # TRL sets the older name, and the library warns about it.
            self.activation_checkpointing = self.gradient_checkpointing
        is_chosen = self.bf16 is None and not self.fp16
        if is_chosen:
            self.bf16 = not self.use_cpu and is_torch_bf16_gpu_available()
        self.chose_float32 = is_chosen and not self.bf16
        try:
            super().__post_init__()
        except ValueError as error:
            if "bf16/gpu" not in str(error):
                raise
            found = "bf16 is True, but this machine has no GPU that computes in bfloat16"
            raise OptionError(f"{found}; add --bf16 False.") from error
        # Memory is pinned for an accelerator; without one, torch warns.
        self.dataloader_pin_memory = self.dataloader_pin_memory and self.device.type != "cpu"


def parse_arguments(
    argv: Sequence[str] | None,
) -> tuple[SDiaRewardScriptArguments, RewardTrainingConfig, SDiaRewardModelConfig]:
    """Parse flags and the YAML file of `--config`, which they override; an unknown one is refused with the nearest."""
    kinds: Any = (SDiaRewardScriptArguments, RewardTrainingConfig, SDiaRewardModelConfig)
    args, training, model_args = parse_trl(
        kinds,
        argv,
        prog="sdiareward train",
        shown=_SHOWN,
        usage="%(prog)s --dataset DATASET --output_dir OUTPUT_DIR [options]",
        description="Train a reward model on preference pairs; docs/train.md is the guide.\n\nEvery option of "
        "trl.RewardConfig and of docs/train.md is a flag, and a key of the YAML file of --config FILE; flags\n"
        "override the file. --recipe wavreward_sft and --recipe wavreward_grpo train WavReward (docs/wavreward.md).",
        epilog=PAIR_HELP,
        formatter_class=_HelpFormatter,
    )
    if not args.dataset_name:
        raise OptionError("--dataset is missing; give a folder, a file or a Hub id of pairs.")
    _resolve_revisions(args, model_args)
    args.push_to_hub, training.push_to_hub = training.push_to_hub, False
    require_supported(training)
    if model_args.folds:
        _require_no_validation(args, training)
    if args.early_stopping_patience is not None:
        if training.eval_strategy == "no":
            raise OptionError("early_stopping_patience needs evaluations; set eval_strategy to 'steps' or 'epoch'.")
        # A resumed run counts on where it stopped.
        training.restore_callback_states_from_checkpoint = True
        if training.metric_for_best_model is None:
            training.metric_for_best_model, training.greater_is_better = "loss", False
    require_libraries(training)
    return args, training, model_args


def _require_no_validation(args: SDiaRewardScriptArguments, training: RewardConfig) -> None:
    """Raise for what does not go with folds, which train on all pairs and select nothing."""
    names = ("max_eval_samples", "early_stopping_patience", "augmentations", "hard_negatives")
    given = [name for name in names if getattr(args, name)]
    given += ["eval_strategy"] * (training.eval_strategy != "no")
    given += ["load_best_model_at_end"] * training.load_best_model_at_end
    if given:
        what = f"{', '.join(given)} cannot be given with folds"
        raise OptionError(f"{what}: all pairs are trained on as they are; omit it.")
    if training.world_size > 1:
        raise OptionError(f"folds is given to {training.world_size} processes; start one: heads train in seconds.")


def describe_arguments(args: SDiaRewardScriptArguments, model_args: SDiaRewardModelConfig) -> dict[str, Any]:
    """Return the arguments for the record of a run, which names its data set as an evaluation does."""
    given = {"train": model_args.mode, "dataset": args.dataset_name, **asdict(args), **asdict(model_args)}
    return {name: value for name, value in given.items() if not _UNUSED.fullmatch(name) and name != "dataset_name"}


def describe_settings(
    args: SDiaRewardScriptArguments, training: RewardConfig, model_args: SDiaRewardModelConfig, base_model: str
) -> dict[str, Any]:
    """Return all settings of a run; of a model and of prompts the content, not the name."""
    settings = describe_arguments(args, model_args) | training.to_dict()
    # What a step holds is their product.
    steps = ("per_device_train_batch_size", "gradient_accumulation_steps")
    settings[" x ".join(steps)] = settings.pop(steps[0]) * settings.pop(steps[1])
    settings["model_name_or_path"] = f"files {fingerprint_model(base_model)[:12]}"
    settings["prompt_file"] = (prompts := model_args.read_prompts()) and name_prompts(prompts)
    return settings


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Show defaults, and the row of the epilog as it is."""


def _resolve_revisions(args: SDiaRewardScriptArguments, model_args: SDiaRewardModelConfig) -> None:
    """Replace the names that have a revision by the names at its commit."""
    if args.dataset_revision:
        args.dataset_name = resolve_revision(str(args.dataset_name), args.dataset_revision, "dataset")
    if args.more_revisions:
        if len(args.more_revisions) != len(args.more_datasets):
            raise OptionError("more_revisions and more_datasets differ in number; give one revision for each.")
        named = zip(args.more_datasets, args.more_revisions, strict=True)
        args.more_datasets = [resolve_revision(*each, "dataset") for each in named]
    if model_args.model_revision != "main":
        model_args.model_name_or_path = resolve_revision(model_args.model_name_or_path, model_args.model_revision)
    if model_args.adapter_revision:
        adapters = str(model_args.adapter_name_or_path)
        model_args.adapter_name_or_path = resolve_revision(adapters, model_args.adapter_revision)


def _list_changed(arguments: Any) -> list[str]:
    """Return the names of what is given and is not the default."""
    values = {item.name: (getattr(arguments, item.name), item.default) for item in fields(arguments)}
    return [name for name, (value, default) in values.items() if value not in (default, None, [], {})]


def _refuse_unused(arguments: Any) -> None:
    changed = [name for name in _list_changed(arguments) if _UNUSED.fullmatch(name)]
    if given := [name for name in changed if getattr(arguments, name) is not False]:
        raise OptionError(f"{', '.join(given)}: training here does not use it; omit it.")


def require_supported(args: RewardConfig) -> None:
    """Raise for an option that has no effect or would fail late."""
    _refuse_unused(args)
    config: Any = args.accelerator_config
    smoothing, accumulated = args.label_smoothing_factor, args.gradient_accumulation_steps
    if not 0 <= smoothing < 0.5:
        raise OptionError(f"label_smoothing_factor is {smoothing:g}; it must be at least 0 and below 0.5.")
    if args.do_eval and args.eval_strategy == "no":
        raise OptionError("do_eval is True but eval_strategy is 'no'; set eval_strategy to 'steps' or 'epoch'.")
    if accumulated < 1 or (accumulated > 1 and args.deepspeed_plugin is not None):
        required = "at least 1, and 1 under DeepSpeed, where per_device_train_batch_size has all pairs of a step"
        raise OptionError(f"gradient_accumulation_steps is {accumulated}; it must be {required}.")
    if config.split_batches or config.dispatch_batches:
        raise OptionError("accelerator_config has split_batches or dispatch_batches; each process reads its pairs.")
    if args.fsdp and args.world_size == 1:
        raise OptionError("fsdp is given to one process; start several with accelerate launch or torchrun.")


def require_libraries(args: RewardConfig) -> None:
    """Check that the libraries of the optimizer and the trackers are installed; the trainer checks it late."""
    try:
        for tracker in get_reporting_integration_callbacks(args.report_to):
            tracker()
    except (ImportError, RuntimeError, ValueError) as error:
        raise OptionError(f"report_to is {args.report_to}: {error}") from error
    try:
        # A few optimizers are looked up with the model, which is not loaded yet: the trainer checks them.
        with suppress(ValueError):
            Trainer.get_optimizer_cls_and_kwargs(args)
    except ImportError as error:
        raise OptionError(f"optim is {str(args.optim)!r}: {error}") from error


def choose_max_length(args: RewardConfig) -> int | None:
    """Return the tokens that a side may have; TRL's own default is for written texts."""
    is_given = isinstance(args, RewardTrainingConfig) or args.max_length != RewardConfig.max_length
    return args.max_length if is_given else None


def choose_schedule(args: RewardConfig, mode: str, num_pairs: int) -> list[str]:
    """Set the learning rate and the epochs that are not given; return what was chosen, and the precision."""
    rate, least_steps, least_epochs = _SCHEDULES[mode]
    pairs_per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    steps_per_epoch = math.ceil(num_pairs / pairs_per_step)
    chosen: list[str] = []
    if args.learning_rate is None:
        args.learning_rate = rate
        chosen.append(f"learning_rate {rate:g}")
    if args.num_train_epochs is None:
        args.num_train_epochs = max(least_epochs, math.ceil(least_steps / steps_per_epoch))
        if args.max_steps <= 0:
            steps = args.num_train_epochs * steps_per_epoch
            chosen.append(f"num_train_epochs {args.num_train_epochs} ({steps} steps of {pairs_per_step} pairs)")
    notices = [f"train {mode} on {num_pairs} pairs: {', '.join(chosen)}"] if chosen else []
    if getattr(args, "chose_float32", False):
        notices.insert(0, f"no GPU for bfloat16 is used: training in float32 on {args.device} (bf16 False)")
    return notices
