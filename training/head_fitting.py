"""Fit a head on cached features in memory, within seconds, and keep the one with the lowest validation loss.

For the many heads of an ablation. The trainer is that of `train.py --train head`, but nothing is written:
the selected weights are left in the head.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import datasets
import torch
from transformers import PrinterCallback, TrainerCallback
from trl import RewardConfig

from sdiareward.pairs.schema import SIDES
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .head import FeatureCollator, SDiaRewardHead
from .trainer import SDiaRewardTrainer


Rows = Sequence[Mapping[str, Any]]
_TOKENS_PAIRS, _VECTORS_PAIRS = 4, 256
_OPTIONS: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 0.1,
    "logging_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "report_to": "none",
}


def fit_head(
    head: SDiaRewardHead,
    processor: SDiaRewardProcessor,
    collator: FeatureCollator,
    train: Rows,
    validation: Rows,
    options: Mapping[str, Any],
) -> BestHead:
    """Train a head and leave the weights with the lowest validation loss of ten evaluations in it."""
    best = BestHead(collator, validation)
    own = {"per_device_eval_batch_size": _VECTORS_PAIRS} if _are_vectors(validation) else {}
    with tempfile.TemporaryDirectory() as folder:
        trainer = SDiaRewardTrainer(
            head,
            processor,
            RewardConfig(**{**options, **_OPTIONS, **own, "output_dir": folder}),
            data_collator=collator,
            train_dataset=datasets.Dataset.from_list([dict(row) for row in train]),
            eval_dataset=datasets.Dataset.from_list([dict(row) for row in validation]),
            callbacks=[best],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    head.load_state_dict(best.state)
    return best


class BestHead(TrainerCallback):
    """Keep the head with the lowest validation loss, and the history of the validation rewards."""

    def __init__(self, collator: FeatureCollator, rows: Rows):
        self.collator = collator
        self.rows = rows
        self.loss, self.step = float("inf"), 0
        self.state: dict[str, torch.Tensor] = {}
        self.history: list[dict[str, float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Record the rewards before the first step."""
        self._record(model, state.global_step)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, model: Any = None, **kwargs: Any
    ) -> None:
        """Keep the head if it is the best so far."""
        self._record(model, state.global_step)
        if metrics["eval_loss"] < self.loss:
            self.loss, self.step = metrics["eval_loss"], state.global_step
            self.state = copy.deepcopy(model.state_dict())

    def _record(self, model: Any, step: int) -> None:
        chosen, rejected = compute_rewards(model, self.collator, self.rows)
        self.history.append({"step": step, "chosen": fmean(chosen), "rejected": fmean(rejected)})


@torch.inference_mode()
def compute_rewards(head: torch.nn.Module, collator: FeatureCollator, rows: Rows) -> tuple[list[float], list[float]]:
    """Compute the rewards of the chosen and of the rejected sides of pairs."""
    device = next(head.parameters()).device
    batch_size = _VECTORS_PAIRS if _are_vectors(rows) else _TOKENS_PAIRS
    sides: tuple[list[float], list[float]] = ([], [])
    for start in range(0, len(rows), batch_size):
        inputs = collator(rows[start : start + batch_size])["pairs"].make_inputs()
        logits = head(**{name: tensor.to(device) for name, tensor in inputs.items()}).logits
        for side, rewards in zip(sides, logits.squeeze(-1).chunk(len(SIDES)), strict=True):
            side += rewards.tolist()
    return sides


def _are_vectors(rows: Rows) -> bool:
    """Return whether features are pooled vectors, of which many fit into a batch, and not tokens."""
    return all(row["length"] == len(SIDES) for row in rows)
