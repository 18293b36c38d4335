"""The trainer of WavReward: GRPO with recordings and batches of whole scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trl import GRPOConfig

from sdiareward.training.resuming import ResumableTrainer
from sdiareward.training.trainer import EpochOfSampler

from ..thinker import load_thinker_model
from .audio_grpo import AudioGRPOTrainer
from .sampling import ScenarioSampler, group_by_scenario
from .settings import ThinkerCheckpoints


class WavRewardTrainer(ResumableTrainer, ThinkerCheckpoints, AudioGRPOTrainer):
    """Train a judge with all answers of a scenario in one batch, or with `multi_sample` off, one at random."""

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
        # Created early, so that wrong sizes raise before any computation.
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
