"""Samples of ChatReward as rows for TRL's trainers; recordings are read when a row is."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .sampling import group_by_scenario


if TYPE_CHECKING:
    import datasets

    from ..thinker import ThinkerProcessor

logger = logging.getLogger(__name__)
Ask = Callable[[Any], list[dict[str, Any]]]


def keep_complete_scenarios(samples: datasets.Dataset) -> datasets.Dataset:
    """Remove incomplete scenarios, because all answers of a scenario are compared in one batch."""
    if not len(samples):
        raise ValueError("there are no samples to train on; build the data set, or name another split.")
    groups = group_by_scenario(samples["scenario_id"])
    size = max(Counter(map(len, groups)).items(), key=lambda item: (item[1], item[0]))[0]
    rows = [row for group in groups if len(group) == size for row in group]
    if num_skipped := sum(len(group) != size for group in groups):
        logger.warning("skipped %d of %d scenarios, which do not have %d answers.", num_skipped, len(groups), size)
    return samples.select(rows)


def make_prompt_rows(samples: datasets.Dataset, ask: Ask) -> datasets.Dataset:
    """Make rows of `prompt`, `score`, `sample_id` and `scenario_id` for `GRPOTrainer`."""
    return samples.with_transform(partial(_to_prompts, ask=ask))


def _to_prompts(batch: dict[str, list[Any]], *, ask: Ask) -> dict[str, list[Any]]:
    prompts = [ask(audio) for audio in batch["audio"]]
    return {"prompt": prompts, **{name: batch[name] for name in ("score", "sample_id", "scenario_id")}}


def make_target_rows(samples: datasets.Dataset, ask: Ask, *, reasoning: bool) -> datasets.Dataset:
    """Make rows of `prompt` and `target`, the column `target` or else the score in its tags, for `SFTTrainer`."""
    # No thoughts can be made from a score.
    if reasoning and "target" not in samples.column_names:
        raise ValueError(
            "the samples have no column 'target' with thoughts to imitate; set reasoning to false, or add the column."
        )
    return samples.with_transform(partial(_to_targets, ask=ask))


def _to_targets(batch: dict[str, list[Any]], *, ask: Ask) -> dict[str, list[Any]]:
    targets = batch.get("target") or [f"<score>{score}</score>" for score in batch["score"]]
    return {"prompt": [ask(audio) for audio in batch["audio"]], "target": targets}


class TargetCollator:
    """Collate prompts and targets; only the targets count in the loss."""

    def __init__(self, processor: ThinkerProcessor):
        self.processor = processor

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return `input_ids`, `attention_mask` and `labels`, padded on the right, and the recordings' features."""
        import torch

        batch = self.processor.apply_chat_template([row["prompt"] for row in rows], add_generation_prompt=True)
        answers = [self.processor.encode_text(row["target"] + "<|im_end|>") for row in rows]
        prompts = batch["input_ids"]
        padded = self.processor.pad(
            [np.array(prompt + answer) for prompt, answer in zip(prompts, answers, strict=True)], padding_side="right"
        )
        labels = torch.full_like(padded["input_ids"], -100)
        for row, prompt, answer in zip(labels, prompts, answers, strict=True):
            row[len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        return {**batch, **padded, "labels": labels}
