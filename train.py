"""Train a reward model, a script of TRL: `sdiareward train --config configs/nano.yaml`, flags override the file.

For several processes: `accelerate launch -m sdiareward.train ...`. A recipe trains WavReward, a generative judge.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.commands import Words, make_app, run_app
from sdiareward.common.files import lock_folder
from sdiareward.common.hub import require_model
from sdiareward.common.package import NEW_NANO
from sdiareward.common.settings import read_mapping


if TYPE_CHECKING:
    from trl import RewardConfig

    from sdiareward.training.arguments import SDiaRewardModelConfig, SDiaRewardScriptArguments


def train(args: SDiaRewardScriptArguments, training: RewardConfig, model_args: SDiaRewardModelConfig) -> Path:
    """Train, select by validation loss, and save the best model whole, with its processor and code.

    Returns:
        `Path`: The folder of the checkpoint, `output_dir`.

    Raises:
        KeyboardInterrupt: It was interrupted; the message tells how to resume.
    """
    from transformers import EarlyStoppingCallback, set_seed

    from sdiareward.cards.model_card import write_model_card
    from sdiareward.checkpoint_io.files import FOLDS
    from sdiareward.checkpoint_io.training_record import describe_heard, write_pairs_record
    from sdiareward.common.errors import check_modules
    from sdiareward.training.arguments import choose_schedule, describe_arguments, describe_settings
    from sdiareward.training.ending import describe_interruption, report_end, save_final_model
    from sdiareward.training.held_out import load_splits
    from sdiareward.training.resuming import choose_checkpoint, record_settings, record_training_pairs
    from sdiareward.training.setup import resolve_base_model, set_up
    from sdiareward.training.trainer import SDiaRewardTrainer

    output, is_main = Path(str(training.output_dir)), not training.process_index
    checkpoint = choose_checkpoint(training, resume=args.resume)
    # The end reports what the run changed.
    training.eval_on_start = not model_args.folds and (training.eval_on_start or checkpoint is None)
    # New weights, such as adapters, are drawn before the trainer sets its seed.
    set_seed(training.seed)

    if model_args.folds:
        # The baselines.
        check_modules(("scipy", "sklearn"))
    splits, notices = load_splits(args, training.seed, model_args.folds)
    epochs = training.num_train_epochs
    notices = [*choose_schedule(training, model_args.mode, len(splits["train"])), *notices]
    if args.resume and checkpoint is None:
        notices.append(f"--resume: {output} holds no checkpoint; training begins at step 0")
    for notice in notices if is_main else ():
        print(f"sdiareward: notice: {notice}", file=sys.stderr)
    base_model = resolve_base_model(model_args.model_name_or_path, training)
    record_settings(training, checkpoint, describe_settings(args, training, model_args, base_model))
    setup = set_up(args, training, model_args, base_model, splits)
    trainer = SDiaRewardTrainer(
        setup.model,
        training,
        processing_class=setup.processor,
        batch_tokens=args.batch_tokens,
        data_collator=setup.collator,
        train_dataset=setup.splits["train"],
        eval_dataset=setup.splits.get("validation"),
        callbacks=[EarlyStoppingCallback(patience)] if (patience := args.early_stopping_patience) else None,
    )
    record_training_pairs(setup.splits, training, checkpoint)
    # A record that cannot be read ends the run here, not after the last step.
    used, is_trained = setup.select_used(splits["train"]), setup.gives_rewards
    begins_from = [base_model, model_args.adapter_name_or_path]
    heard = describe_heard(used, begins_from, is_trained=is_trained)
    if is_main:
        write_pairs_record(output, used, begins_from, is_trained=is_trained)
        # Of an earlier run.
        (output / FOLDS).unlink(missing_ok=True)

    cross_validated = ""
    if model_args.folds:
        cross_validated = cross_validate_head(setup, training, epochs, splits["train"], args.batch_tokens)
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(describe_interruption(trainer)) from None
    end = report_end(trainer, setup, splits, str(args.dataset_name))
    record = {"arguments": describe_arguments(args, model_args), **heard}
    save_final_model(trainer, setup, training, record, compact=args.save_compact)
    if is_main:
        write_model_card(output)
        print(*filter(None, [cross_validated, end]), sep="\n\n")
        if args.push_to_hub:
            print(push_model(output, training.hub_model_id or output.resolve().name, training.hub_private_repo))
    return output


def cross_validate_head(
    setup: Any, training: RewardConfig, epochs: float | None, pairs: Any, batch_tokens: int | None
) -> str:
    """Measure by cross-validation the head that these settings train; write `folds.json`, and return its text."""
    from sdiareward.checkpoint_io.files import FOLDS
    from sdiareward.common.files import format_line, write_file
    from sdiareward.evaluation.folds import deal_units, render_folds, summarise_folds
    from sdiareward.pairs.labels import describe_pairs
    from sdiareward.training.folds import cross_validate
    from sdiareward.training.held_out import name_units

    num_folds, output = setup.model_args.folds, Path(str(training.output_dir))
    usable = pairs.select(setup.splits["train"]["row"])
    (units, shared), labels = name_units(usable, num_folds), describe_pairs(usable)
    folds = deal_units(units, labels, num_folds, training.seed)
    heads, start, steps = cross_validate(setup, training, epochs, folds, batch_tokens=batch_tokens)
    rewards = {"heads": heads, "start": start}
    record, scored = summarise_folds(usable, labels, units, folds, rewards, setup.base_model)
    record |= {"num_steps": steps, "seed": training.seed, "shared_by_most": shared}
    write_file(output / "folds.jsonl", "".join(map(format_line, scored)))
    write_file(output / FOLDS, json.dumps(record, indent=2) + "\n")
    return render_folds(record)


def push_model(folder: Path, repo_id: str, private: bool | None) -> str:
    """Publish a finished folder as `sdiareward push model` does; return its address."""
    from sdiareward.cards.push import PublishError, plan_model, publish
    from sdiareward.common.errors import UserError

    try:
        return publish(plan_model(folder, repo_id=repo_id), repo_id, private=bool(private)).url
    except (PublishError, ValueError) as error:
        raise UserError(f"{folder} is finished, but not published: {error}") from error


TRAIN = make_app("train", "Train a reward model on preference pairs.", help_flags=())
for name, about in {
    "sft": "Fine-tune a judge on scores, the supervised baseline (Table 1, II).",
    "grpo": "Train WavReward by reinforcement learning (section 3.1).",
}.items():
    place = f"sdiareward.judges.wavreward.train:{name}"
    TRAIN.command(place, name=f"--recipe=wavreward_{name}", help=about, help_flags=())


@TRAIN.default
def run(*words: Words) -> None:
    """Train with the options of TRL's parser."""
    given = dict(pairwise(part for word in words for part in word.split("=", 1)))
    settings = read_mapping(Path(given["--config"])) if "--config" in given else {}
    model = given.get("--model") or settings.get("model") or settings.get("model_name_or_path") or NEW_NANO
    # Before libraries are imported, which takes seconds.
    if model != NEW_NANO:
        require_model(str(model))
    from transformers.utils.logging import disable_progress_bar

    from sdiareward.training.arguments import parse_arguments

    # Of loading and writing; each phase of training has a bar of its own.
    disable_progress_bar()
    # PEFT asks for it, until its release that requires transformers 6.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
    args, training, model_args = parse_arguments(words)
    with lock_folder(str(training.output_dir)):
        train(args, training, model_args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return run_app(TRAIN, argv, extra="train")


if __name__ == "__main__":
    sys.exit(main())
