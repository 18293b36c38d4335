"""Train a reward model: `python train.py --config configs/nano.yaml`, flags override the file."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sdiareward.extras import required_by
from sdiareward.hindrances import HinderedError, hindrances_said, sole_writer


if TYPE_CHECKING:
    from trl import RewardConfig

    from sdiareward.pair_augmentation import AugmentationSettings
    from sdiareward.trainer import SDiaRewardTrainer
    from sdiareward.training_setup import TrainingSetup

TRAIN_MODES = ("head", "lora", "full")
# Hidden, so that it is no part of the checkpoint that the folder becomes.
_PAIRS = ".pairs.json"


@dataclass
class TrainArguments:
    """What `trl.RewardConfig` does not cover.

    Args:
        model_name_or_path (`str`): A checkpoint of ours to train on, a Qwen2.5-Omni backbone (Hub id or folder), or
            `"nano"` for a new nano model from Whisper's encoder.
        dataset (`str`): Folder or repository of pairs with the splits `train` and `validation`.
        dataset_config (`str`, *optional*): Its configuration, for instance `"modality"`.
        train (`str`): `head` trains score and pooler; `lora` adapters in the text model as well; `full` all weights.
        from_cache (`str`, *optional*): Folder of cached features to train the head on; what is missing in it is
            computed first. By default `features` in `output_dir`. Applies to `head`.
        through_backbone (`bool`): Train the head without a cache, running the frozen backbone in each step.
        freeze_audio_tower (`bool`): Keep the audio tower up to its projection as it is; its output is then computed
            once. Applies to `full`; the other modes always do.
        freeze_text_model (`bool`): Keep the text model as it is. Applies to `full`.
        pooling_mode (`str`): For a new head: `mean`, `attention` or `last_token`.
        batch_tokens (`int`, *optional*): Tokens in one forward pass: a step's pairs are cut into parts of so many.
        lora_r, lora_alpha (`int`): Rank and scale of the adapters.
        early_stopping_patience (`int`, *optional*): Stop after this many evaluations without a better validation loss.
        resume (`bool`): Go on from the newest checkpoint in `output_dir`.
        save_compact (`bool`): Store the backbone of the final checkpoint in float16.
        augmentations, augmented_copies, augment_sides (`list[str]`, `int`, `str`): Copies of the training pairs
            through other channels; see `pair_augmentation.AugmentationSettings`.
        hard_negatives, hard_negative_share (`list[str]`, `float`): Training pairs against attacks on their own
            chosen side; see there.
    """

    model_name_or_path: str
    dataset: str
    dataset_config: str | None = None
    train: str = field(default="full", metadata={"choices": TRAIN_MODES})
    from_cache: str | None = None
    through_backbone: bool = False
    freeze_audio_tower: bool = True
    freeze_text_model: bool = False
    pooling_mode: str = "mean"
    batch_tokens: int | None = None
    lora_r: int = 16
    lora_alpha: int = 32
    early_stopping_patience: int | None = None
    resume: bool = False
    save_compact: bool = False
    augmentations: list[str] = field(default_factory=list)
    augmented_copies: int = 1
    augment_sides: str = "both"
    hard_negatives: list[str] = field(default_factory=list)
    hard_negative_share: float = 1.0

    def __post_init__(self) -> None:
        self.augmentation(seed=0)
        if self.from_cache is not None and not self.uses_cache:
            how = "through the backbone" if self.train == "head" else repr(self.train)
            raise ValueError(
                f"from_cache is given but train is {how}; only a head can be trained on cached features: use train "
                "head, or leave from_cache out."
            )

    def augmentation(self, seed: int) -> AugmentationSettings:
        """Return what is added to the training pairs."""
        from sdiareward.pair_augmentation import AugmentationSettings

        names = [entry.name for entry in fields(AugmentationSettings) if entry.name != "seed"]
        return AugmentationSettings(**{name: getattr(self, name) for name in names}, seed=seed)

    @property
    def uses_cache(self) -> bool:
        """Whether a head is trained on cached features."""
        return self.train == "head" and not self.through_backbone

    @property
    def keeps_audio_tower(self) -> bool:
        """Whether the audio tower, up to its projection, stays as it is."""
        return self.train != "full" or self.freeze_audio_tower


def train(args: TrainArguments, training: RewardConfig) -> Path:
    """Train, select by validation loss, and save the best model whole, with its processor and code.

    Returns:
        `Path`: The folder of the checkpoint, `output_dir`.
    """
    from transformers import EarlyStoppingCallback, set_seed

    from sdiareward.pairs import load_pairs
    from sdiareward.trainer import SDiaRewardTrainer, newest_checkpoint
    from sdiareward.training_setup import set_up

    # New weights, such as adapters, are drawn before the trainer sets its seed.
    set_seed(training.seed)
    output, start = Path(str(training.output_dir)), _start(args, training)
    splits = {name: load_pairs(args.dataset, name, name=args.dataset_config) for name in ("train", "validation")}
    setup = set_up(start, training, splits)
    patience = args.early_stopping_patience
    trainer = SDiaRewardTrainer(
        setup.model,
        setup.processor,
        training,
        batch_tokens=args.batch_tokens,
        data_collator=setup.collator,
        train_dataset=setup.splits["train"],
        eval_dataset=setup.splits["validation"],
        callbacks=[EarlyStoppingCallback(patience)] if patience else None,
    )
    checkpoint = newest_checkpoint(output) if args.resume else None
    _note_pairs(output, setup, training, goes_on=checkpoint is not None)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    _finish(trainer, setup, args, start, training)
    return output


def _start(args: TrainArguments, training: RewardConfig) -> TrainArguments:
    """Return the arguments with a folder for `nano`, which the main one of several processes writes."""
    from sdiareward.nano import build_nano

    if args.model_name_or_path != "nano":
        return args
    folder = Path(str(training.output_dir)) / "init"
    with training.main_process_first(local=False):
        if not training.process_index:
            build_nano(folder, seed=training.seed)
    return replace(args, model_name_or_path=str(folder))


def _note_pairs(output: Path, setup: TrainingSetup, training: RewardConfig, *, goes_on: bool) -> None:
    """Keep which pairs a run is of; raise if one that goes on began with others, to which its checkpoints belong."""
    from sdiareward.records import write_file

    path, found = output / _PAIRS, {}
    for split, rows in setup.splits.items():
        names = json.dumps([list(rows["pair_id"]), list(rows["length"])])
        found[split] = {"num_pairs": len(rows), "sha256": hashlib.sha256(names.encode()).hexdigest()}
    before = json.loads(path.read_text(encoding="utf-8")) if goes_on and path.exists() else found
    if before != found:
        counts = (f"{before[split]['num_pairs']} of {split}, now {found[split]['num_pairs']}" for split in found)
        raise HinderedError(
            f"{output}: began with other pairs ({'; '.join(counts)}): recordings have vanished or come back since, or "
            "the data set has changed; restore it as it was, or train in another output_dir."
        )
    if not training.process_index:
        write_file(path, json.dumps(found) + "\n")


def _finish(
    trainer: SDiaRewardTrainer,
    setup: TrainingSetup,
    args: TrainArguments,
    start: TrainArguments,
    training: RewardConfig,
) -> None:
    """Write the model, what it was trained with, and what was left out."""
    import shutil

    from sdiareward.nano import save_checkpoint
    from sdiareward.provenance import write_run
    from sdiareward.records import write_file
    from sdiareward.training_setup import ADAPTER, READ_AHEAD, TRAINED, complete_model

    output = Path(str(training.output_dir))
    folder = output / (ADAPTER if args.train == "lora" else TRAINED)
    # All processes: what is shared out between them is brought together.
    trainer.save_model(str(folder))
    if not trainer.is_world_process_zero():
        return
    (folder / "training_args.bin").unlink(missing_ok=True)
    save_checkpoint(complete_model(folder, start, training), setup.processor, output, compact=args.save_compact)
    write_file(output / "skipped.jsonl", "".join(json.dumps(pair) + "\n" for pair in setup.skipped))
    write_run(
        output / "run.json",
        arguments=args,
        training=training.to_dict(),
        num_skipped_pairs=len(setup.skipped),
        history=trainer.state.log_history,
    )
    for name in (READ_AHEAD, TRAINED):
        if (output / name).exists():
            shutil.rmtree(output / name)


@hindrances_said("sdiareward-train")
@required_by("sdiareward-train", "train")
def main(argv: list[str] | None = None) -> None:
    """Parse the command line and train."""
    from trl import RewardConfig

    from sdiareward.trl_arguments import parse_arguments

    args, training = parse_arguments((TrainArguments, RewardConfig), argv, prog="train.py", description=__doc__)
    # Of the processes that train together only the main one may ask.
    with nullcontext() if training.process_index else sole_writer(str(training.output_dir)):
        print(train(args, training))


if __name__ == "__main__":
    main()
