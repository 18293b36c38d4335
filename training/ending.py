"""What a training run prints when it ends or is interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .arguments import TrainArguments
from .resuming import find_newest_checkpoint
from .usable_pairs import SkippedPair


def report_end(
    trainer: Any, args: TrainArguments, skipped: Sequence[SkippedPair], num_cut: int = 0, max_turn_s: float = 0.0
) -> str:
    """Return where the model is, its validation accuracy and the next command; all processes call it."""
    state, folder = trainer.state, str(trainer.args.output_dir)
    accuracy, step = _find_accuracy(trainer)
    which = f", from step {step} of {state.global_step}" if step != state.global_step else f", after step {step}"
    lines = [f"Model: {folder}{which}"]
    if accuracy is not None:
        lines.append(f"Validation accuracy: {accuracy:.4f} on {len(trainer.eval_dataset)} pairs")
    if skipped:
        first = skipped[0]
        reasons = Path(folder) / "skipped.jsonl"
        lines.append(
            f"Skipped: {len(skipped)} pairs, such as {first.item} of {first.split} ({first.reason}); all: {reasons}"
        )
    if num_cut:
        lines.append(f"Cut: {num_cut} turns, of which this model hears the first {max_turn_s:g} s")
    # A file is one split, which the model has now seen.
    dataset = "OTHER_PAIRS" if Path(args.dataset).is_file() else args.dataset
    output = f"{folder.rstrip('/')}-eval"
    lines.append(f"Next: sdiareward eval --model {folder} --dataset {dataset} --output_dir {output} --report")
    return "\n".join(lines)


def _find_accuracy(trainer: Any) -> tuple[float | None, int]:
    """Return the validation accuracy of the model that is saved, and the step that it is of."""
    state, args = trainer.state, trainer.args
    step = state.best_global_step if args.load_best_model_at_end and state.best_global_step else state.global_step
    measured = [line for line in state.log_history if line.get("step") == step and "eval_accuracy" in line]
    metrics = measured[-1] if measured else trainer.evaluate()
    return metrics.get("eval_accuracy"), int(step)


def describe_interruption(trainer: Any) -> str:
    """Return at which step training stopped, and how it resumes."""
    step, checkpoint = trainer.state.global_step, find_newest_checkpoint(str(trainer.args.output_dir))
    if checkpoint is None:
        remedy = f"before its first checkpoint (save_steps is {trainer.args.save_steps:g}); start it again"
        return f"stopped at step {step}, {remedy}."
    return f"stopped at step {step}; resume with --resume, from {checkpoint.name}."
