"""Cross-validate a head: the pairs of each fold are scored by a head that was trained on the other folds.

Each of these heads begins where the final one begins, and is trained as the same command would train on its pairs:
nothing is selected by the pairs it is measured on. Features are cached, so a fold takes seconds.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import PrinterCallback, TrainerCallback
from trl import RewardConfig

from .arguments import choose_schedule
from .setup import TrainingSetup
from .trainer import SDiaRewardTrainer


def cross_validate(
    setup: TrainingSetup, training: RewardConfig, epochs: float | None, folds: NDArray[np.int64], **options: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[int]]:
    """Train a head for each fold; `folds` has the number of each row of `setup.splits["train"]`.

    Without `epochs` their number follows from the pairs that a head is trained on.

    Returns:
        The rewards of both sides by the fold's head and by the head that training begins from, each of shape
        `(num_pairs, 2)`, and the number of steps in each fold.
    """
    rows = setup.splits["train"]
    numbers = sorted(set(folds.tolist()))
    by_heads = np.empty((len(rows), 2))
    with tqdm(desc="folds", unit="step", disable=training.disable_tqdm) as bar:
        options["callbacks"] = [_StepCounter(bar, len(numbers))]
        begun = _make_trainer(setup, training, epochs, rows, **options)
        by_start, steps = begun.predict(rows).predictions.astype(np.float64), []
        for number in numbers:
            held_out = np.flatnonzero(folds == number)
            others = rows.select(np.flatnonzero(folds != number))
            trainer = _make_trainer(setup, training, epochs, others, **options)
            trainer.train()
            by_heads[held_out] = trainer.predict(rows.select(held_out)).predictions
            steps.append(trainer.state.global_step)
    return by_heads, by_start, steps


def _make_trainer(
    setup: TrainingSetup, training: RewardConfig, epochs: float | None, rows: Any, **options: Any
) -> SDiaRewardTrainer:
    """Return the trainer of a new head that writes nothing."""
    args: Any = copy.copy(training)
    args.report_to, args.disable_tqdm, args.eval_on_start = [], True, False
    args.save_strategy = args.logging_strategy = "no"
    args.num_train_epochs = epochs
    choose_schedule(args, "head", len(rows))
    given = (copy.deepcopy(setup.model), args, setup.collator, rows)
    trainer = SDiaRewardTrainer(*given, processing_class=setup.processor, **options)
    trainer.remove_callback(PrinterCallback)
    return trainer


class _StepCounter(TrainerCallback):
    """Count the steps of all folds in one bar."""

    def __init__(self, bar: tqdm, num_folds: int):
        self.bar, self.num_folds = bar, num_folds

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.total = max(self.bar.total or 0, self.num_folds * state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.update()
