"""Check the options of `trl.RewardConfig`: what training here does not use is refused, not silently ignored."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, fields
from typing import Any

from transformers import Trainer
from transformers.integrations import get_reporting_integration_callbacks
from transformers.utils import is_torch_bf16_gpu_available
from trl import RewardConfig

from sdiareward.common.user_errors import UserError


# What training here does not use: pairs are packed by `batch_tokens`, the tokenizer is saved as it is, the model is
# loaded by other options, and a finished folder is published by `sdiareward push`.
_UNUSED = [
    "average_tokens_across_devices",
    "auto_find_batch_size",
    "chat_template_path",
    "dataset_num_proc",
    "do_predict",
    "eos_token",
    "hub_token",
    "ignore_data_skip",
    "include_num_input_tokens_seen",
    "label_names",
    "length_column_name",
    "liger_kernel_config",
    "max_length",
    "model_init_kwargs",
    "pad_to_multiple_of",
    "pad_token",
    "push_to_hub",
    "train_sampling_strategy",
    "trust_remote_code",
    "use_liger_kernel",
]


class OptionError(UserError, ValueError):
    """Raised for an option of training that is refused."""


# By what is trained: learning rate, least steps and least epochs. A head on cached features is cheap to train.
# On 18 pairs it learns in 300 steps of 8; in 9 steps at 1e-4 its margins do not change.
_SCHEDULES = {"head": (1e-3, 300, 3), "lora": (2e-4, 200, 1), "full": (1e-4, 100, 1)}


@dataclass
class RewardTrainingConfig(RewardConfig):
    """`trl.RewardConfig` whose precision fits the machine and whose schedule fits what is trained, on how many pairs.

    Without a GPU for bfloat16, training is in float32. `choose_schedule` sets what is not given.
    """

    learning_rate: float | None = None  # type: ignore[assignment]
    num_train_epochs: float | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.activation_checkpointing is None:
            # TRL sets the older name, of which the library warns.
            self.activation_checkpointing = self.gradient_checkpointing
        self.chose_bf16 = self.bf16 is None and not self.fp16
        if self.chose_bf16:
            self.bf16 = not self.use_cpu and is_torch_bf16_gpu_available()
        try:
            super().__post_init__()
        except ValueError as error:
            if "bf16/gpu" not in str(error):
                raise
            raise OptionError(
                "bf16 is True, but this machine has no GPU that computes in bfloat16; add --bf16 False to train in "
                "float32, or run where there is one."
            ) from error
        # Memory is pinned for an accelerator; without one, torch warns.
        self.dataloader_pin_memory = self.dataloader_pin_memory and self.device.type != "cpu"


def describe_choices(args: RewardConfig) -> list[str]:
    """Return what was chosen for this machine, if it differs from TRL's default."""
    if not getattr(args, "chose_bf16", False) or args.bf16:
        return []
    return [f"no GPU for bfloat16 is used: training in float32 on {args.device} (bf16 False)"]


def choose_schedule(args: RewardConfig, mode: str, num_pairs: int) -> str | None:
    """Set the learning rate and the epochs that are not given, and return what was chosen."""
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
    return f"train {mode} on {num_pairs} pairs: {', '.join(chosen)}" if chosen else None


def require_supported(args: RewardConfig) -> None:
    defaults = {item.name: item.default for item in fields(RewardConfig)}
    values = {name: getattr(args, name) for name in _UNUSED}
    if given := [name for name, value in values.items() if value not in (defaults[name], None, False, {})]:
        raise OptionError(f"{', '.join(given)}: training here does not use it; omit it.")
    if not 0 <= args.label_smoothing_factor < 0.5:
        raise OptionError(
            f"label_smoothing_factor is {args.label_smoothing_factor:g}; it must be at least 0 and below 0.5: from "
            "there on labels carry no information."
        )
    if args.do_eval and args.eval_strategy == "no":
        raise OptionError("do_eval is True but eval_strategy is 'no'; set eval_strategy to 'steps' or 'epoch'.")
    if args.gradient_accumulation_steps < 1:
        raise OptionError(f"gradient_accumulation_steps is {args.gradient_accumulation_steps}; it must be at least 1.")
    if args.gradient_accumulation_steps > 1 and args.deepspeed_plugin is not None:
        raise OptionError(
            f"gradient_accumulation_steps is {args.gradient_accumulation_steps} under DeepSpeed, whose configuration "
            "is made already; give all pairs of a process and step as per_device_train_batch_size."
        )
    config: Any = args.accelerator_config
    if config.split_batches or config.dispatch_batches:
        raise OptionError(
            "accelerator_config has split_batches or dispatch_batches; each process reads its own pairs."
        )
    if args.fsdp and args.world_size == 1:
        raise OptionError("fsdp is given to one process; start several with accelerate launch or torchrun.")


def prepare_early_stopping(args: RewardConfig, patience: int | None) -> None:
    """Let early stopping follow the validation loss where no other metric is named."""
    if patience is None:
        return
    if args.eval_strategy == "no":
        raise OptionError("early_stopping_patience needs evaluations; set eval_strategy to 'steps' or 'epoch'.")
    # A resumed run counts on where it stopped.
    args.restore_callback_states_from_checkpoint = True
    if args.metric_for_best_model is None:
        args.metric_for_best_model, args.greater_is_better = "loss", False


def require_libraries(args: RewardConfig) -> None:
    """Check that the libraries of the optimizer and the trackers are installed; the trainer checks it late."""
    try:
        for tracker in get_reporting_integration_callbacks(args.report_to):
            tracker()
    except (ImportError, RuntimeError, ValueError) as error:
        raise OptionError(f"report_to is {args.report_to}: {error}") from error
    try:
        Trainer.get_optimizer_cls_and_kwargs(args)
    except ImportError as error:
        raise OptionError(f"optim is {str(args.optim)!r}: {error}") from error
    except ValueError:
        # A few optimizers are looked up with the model, which is not loaded yet: the trainer checks them.
        return


def merge_accumulation(args: RewardConfig) -> RewardConfig:
    """Return arguments whose steps hold the pairs of all accumulated batches: the same pairs, loss and gradient.

    The trainer splits a step into micro-batches by tokens, so a larger batch takes no more memory.
    """
    if args.gradient_accumulation_steps == 1:
        return args
    merged = copy.copy(args)
    merged.per_device_train_batch_size *= args.gradient_accumulation_steps
    merged.gradient_accumulation_steps = 1
    return merged
