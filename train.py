"""Train a reward model: `sdiareward train --config configs/nano.yaml`, flags override the file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.commands import parse_trl, run_guarded
from sdiareward.common.locks import lock_folder
from sdiareward.training.arguments import TrainArguments


if TYPE_CHECKING:
    from sdiareward.training.options import RewardTrainingConfig


def train(args: TrainArguments, training: RewardTrainingConfig) -> Path:
    """Train, select by validation loss, and save the best model whole, with its processor and code.

    Returns:
        `Path`: The folder of the checkpoint, `output_dir`.

    Raises:
        KeyboardInterrupt: It was interrupted; the message tells how to resume.
    """
    from transformers import EarlyStoppingCallback, set_seed

    from sdiareward.cards.model_card import write_model_card
    from sdiareward.checkpoint_io.training_record import describe_heard, write_pairs_record
    from sdiareward.training.ending import describe_interruption, report_end
    from sdiareward.training.held_out import count_units, find_shared
    from sdiareward.training.options import prepare_early_stopping, require_libraries, require_supported
    from sdiareward.training.resuming import choose_checkpoint
    from sdiareward.training.run_folder import (
        gives_rewards,
        record_run_settings,
        record_training_pairs,
        resolve_base_model,
        save_final_model,
    )
    from sdiareward.training.setup import set_up
    from sdiareward.training.trainer import SDiaRewardTrainer

    require_supported(training)
    prepare_early_stopping(training, args.early_stopping_patience)
    require_libraries(training)
    checkpoint = choose_checkpoint(training, resume=args.resume, has_adapters=args.train == "lora")
    # What a run changed is told by the rewards before it.
    training.eval_on_start = training.eval_on_start or checkpoint is None
    # New weights, such as adapters, are drawn before the trainer sets its seed.
    set_seed(training.seed)
    splits = _load_splits(args, training, begins=args.resume and checkpoint is None)
    base_model = resolve_base_model(args.model_name_or_path, training)
    record_run_settings(args, base_model, training, checkpoint)
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
    record_training_pairs(setup.splits, training, checkpoint)
    # A record that cannot be read ends the run here, not after the last step.
    begins_from, is_trained = [base_model, args.adapter_name_or_path], gives_rewards(setup.model)
    used = setup.select_used(splits["train"])
    heard = describe_heard(used, begins_from, is_trained=is_trained)
    if not training.process_index:
        write_pairs_record(Path(str(training.output_dir)), used, begins_from, is_trained=is_trained)
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(describe_interruption(trainer)) from None
    end = report_end(trainer, args, setup, count_units(splits), len(find_shared(splits)))
    save_final_model(trainer, setup, args, base_model, training, heard)
    if trainer.is_world_process_zero():
        write_model_card(Path(str(training.output_dir)))
        print(end)
    return Path(str(training.output_dir))


def _load_splits(args: TrainArguments, training: RewardTrainingConfig, *, begins: bool) -> dict[str, Any]:
    """Load the pairs, and print what the run does that was not asked for; `begins` if there is nothing to resume."""
    from sdiareward.training.held_out import load_splits
    from sdiareward.training.options import choose_schedule, describe_choices

    splits, notices = load_splits(
        [args.dataset, *args.more_datasets],
        args.dataset_config,
        share=args.validation_share,
        seed=training.seed,
        audio_root=args.audio_root,
        max_eval_samples=args.max_eval_samples,
    )
    schedule = choose_schedule(training, args.train, len(splits["train"]))
    if not training.process_index:
        _print_notices(
            *describe_choices(training),
            schedule,
            *notices,
            f"--resume: {training.output_dir} holds no checkpoint; training begins at step 0" if begins else None,
        )
    return splits


def _print_notices(*notices: str | None) -> None:
    for notice in notices:
        if notice is not None:
            print(f"sdiareward: notice: {notice}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""

    def run() -> None:
        from sdiareward.training.options import RewardTrainingConfig

        args, training = parse_trl((TrainArguments, RewardTrainingConfig), argv, prog="sdiareward train")
        with lock_folder(training.output_dir):
            train(args, training)

    return run_guarded("sdiareward train", run, "train")


if __name__ == "__main__":
    sys.exit(main())
