"""Train a reward model: `python train.py --config configs/nano.yaml`, flags override the file."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sdiareward.common.locks import lock_folder
from sdiareward.common.optional_dependencies import requires_extra
from sdiareward.common.user_errors import exit_on_user_error
from sdiareward.training.arguments import TrainArguments


if TYPE_CHECKING:
    from trl import RewardConfig


def train(args: TrainArguments, training: RewardConfig) -> Path:
    """Train, select by validation loss, and save the best model whole, with its processor and code.

    Returns:
        `Path`: The folder of the checkpoint, `output_dir`.
    """
    from transformers import EarlyStoppingCallback, set_seed

    from sdiareward.pairs.loading import load_pairs
    from sdiareward.training.run_folder import record_training_pairs, resolve_base_model, save_final_model
    from sdiareward.training.setup import set_up
    from sdiareward.training.trainer import SDiaRewardTrainer, newest_checkpoint

    # New weights, such as adapters, are drawn before the trainer sets its seed.
    set_seed(training.seed)
    base_model = resolve_base_model(args.model_name_or_path, training)
    splits = {name: load_pairs(args.dataset, name, name=args.dataset_config) for name in ("train", "validation")}
    setup = set_up(args, base_model, splits, training)
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
    checkpoint = newest_checkpoint(str(training.output_dir)) if args.resume else None
    record_training_pairs(setup.splits, training, resumes=checkpoint is not None)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    save_final_model(trainer, setup, args, base_model, training)
    return Path(str(training.output_dir))


@exit_on_user_error("sdiareward-train")
@requires_extra("train", command="sdiareward-train")
def main(argv: list[str] | None = None) -> None:
    """Parse the command line and train."""
    from trl import RewardConfig

    from sdiareward.common.arguments import parse_arguments

    args, training = parse_arguments((TrainArguments, RewardConfig), argv, prog="train.py", description=__doc__)
    # Of the processes that train together only the main one takes the lock.
    with nullcontext() if training.process_index else lock_folder(str(training.output_dir)):
        print(train(args, training))


if __name__ == "__main__":
    main()
