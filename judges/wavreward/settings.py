"""Set up and run a training of WavReward: arguments in addition to TRL's, samples, start model, checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import hash_json
from sdiareward.common.hub import DatasetRevision, ModelRevision, find_snapshot

from .rewards import DEFAULT_SIGMA


if TYPE_CHECKING:
    import datasets

    from ..thinker import ThinkerProcessor
    from .prompts import JudgingPrompt


@dataclass
class JudgeArguments(ModelRevision, DatasetRevision):
    """The arguments of a training run that `trl.GRPOConfig` and `trl.SFTConfig` do not have."""

    dataset: str = field(metadata={"help": "Folder or repository of ChatReward samples."})
    model_name_or_path: str = field(
        default="nano",
        metadata={
            "flag": "model",
            "help": "A thinker (Hub id or folder), or nano for a new, untrained nano judge.",
        },
    )
    split: str = field(default="train", metadata={"help": "Split to train on."})
    train: str = field(
        default="full",
        metadata={
            "choices": ("full", "lora"),
            "help": "full trains all weights, as the paper does; lora trains adapters in the text model.",
        },
    )
    freeze_audio_tower: bool = field(
        default=False,
        metadata={"help": "Freeze the audio tower up to its projection; lora freezes all of it."},
    )
    reasoning: bool = field(default=True, metadata={"help": "Ask for thoughts before the score."})
    prompt_file: str | None = field(
        default=None,
        metadata={
            "help": "YAML of prompts (configs/prompts.yaml) or JSON of a JudgingPrompt to train with, which is saved "
            "with the judge; by default the prompt of the start model."
        },
    )
    lora_r: int = field(default=16, metadata={"help": "Rank of the adapters."})
    lora_alpha: int = field(default=32, metadata={"help": "Scale of the adapters."})
    resume: bool = field(default=False, metadata={"help": "Resume from the newest checkpoint in output_dir."})
    max_scenarios: int | None = field(
        default=None, metadata={"help": "Train only on the first scenarios, this number."}
    )


@dataclass
class GRPOArguments(JudgeArguments):
    """The arguments that only reinforcement learning has."""

    multi_sample: bool = field(
        default=True,
        metadata={"help": "Put all answers of a scenario into one batch (section 3.1), else one of them at random."},
    )
    accuracy_reward: str = field(
        default="nonlinear",
        metadata={
            "choices": ("nonlinear", "exact"),
            "help": "nonlinear is equation 3, exact is right or wrong (section 4.4).",
        },
    )
    sigma: float = field(
        default=DEFAULT_SIGMA, metadata={"help": "Sigma of equation 3, for which the paper gives no value."}
    )


def choose_prompt(args: JudgeArguments) -> JudgingPrompt:
    from . import prompts

    name = args.model_name_or_path
    return prompts.choose_prompt(None if name == "nano" else name, args.prompt_file)


def load_samples_to_train_on(args: JudgeArguments) -> datasets.Dataset:
    """Load the samples of a run: complete scenarios, at most `max_scenarios`."""
    from sdiareward.dataset_builder.chatreward.schema import load_samples

    from .sampling import group_by_scenario
    from .training_rows import keep_complete_scenarios

    samples = keep_complete_scenarios(load_samples(args.dataset, args.split))
    if args.max_scenarios is None:
        return samples
    groups = group_by_scenario(samples["scenario_id"])[: args.max_scenarios]
    return samples.select([row for group in groups for row in group])


def load_judge_to_train(args: JudgeArguments, training: Any) -> tuple[Any, ThinkerProcessor, Any]:
    """Return model, processor and adapter configuration (or None); a new nano judge is written to `output_dir`."""
    from ..thinker import ThinkerProcessor, load_thinker_model

    name = args.model_name_or_path
    if name == "nano":
        from ..nano_judge import build_nano_judge

        name = str(build_nano_judge(Path(training.output_dir) / "init", seed=training.seed))
    model = load_thinker_model(name, dtype=_choose_dtype(args, training))
    # The unused vision tower gets no gradients, and distributed training would wait for them.
    model.model.visual.requires_grad_(False)
    if args.freeze_audio_tower:
        model.model.audio_tower.requires_grad_(False)
        model.model.audio_tower.proj.requires_grad_(True)
    return model, ThinkerProcessor.from_pretrained(find_snapshot(name)), configure_adapters(args)


def _choose_dtype(args: JudgeArguments, training: Any) -> str:
    # Trained weights are float32, because at a learning rate of 1e-6 bfloat16 weights would not change; autocast still
    # computes in bfloat16. Two cases allow bfloat16: LoRA freezes the weights, and DeepSpeed keeps float32 copies.
    has_float32_copies = training.deepspeed_plugin is not None
    return "bfloat16" if training.bf16 and (args.train == "lora" or has_float32_copies) else "float32"


def configure_adapters(args: JudgeArguments) -> Any:
    """Return the configuration of the adapters that a run trains; None if it trains all weights."""
    if args.train != "lora":
        return None
    from peft import LoraConfig

    from sdiareward.checkpoint_io.adapters import TEXT_PROJECTIONS

    return LoraConfig(
        r=args.lora_r, lora_alpha=args.lora_alpha, target_modules=TEXT_PROJECTIONS, task_type="CAUSAL_LM"
    )


class ThinkerCheckpoints:
    """Mixin of a trainer that resumes from a thinker's checkpoint; list it before the trainer's class."""

    # `transformers.Trainer` loads by the names in memory. A thinker's tensors have other names on disk, hardly any is
    # found, and the run would resume from the initial weights.
    def _load_from_checkpoint(self: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        from peft import PeftModel

        from ..thinker import load_thinker_model

        model = model or self.model
        if isinstance(model, PeftModel) or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
            return
        model.load_state_dict(load_thinker_model(resume_from_checkpoint).state_dict())


def run_training(trainer: Any, processor: ThinkerProcessor, args: JudgeArguments, training: Any) -> Path:
    """Train, from a checkpoint if `args` or `training` ask for it, and save a judge with its prompt and `run.json`."""
    from sdiareward.common.provenance import write_provenance
    from sdiareward.training.resuming import choose_checkpoint, record_settings

    output = Path(training.output_dir)
    checkpoint = choose_checkpoint(training, resume=args.resume, has_adapters=args.train == "lora")
    # Without the transform, which reads recordings.
    samples = trainer.train_dataset.with_format(None)
    settings = {**asdict(args), **training.to_dict(), "prompt_file": choose_prompt(args).version}
    settings["samples"] = hash_json([list(samples[name]) for name in ("sample_id", "score")])[:12]
    record_settings(training, checkpoint, settings)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.save_model(str(output))
    if trainer.is_world_process_zero():
        processor.save_pretrained(output)
        prompt = choose_prompt(args)
        prompt.save(output)
        (output / "training_args.bin").unlink(missing_ok=True)
        write_provenance(
            output / "run.json",
            arguments=args,
            training=training.to_dict(),
            prompt_version=prompt.version,
            num_samples=len(trainer.train_dataset),
            history=trainer.state.log_history,
        )
    return output
