"""Fine-tune a judge on scores as a supervised baseline (Table 1, II); only the answer counts in the loss.

    sdiareward wavreward sft --config configs/wavreward-7b-sft.yaml --train lora

Each flag is also a key of the YAML; flags override it, unknown keys fail.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.commands import run_single

from ..commands import WAVREWARD
from .settings import JudgeArguments


if TYPE_CHECKING:
    import datasets
    from trl import SFTConfig, SFTTrainer

    from ..thinker import ThinkerProcessor


def train(args: JudgeArguments, training: SFTConfig) -> Path:
    """Train and save a judge; return its folder, `output_dir`."""
    from functools import partial

    from .settings import choose_prompt, load_judge_to_train, load_samples_to_train_on, run_training
    from .training_rows import make_target_rows

    ask = partial(choose_prompt(args).make_conversation, reasoning=args.reasoning)
    rows = make_target_rows(load_samples_to_train_on(args), ask, reasoning=args.reasoning)
    model, processor, adapters = load_judge_to_train(args, training)
    return run_training(make_trainer(model, processor, rows, training, adapters), processor, args, training)


def make_trainer(
    model: Any, processor: ThinkerProcessor, rows: datasets.Dataset, training: SFTConfig, adapters: Any = None
) -> SFTTrainer:
    """Make TRL's trainer for rows that are not tokenized, for which `training` is changed in place."""
    from trl import SFTTrainer

    from sdiareward.training.resuming import ResumableTrainer

    from .settings import ThinkerCheckpoints
    from .training_rows import TargetCollator

    class JudgeSFTTrainer(ResumableTrainer, ThinkerCheckpoints, SFTTrainer):
        """TRL's trainer that can resume from a thinker's checkpoint."""

    # TRL types the field as a string too, which it is on a command line only.
    given: Any = training.dataset_kwargs or {}
    training.dataset_kwargs = {**given, "skip_prepare_dataset": True}
    training.remove_unused_columns = False
    collator = TargetCollator(processor)
    return JudgeSFTTrainer(
        model, training, data_collator=collator, train_dataset=rows, processing_class=processor, peft_config=adapters
    )


def run(args: JudgeArguments, training: SFTConfig) -> None:
    print(train(args, training))


def main(argv: list[str] | None = None) -> int:
    return run_single(WAVREWARD["sft"], argv, prog="python -m sdiareward.judges.wavreward.train_sft")


if __name__ == "__main__":
    sys.exit(main())
