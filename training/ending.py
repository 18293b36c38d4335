"""End a training run: the complete checkpoint with its records, and what is printed, also of an interruption."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl import RewardConfig

from sdiareward.checkpoint_io.files import save_checkpoint
from sdiareward.checkpoint_io.training_record import RECORD
from sdiareward.common.files import write_file
from sdiareward.common.machine import write_provenance
from sdiareward.esdr_accuracy.pairwise import wilson_interval

from .held_out import count_units, find_shared
from .precompute import READ_AHEAD
from .resuming import list_checkpoints
from .setup import TrainingSetup, assemble_full_model, copy_heard


_ADAPTER, _TRAINED = "adapter", "trained"


def describe_interruption(trainer: Any) -> str:
    """Return at which step training stopped, and how it resumes."""
    where, checkpoints = f"stopped at step {trainer.state.global_step}", list_checkpoints(str(trainer.args.output_dir))
    if checkpoints:
        return f"{where}; resume with --resume, from {checkpoints[0].name}."
    return f"{where}, before its first checkpoint (save_steps is {trainer.args.save_steps:g}); start it again."


def save_final_model(
    trainer: Any, setup: TrainingSetup, training: RewardConfig, record: Mapping[str, Any], *, compact: bool
) -> None:
    """Save what was trained, assemble the complete model from it, and write `run.json` with `record`."""
    output = Path(str(training.output_dir))
    folder = output / (_ADAPTER if setup.model_args.mode == "lora" else _TRAINED)
    # In all processes: weights that are sharded between them are gathered.
    trainer.save_model(str(folder))
    if not trainer.is_world_process_zero():
        return
    (folder / "training_args.bin").unlink(missing_ok=True)
    model = assemble_full_model(folder, setup, training)
    # Adapters and a head are put on the base model, which has its own.
    copy_heard(model.config, setup.processor)
    save_checkpoint(model, setup.processor, output, compact=compact)
    write_file(output / "skipped.jsonl", "".join(json.dumps(pair.to_dict()) + "\n" for pair in setup.skipped))
    write_provenance(
        output / RECORD,
        **record,
        training=training.to_dict(),
        num_skipped_pairs=len(setup.skipped),
        num_cut_turns=setup.num_cut_turns,
        history=trainer.state.log_history,
    )
    for name in (READ_AHEAD, _TRAINED):
        shutil.rmtree(output / name, ignore_errors=True)


def report_end(trainer: Any, setup: TrainingSetup, splits: Mapping[str, Any], dataset: str) -> str:
    """Return where the model is, its validation accuracy and the next command; all processes call it.

    Pairs of one group are not independent, so the interval counts groups.
    """
    state, folder = trainer.state, str(trainer.args.output_dir)
    before, after, step = _find_metrics(trainer)
    which = f", from step {step} of {state.global_step}" if step != state.global_step else f", after step {step}"
    lines = [f"Model: {folder}{which}"]
    if "eval_accuracy" in after:
        accuracy, num_groups = after["eval_accuracy"], count_units(splits)
        bounds = wilson_interval(accuracy, num_groups)
        interval = "95% interval {:.2f} to {:.2f}".format(*bounds) if bounds else "no interval"
        of_groups = f"{len(trainer.eval_dataset)} pairs of {num_groups} {'group' if num_groups == 1 else 'groups'}"
        lines.append(f"Validation accuracy: {accuracy:.4f} on {of_groups}, {interval}")
        lines.append(f"Validation margin: {after['eval_margin']:+.3f} on average")
        if before:
            lines[1] += f"; {before['eval_accuracy']:.4f} before training"
            lines[2] += f"; {before['eval_margin']:+.3f} before training"
        if shared := len(find_shared(splits)):
            lines.append(f"Not new: {shared} validation pairs share a group, prompt or recording with training")
    if skipped := setup.skipped:
        one = f"{skipped[0].item} of {skipped[0].split} ({skipped[0].reason})"
        lines.append(f"Skipped: {len(skipped)} pairs, such as {one}; all: {Path(folder) / 'skipped.jsonl'}")
    if setup.num_cut_turns:
        seconds = setup.processor.max_turn_s
        lines.append(f"Cut: {setup.num_cut_turns} turns; this model hears the first {seconds:g} s of each")
    if setup.model_args.folds:
        return "\n".join([*lines, f"Next: sdiareward push model {folder} NAME --preview {folder.rstrip('/')}-card"])
    # A file is one split, which the model has now seen.
    other = "OTHER_PAIRS" if Path(dataset).is_file() else dataset
    places = f"--model {folder} --dataset {other} --output_dir {folder.rstrip('/')}-eval"
    return "\n".join([*lines, f"Next: sdiareward eval {places} --report"])


def _find_metrics(trainer: Any) -> tuple[dict[str, float], dict[str, float], int]:
    """Return the validation metrics before training and of the saved model, and the step of the saved model."""
    state, args = trainer.state, trainer.args
    # With folds all pairs are trained on.
    if trainer.eval_dataset is None:
        return {}, {}, state.global_step
    step = state.best_global_step if args.load_best_model_at_end and state.best_global_step else state.global_step
    measured = [line for line in state.log_history if "eval_accuracy" in line]
    before: dict[str, float] = next((line for line in measured if line.get("step") == 0), {})
    after = [line for line in measured if line.get("step") == step]
    return before, after[-1] if after else trainer.evaluate(), int(step)
