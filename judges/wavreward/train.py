"""Train WavReward by reinforcement learning (section 3.1), or on scores, the supervised baseline (Table 1, II).

    sdiareward train --config configs/wavreward-7b.yaml
    sdiareward train --config configs/wavreward-7b-sft.yaml --use_peft

Both files name their recipe, `wavreward_grpo` and `wavreward_sft`.

Advantages are TRL's: equation 4 with the sample standard deviation (`N - 1` in place of `N` under the root) plus 1e-4.
For a group of `N` they are the paper's times `sqrt((N - 1) / N)`. The rewards of form and accuracy are added
before normalisation, so that both are part of `r_i`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.commands import Words, parse_trl
from sdiareward.common.files import hash_json, lock_folder
from sdiareward.common.hub import DatasetRevision, ModelRevision, find_snapshot
from sdiareward.common.machine import write_provenance
from sdiareward.training.augmentation import make_option

from .judge import choose_prompt
from .rewards import DEFAULT_SIGMA, make_reward_functions


if TYPE_CHECKING:
    import datasets

    from ..thinker import ThinkerProcessor
    from .judge import JudgingPrompt

logger = logging.getLogger(__name__)
Ask = Callable[[Any], list[dict[str, Any]]]
# Options of TRL in the help.
_SHOWN = (
    "output_dir",
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "bf16",
    "use_cpu",
)
_KEPT_COLUMNS = ("score", "sample_id", "scenario_id")


@dataclass
class JudgeArguments(ModelRevision, DatasetRevision):
    """The arguments of a training run that `trl.GRPOConfig` and `trl.SFTConfig` do not have."""

    dataset: str = field(metadata={"help": "Folder or repository of ChatReward samples."})
    model_name_or_path: str = make_option("nano", "A thinker (Hub id or folder), or nano: a new nano judge.")
    split: str = make_option("train", "Split to train on.")
    use_peft: bool = make_option(False, "Train adapters in the text model, in place of all weights as in the paper.")
    freeze_audio_tower: bool = make_option(False, "Freeze the audio tower up to its projection.")
    reasoning: bool = make_option(True, "Ask for thoughts before the score.")
    prompt_file: str | None = make_option(
        None, "YAML of prompts or JSON of a JudgingPrompt, saved with the judge (default: the model's)."
    )
    lora_r: int = make_option(16, "Rank of the adapters.")
    lora_alpha: int = make_option(32, "Scale of the adapters.")
    resume: bool = make_option(False, "Resume from the newest checkpoint in output_dir.")
    max_scenarios: int | None = make_option(None, "Number of scenarios to train on, the first ones.")


@dataclass
class GRPOArguments(JudgeArguments):
    """The arguments that only reinforcement learning has."""

    multi_sample: bool = make_option(
        True, "Put all answers of a scenario into one batch (section 3.1), else one of them at random."
    )
    accuracy_reward: str = make_option(
        "nonlinear", "Equation 3, or right and wrong alone (section 4.4).", choices=("nonlinear", "exact")
    )
    sigma: float = make_option(DEFAULT_SIGMA, "Sigma of equation 3; it has no value in the paper.")


def sft(*words: Words) -> None:
    """Run `sdiareward train --recipe wavreward_sft`."""
    from trl import SFTConfig

    _run(JudgeArguments, SFTConfig, words, "sdiareward train --recipe=wavreward_sft")


def grpo(*words: Words) -> None:
    """Run `sdiareward train --recipe wavreward_grpo`."""
    from trl import GRPOConfig

    _run(GRPOArguments, GRPOConfig, words, "sdiareward train --recipe=wavreward_grpo")


def _run(kind: type[JudgeArguments], config: Any, words: Sequence[str], prog: str) -> None:
    shown = {*_SHOWN, *(item.name for item in fields(kind))}
    about = (
        f"Train a judge on ChatReward; every option of trl.{config.__name__} is a flag, and a key of --config FILE."
    )
    args, training = parse_trl((kind, config), words, prog=prog, shown=shown, description=about)
    with lock_folder(training.output_dir):
        print(train(args, training))


def train(args: JudgeArguments, training: Any) -> Path:
    """Train and save a judge; return its folder, `output_dir`. `training` is a `GRPOConfig` or an `SFTConfig`."""
    from .wavreward_trainer import JudgeSFTTrainer, WavRewardTrainer

    samples, name = load_samples_to_train_on(args), args.model_name_or_path
    prompt = choose_prompt(None if name == "nano" else name, args.prompt_file)
    ask = partial(prompt.make_conversation, reasoning=args.reasoning)
    if isinstance(args, GRPOArguments):
        rewards = make_reward_functions(reasoning=args.reasoning, accuracy=args.accuracy_reward, sigma=args.sigma)
        scenarios: dict[str, Any] = {"scenario_ids": samples["scenario_id"], "multi_sample": args.multi_sample}
        make: Any = partial(WavRewardTrainer, reward_funcs=rewards, **scenarios)
        rows = make_prompt_rows(samples, ask)
    else:
        make, rows = JudgeSFTTrainer, make_target_rows(samples, ask, reasoning=args.reasoning)
    model, processor, adapters = load_judge_to_train(args, training)
    trainer = make(model, args=training, processing_class=processor, train_dataset=rows, peft_config=adapters)
    return _run_training(trainer, prompt, args, training)


def load_samples_to_train_on(args: JudgeArguments) -> datasets.Dataset:
    """Load at most `max_scenarios`; incomplete ones are skipped, as all answers of one are compared in one batch."""
    from sdiareward.dataset_builder.chatreward.scenarios import load_samples

    from .wavreward_trainer import group_by_scenario

    samples = load_samples(args.dataset, args.split)
    groups = group_by_scenario(samples["scenario_id"])
    if not groups:
        raise ValueError("there are no samples to train on; build the data set, or name another split.")
    size = max(Counter(map(len, groups)).items(), key=lambda item: (item[1], item[0]))[0]
    complete = [group for group in groups if len(group) == size]
    if num_skipped := len(groups) - len(complete):
        logger.warning("skipped %d of %d scenarios, which do not have %d answers.", num_skipped, len(groups), size)
    return samples.select([row for group in complete[: args.max_scenarios] for row in group])


def make_prompt_rows(samples: datasets.Dataset, ask: Ask) -> datasets.Dataset:
    """Make rows of `prompt`, `score`, `sample_id` and `scenario_id` for `GRPOTrainer`, which read their recording."""
    return samples.with_transform(partial(_to_prompts, ask=ask))


def _to_prompts(batch: dict[str, list[Any]], *, ask: Ask) -> dict[str, list[Any]]:
    return {"prompt": list(map(ask, batch["audio"])), **{name: batch[name] for name in _KEPT_COLUMNS}}


def make_target_rows(samples: datasets.Dataset, ask: Ask, *, reasoning: bool) -> datasets.Dataset:
    """Make rows of `prompt` and `target`, the column `target` or else the score in its tags, for `SFTTrainer`."""
    # No thoughts can be made from a score.
    if reasoning and "target" not in samples.column_names:
        raise ValueError("the samples have no column 'target' with thoughts to imitate; set reasoning to false.")
    return samples.with_transform(partial(_to_targets, ask=ask))


def _to_targets(batch: dict[str, list[Any]], *, ask: Ask) -> dict[str, list[Any]]:
    targets = batch.get("target") or [f"<score>{score}</score>" for score in batch["score"]]
    return {"prompt": list(map(ask, batch["audio"])), "target": targets}


def load_judge_to_train(args: JudgeArguments, training: Any) -> tuple[Any, ThinkerProcessor, Any]:
    """Return model, processor and adapter configuration (or None); a new nano judge is written to `output_dir`."""
    from ..thinker import ThinkerProcessor, build_nano_judge, load_thinker_model

    name = args.model_name_or_path
    if name == "nano":
        name = str(build_nano_judge(Path(training.output_dir) / "init", seed=training.seed))
    # Trained weights are float32, because at a learning rate of 1e-6 bfloat16 weights would not change; autocast still
    # computes in bfloat16. Two cases allow bfloat16: LoRA freezes the weights, and DeepSpeed keeps float32 copies.
    has_float32_copies = args.use_peft or training.deepspeed_plugin is not None
    model = load_thinker_model(name, dtype="bfloat16" if training.bf16 and has_float32_copies else "float32")
    # The unused vision tower gets no gradients, and distributed training would wait for them.
    model.model.visual.requires_grad_(False)
    if args.freeze_audio_tower:
        model.model.audio_tower.requires_grad_(False)
        model.model.audio_tower.proj.requires_grad_(True)
    return model, ThinkerProcessor.from_pretrained(find_snapshot(name)), configure_adapters(args)


def configure_adapters(args: JudgeArguments) -> Any:
    """Return the configuration of the adapters that a run trains; None if it trains all weights."""
    if not args.use_peft:
        return None
    from peft import LoraConfig

    from sdiareward.checkpoint_io.adapters import TEXT_PROJECTIONS

    sizes: Any = {"r": args.lora_r, "lora_alpha": args.lora_alpha}
    return LoraConfig(**sizes, target_modules=TEXT_PROJECTIONS, task_type="CAUSAL_LM")


def _run_training(trainer: Any, prompt: JudgingPrompt, args: JudgeArguments, training: Any) -> Path:
    """Train, from a checkpoint if `args` or `training` ask for it, and save a judge with its prompt and `run.json`."""
    from sdiareward.training.resuming import choose_checkpoint, record_settings

    output = Path(training.output_dir)
    checkpoint = choose_checkpoint(training, resume=args.resume)
    # Without the transform, which reads recordings.
    samples = trainer.train_dataset.with_format(None)
    settings = {**asdict(args), **training.to_dict(), "prompt_file": prompt.version}
    settings["samples"] = hash_json([list(samples[name]) for name in ("sample_id", "score")])[:12]
    record_settings(training, checkpoint, settings)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.save_model(str(output))
    if trainer.is_world_process_zero():
        trainer.processing_class.save_pretrained(output)
        prompt.save(output)
        (output / "training_args.bin").unlink(missing_ok=True)
        facts = {"arguments": args, "training": training.to_dict(), "prompt_version": prompt.version}
        facts |= {"num_samples": len(samples), "history": trainer.state.log_history}
        write_provenance(output / "run.json", **facts)
    return output
