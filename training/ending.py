"""What a training run prints when it ends or is interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.esdr_accuracy.pairwise import wilson_interval

from .arguments import TrainArguments
from .resuming import list_checkpoints
from .setup import TrainingSetup


def report_end(trainer: Any, args: TrainArguments, setup: TrainingSetup, num_groups: int, num_shared: int = 0) -> str:
    """Return where the model is, its validation accuracy and the next command; all processes call it."""
    state, folder = trainer.state, str(trainer.args.output_dir)
    before, after, step = _find_metrics(trainer)
    which = f", from step {step} of {state.global_step}" if step != state.global_step else f", after step {step}"
    lines = [f"Model: {folder}{which}"]
    if "eval_accuracy" in after:
        lines += _describe_validation(before, after, len(trainer.eval_dataset), num_groups)
        if num_shared:
            lines.append(f"Not new: {num_shared} validation pairs share a group, prompt or recording with training")
    if skipped := setup.skipped:
        one = f"{skipped[0].item} of {skipped[0].split} ({skipped[0].reason})"
        lines.append(f"Skipped: {len(skipped)} pairs, such as {one}; all: {Path(folder) / 'skipped.jsonl'}")
    if setup.num_cut_turns:
        seconds = setup.processor.max_turn_s
        lines.append(f"Cut: {setup.num_cut_turns} turns, of which this model hears the first {seconds:g} s")
    # A file is one split, which the model has now seen.
    dataset = "OTHER_PAIRS" if Path(args.dataset).is_file() else args.dataset
    output = f"{folder.rstrip('/')}-eval"
    lines.append(f"Next: sdiareward eval --model {folder} --dataset {dataset} --output_dir {output} --report")
    return "\n".join(lines)


def _describe_validation(
    before: Mapping[str, float], after: Mapping[str, float], num_pairs: int, num_groups: int
) -> list[str]:
    """Return accuracy and mean margin; pairs of one group are not independent, so the interval counts groups."""
    accuracy = after["eval_accuracy"]
    bounds = wilson_interval(accuracy, num_groups)
    interval = "95% interval {:.2f} to {:.2f}".format(*bounds) if bounds else "no interval"
    groups = "group" if num_groups == 1 else "groups"
    lines = [
        f"Validation accuracy: {accuracy:.4f} on {num_pairs} pairs of {num_groups} {groups}, {interval}",
        f"Validation margin: {after['eval_margin']:+.3f} on average",
    ]
    if before:
        lines[0] += f"; {before['eval_accuracy']:.4f} before training"
        lines[1] += f"; {before['eval_margin']:+.3f} before training"
    return lines


def _find_metrics(trainer: Any) -> tuple[dict[str, float], dict[str, float], int]:
    """Return the validation before training and that of the model that is saved, and the step of the latter."""
    state, args = trainer.state, trainer.args
    step = state.best_global_step if args.load_best_model_at_end and state.best_global_step else state.global_step
    measured = [line for line in state.log_history if "eval_accuracy" in line]
    before: dict[str, float] = next((line for line in measured if line.get("step") == 0), {})
    after = [line for line in measured if line.get("step") == step]
    return before, after[-1] if after else trainer.evaluate(), int(step)


def describe_interruption(trainer: Any) -> str:
    """Return at which step training stopped, and how it resumes."""
    where, checkpoints = f"stopped at step {trainer.state.global_step}", list_checkpoints(str(trainer.args.output_dir))
    if checkpoints:
        return f"{where}; resume with --resume, from {checkpoints[0].name}."
    return f"{where}, before its first checkpoint (save_steps is {trainer.args.save_steps:g}); start it again."
