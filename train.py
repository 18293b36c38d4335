"""Train a reward model: `python train.py --config configs/nano.yaml`, flags override the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast


if TYPE_CHECKING:
    from trl import RewardConfig

    from sdiareward.modeling_sdiareward import SDiaRewardModel

TRAIN_MODES = ("head", "lora", "full")
# The text model only: the names of its projections occur in the audio tower too.
_LORA_TARGETS = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"


@dataclass
class TrainArguments:
    """What `trl.RewardConfig` does not cover.

    Args:
        model_name_or_path (`str`): A checkpoint of ours to train on, a Qwen2.5-Omni backbone (Hub id or folder), or
            `"nano"` for a new nano model from Whisper's encoder.
        dataset (`str`): Folder or repository of pairs with the splits `train` and `validation`.
        dataset_config (`str`, *optional*): Its configuration, for instance `"modality"`.
        train (`str`): `head` trains score and pooler; `lora` adapters in the text model as well; `full` all weights.
        freeze_audio_tower (`bool`): Keep the audio tower up to its projection as it is; its output is then computed
            once. Applies to `full`; the other modes always do.
        pooling_mode (`str`): For a new head: `mean`, `attention` or `last_token`.
        attn_implementation (`str`): `sdpa`, `eager` or `flash_attention_2`.
        lora_r, lora_alpha (`int`): Rank and scale of the adapters.
        early_stopping_patience (`int`, *optional*): Stop after this many evaluations without a better validation loss.
        resume (`bool`): Go on from the newest checkpoint in `output_dir`.
        save_compact (`bool`): Store the backbone of the final checkpoint in float16.
    """

    model_name_or_path: str
    dataset: str
    dataset_config: str | None = None
    train: str = field(default="full", metadata={"choices": TRAIN_MODES})
    freeze_audio_tower: bool = True
    pooling_mode: str = "mean"
    attn_implementation: str = "sdpa"
    lora_r: int = 16
    lora_alpha: int = 32
    early_stopping_patience: int | None = None
    resume: bool = False
    save_compact: bool = False


def load_model(args: TrainArguments, training: RewardConfig) -> tuple[SDiaRewardModel, Any]:
    """Return the model to train and its processor.

    Args:
        args ([`TrainArguments`]): Names the model.
        training (`trl.RewardConfig`): Decides where a new nano model is kept, and the dtype.
    """
    import torch
    from transformers import AutoConfig

    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.nano import build_nano
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

    name: str | Path = args.model_name_or_path
    if name == "nano":
        name = build_nano(Path(str(training.output_dir)) / "init", seed=training.seed)
    options = {
        "dtype": torch.bfloat16 if training.bf16 else torch.float32,
        "attn_implementation": args.attn_implementation,
    }
    if AutoConfig.from_pretrained(name).model_type == "sdiareward":
        return SDiaRewardModel.from_pretrained(name, **options), SDiaRewardProcessor.from_pretrained(name)
    model = SDiaRewardModel.from_backbone(name, pooling_mode=args.pooling_mode, **options)
    return model, SDiaRewardProcessor.from_backbone(name, max_turn_s=model.config.max_turn_s)


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


def train(args: TrainArguments, training: RewardConfig) -> Path:
    """Train, select by validation loss, and save the best model whole, with its processor and code.

    Returns:
        `Path`: The folder of the checkpoint, `output_dir`.
    """
    from transformers import EarlyStoppingCallback

    from sdiareward.nano import save_checkpoint
    from sdiareward.pairs import load_pairs
    from sdiareward.provenance import write_run
    from sdiareward.trainer import SDiaRewardTrainer, encode_pairs

    model, processor = load_model(args, training)
    splits = {name: load_pairs(args.dataset, name, name=args.dataset_config) for name in ("train", "validation")}
    if args.train == "full" and args.freeze_audio_tower:
        splits = {name: encode_pairs(pairs, model, processor) for name, pairs in splits.items()}
    patience = args.early_stopping_patience
    trainer = SDiaRewardTrainer(
        prepare_for_training(model, args),
        processor,
        training,
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        callbacks=[EarlyStoppingCallback(patience)] if patience else None,
    )
    trainer.train(resume_from_checkpoint=args.resume or None)
    output = Path(str(training.output_dir))
    trained = trainer.accelerator.unwrap_model(trainer.model)
    trained = trained.merge_and_unload() if args.train == "lora" else trained
    save_checkpoint(trained, processor, output, compact=args.save_compact)
    write_run(output / "run.json", arguments=args, training=training.to_dict(), history=trainer.state.log_history)
    return output


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and train."""
    from trl import RewardConfig, TrlParser

    # No abbreviations: a misspelt key shall fail, not stand for another one.
    # The cast: TRL annotates its dataclasses with a type that no class has.
    parser = TrlParser(
        cast(Any, (TrainArguments, RewardConfig)), prog="train.py", description=__doc__, allow_abbrev=False
    )
    args, training = parser.parse_args_and_config(argv, fail_with_unknown_args=True)
    print(train(args, training))


if __name__ == "__main__":
    main()
