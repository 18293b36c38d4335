"""Train WavReward by reinforcement learning (section 3.1).

    sdiareward wavreward grpo --config configs/wavreward-7b.yaml

Advantages are TRL's: equation 4 with the sample standard deviation (`N - 1` in place of `N` under the root) plus 1e-4.
For a group of `N` they are those of the paper times `sqrt((N - 1) / N)`. The rewards of form and accuracy are added
before normalisation, so that both are part of `r_i`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.commands import parse_trl, run_guarded
from sdiareward.common.locks import lock_folder

from .settings import GRPOArguments


if TYPE_CHECKING:
    from trl import GRPOConfig


def train(args: GRPOArguments, training: GRPOConfig, callbacks: Any = None) -> Path:
    """Train and save a judge; return its folder, `output_dir`. `callbacks` are those of `transformers.Trainer`."""
    from functools import partial

    from .rewards import make_reward_functions
    from .settings import choose_prompt, load_judge_to_train, load_samples_to_train_on, run_training
    from .training_rows import make_prompt_rows
    from .wavreward_trainer import WavRewardTrainer

    samples = load_samples_to_train_on(args)
    model, processor, adapters = load_judge_to_train(args, training)
    rewards = make_reward_functions(reasoning=args.reasoning, accuracy=args.accuracy_reward, sigma=args.sigma)
    ask = partial(choose_prompt(args).make_conversation, reasoning=args.reasoning)
    trainer = WavRewardTrainer(
        model,
        rewards,
        training,
        scenario_ids=samples["scenario_id"],
        multi_sample=args.multi_sample,
        processing_class=processor,
        train_dataset=make_prompt_rows(samples, ask),
        peft_config=adapters,
        callbacks=callbacks,
    )
    return run_training(trainer, processor, args, training)


def main(argv: list[str] | None = None) -> int:
    prog = "sdiareward wavreward grpo"

    def run() -> None:
        from trl import GRPOConfig

        args, training = parse_trl((GRPOArguments, GRPOConfig), argv, prog=prog)
        with lock_folder(training.output_dir):
            print(train(args, training))

    return run_guarded(prog, run, "judges")


if __name__ == "__main__":
    sys.exit(main())
