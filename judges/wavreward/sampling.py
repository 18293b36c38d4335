"""Choose the prompts of a GRPO batch: all answers of a scenario, or one at random (section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler


def group_by_scenario(scenario_ids: Sequence[str]) -> list[list[int]]:
    """Return the rows of each scenario, in the order in which scenarios appear."""
    groups: dict[str, list[int]] = {}
    for row, scenario_id in enumerate(scenario_ids):
        groups.setdefault(scenario_id, []).append(row)
    return list(groups.values())


class ScenarioSampler(Sampler[int]):
    """Yield rows for `GRPOTrainer`: whole scenarios, each answer repeated for its group."""

    def __init__(
        self,
        scenarios: Sequence[Sequence[int]],
        *,
        num_generations: int,
        prompts_per_batch: int,
        # Steps that use each batch.
        repeat_count: int,
        # Without it, each epoch takes one answer of each scenario at random (section 4.4, `w/o multi samples`).
        multi_sample: bool = True,
        # Seed and epoch alone determine the order, so that a resumed run sees the same rows.
        seed: int = 0,
    ):
        sizes = {len(rows) for rows in scenarios} if multi_sample else {1}
        if len(sizes) != 1:
            raise ValueError(
                f"scenarios have {sorted(sizes)} answers; all must have the same number: remove the others."
            )
        size = sizes.pop()
        if prompts_per_batch % size:
            raise ValueError(
                f"a generation batch holds {prompts_per_batch} prompts, which is no multiple of a scenario's {size} "
                "answers; change per_device_train_batch_size, steps_per_generation or num_generations."
            )
        if len(scenarios) < prompts_per_batch // size:
            raise ValueError(
                f"there are {len(scenarios)} scenarios, and a generation batch takes {prompts_per_batch // size}; "
                "make it smaller or give more."
            )
        self.scenarios = scenarios
        self.num_generations = num_generations
        self.scenarios_per_batch = prompts_per_batch // size
        self.repeat_count = repeat_count
        self.multi_sample = multi_sample
        self.seed = seed
        self.epoch = 0
        self._prompts_per_batch = prompts_per_batch

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
        return self._num_batches * self._prompts_per_batch * self.num_generations * self.repeat_count

    @property
    def _num_batches(self) -> int:
        return len(self.scenarios) // self.scenarios_per_batch
