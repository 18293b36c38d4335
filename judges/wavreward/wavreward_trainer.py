"""The trainers of judges: GRPO with recordings and batches of whole scenarios, and SFT on scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch.utils.data import Sampler
from trl import GRPOConfig, SFTConfig, SFTTrainer

from sdiareward.training.resuming import ResumableTrainer
from sdiareward.training.trainer import EpochOfSampler

from ..thinker import ThinkerProcessor, load_thinker_model
from .audio_grpo import AudioGRPOTrainer


def group_by_scenario(scenario_ids: Sequence[str]) -> list[list[int]]:
    """Return the rows of each scenario, in the order in which scenarios appear."""
    groups: dict[str, list[int]] = {}
    for row, scenario_id in enumerate(scenario_ids):
        groups.setdefault(scenario_id, []).append(row)
    return list(groups.values())


@dataclass(eq=False)
class ScenarioSampler(Sampler[int]):
    """Yield rows for `GRPOTrainer`: whole scenarios, each answer repeated for its group."""

    scenarios: Sequence[Sequence[int]]
    num_generations: int
    prompts_per_batch: int
    repeat_count: int  # Steps per batch.
    # If False, each epoch uses one random answer per scenario (section 4.4, `w/o multi samples`).
    multi_sample: bool = True
    # Only seed and epoch determine the order, so that a resumed run sees the same rows.
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        sizes = {len(rows) for rows in self.scenarios} if self.multi_sample else {1}
        if len(sizes) != 1:
            needed = "all must have the same number: remove the others."
            raise ValueError(f"scenarios have {sorted(sizes)} answers; {needed}")
        size, given = sizes.pop(), self.prompts_per_batch
        if given % size:
            found = f"a generation batch has {given} prompts, not a multiple of a scenario's {size} answers"
            remedy = "change per_device_train_batch_size, steps_per_generation or num_generations"
            raise ValueError(f"{found}; {remedy}.")
        self.scenarios_per_batch = given // size
        if len(self.scenarios) < self.scenarios_per_batch:
            found = f"there are {len(self.scenarios)} scenarios, but a generation batch takes {given // size}"
            raise ValueError(f"{found}; make it smaller, or add scenarios.")

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng([self.seed, self.epoch])
        order = generator.permutation(len(self.scenarios))
        answers = [rows if self.multi_sample else [generator.choice(rows)] for rows in self.scenarios]
        for batch in range(self._num_batches):
            first = batch * self.scenarios_per_batch
            rows = [row for index in order[first : first + self.scenarios_per_batch] for row in answers[index]]
            for _ in range(self.repeat_count):
                for row in rows:
                    yield from [int(row)] * self.num_generations

    def __len__(self) -> int:
        return self._num_batches * self.prompts_per_batch * self.num_generations * self.repeat_count

    @property
    def _num_batches(self) -> int:
        return len(self.scenarios) // self.scenarios_per_batch


class ThinkerCheckpoints:
    """Mixin for trainers that resume from a thinker's checkpoint; put it before the trainer's class."""

    # `transformers.Trainer` loads by the names in memory. A thinker's tensors have other names on disk, so the run
    # would resume from the initial weights.
    def _load_from_checkpoint(self: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        model = model or self.model
        if isinstance(model, PeftModel) or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
            return
        model.load_state_dict(load_thinker_model(resume_from_checkpoint).state_dict())


class WavRewardTrainer(ResumableTrainer, ThinkerCheckpoints, AudioGRPOTrainer):
    """Train a judge with all answers of a scenario in one batch or, without `multi_sample`, a random one."""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: GRPOConfig,
        *,
        # Scenario of each row of `train_dataset`.
        scenario_ids: Sequence[str],
        multi_sample: bool = True,
        **kwargs: Any,
    ):
        self._scenarios = group_by_scenario(scenario_ids)
        self._multi_sample = multi_sample
        super().__init__(model, reward_funcs, args, load_reference=load_thinker_model, **kwargs)
        # Created early, so that wrong sizes raise at once.
        self.sampler = self._get_train_sampler()
        self.add_callback(EpochOfSampler(self))

    def _get_train_sampler(self, dataset: Any = None) -> ScenarioSampler:
        args: Any = self.args
        self.sampler = ScenarioSampler(
            self._scenarios,
            num_generations=args.num_generations,
            prompts_per_batch=args.generation_batch_size // args.num_generations,
            repeat_count=args.num_iterations * args.steps_per_generation,
            multi_sample=self._multi_sample,
            seed=args.seed,
        )
        return self.sampler


class JudgeSFTTrainer(ResumableTrainer, ThinkerCheckpoints, SFTTrainer):
    """TRL's trainer for rows that are not tokenized; changes `args` in place."""

    def __init__(self, model: Any, args: SFTConfig, *, processing_class: Any, **kwargs: Any):
        # TRL also types the field as a string, but only a command line gives one.
        given: Any = args.dataset_kwargs or {}
        args.dataset_kwargs = {**given, "skip_prepare_dataset": True}
        args.remove_unused_columns = False
        collator = TargetCollator(processing_class)
        super().__init__(model, args, data_collator=collator, processing_class=processing_class, **kwargs)


class TargetCollator:
    """Collate prompts and targets; only targets count in the loss."""

    def __init__(self, processor: ThinkerProcessor):
        self.processor = processor

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return `input_ids`, `attention_mask` and `labels`, padded on the right, and the recordings' features."""
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
