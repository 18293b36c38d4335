"""Train a reward model: `python train.py --config configs/nano.yaml`, flags override the file."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sdiareward.common.locks import lock_folder
from sdiareward.common.optional_dependencies import requires_extra
from sdiareward.common.user_errors import UserError, exit_on_user_error
from sdiareward.training.arguments import TrainArguments


if TYPE_CHECKING:
    from trl import RewardConfig

    from sdiareward.training.setup import TrainingSetup
    from sdiareward.training.trainer import SDiaRewardTrainer

# Hidden, so that it is no part of the checkpoint that the folder becomes.
_PAIRS = ".pairs.json"


def train(args: TrainArguments, training: RewardConfig) -> Path:
    """Train, select by validation loss, and save the best model whole, with its processor and code.

    Returns:
        `Path`: The folder of the checkpoint, `output_dir`.
    """
    from transformers import EarlyStoppingCallback, set_seed

    from sdiareward.pairs.loading import load_pairs
    from sdiareward.training.setup import set_up
    from sdiareward.training.trainer import SDiaRewardTrainer, newest_checkpoint

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
    from sdiareward.checkpoint_io.nano import build_nano

    if args.model_name_or_path != "nano":
        return args
    folder = Path(str(training.output_dir)) / "init"
    with training.main_process_first(local=False):
        if not training.process_index:
            build_nano(folder, seed=training.seed)
    return replace(args, model_name_or_path=str(folder))


def _note_pairs(output: Path, setup: TrainingSetup, training: RewardConfig, *, goes_on: bool) -> None:
    """Keep which pairs a run is of; raise if one that goes on began with others, to which its checkpoints belong."""
    from sdiareward.common.files import write_file

    path, found = output / _PAIRS, {}
    for split, rows in setup.splits.items():
        names = json.dumps([list(rows["pair_id"]), list(rows["length"])])
        found[split] = {"num_pairs": len(rows), "sha256": hashlib.sha256(names.encode()).hexdigest()}
    before = json.loads(path.read_text(encoding="utf-8")) if goes_on and path.exists() else found
    if before != found:
        counts = (f"{before[split]['num_pairs']} of {split}, now {found[split]['num_pairs']}" for split in found)
        raise UserError(
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

    from sdiareward.checkpoint_io.nano import save_checkpoint
    from sdiareward.common.files import write_file
    from sdiareward.common.provenance import write_run
    from sdiareward.training.setup import ADAPTER, READ_AHEAD, TRAINED, complete_model

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


@exit_on_user_error("sdiareward-train")
@requires_extra("train", command="sdiareward-train")
def main(argv: list[str] | None = None) -> None:
    """Parse the command line and train."""
    from trl import RewardConfig

    from sdiareward.common.arguments import parse_arguments

    args, training = parse_arguments((TrainArguments, RewardConfig), argv, prog="train.py", description=__doc__)
    # Of the processes that train together only the main one may ask.
    with nullcontext() if training.process_index else lock_folder(str(training.output_dir)):
        print(train(args, training))


if __name__ == "__main__":
    main()
