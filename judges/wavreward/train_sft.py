"""Fine-tune a judge on scores as a supervised baseline (Table 1, II); only the answer counts in the loss.

    sdiareward wavreward sft --config configs/wavreward-7b-sft.yaml --train lora

Each flag is also a key of the YAML; flags override it, unknown keys fail.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.commands import parse_trl, run_guarded
from sdiareward.common.locks import lock_folder

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


def main(argv: list[str] | None = None) -> int:
    prog = "sdiareward wavreward sft"

    def run() -> None:
        from trl import SFTConfig

        args, training = parse_trl((JudgeArguments, SFTConfig), argv, prog=prog)
        with lock_folder(training.output_dir):
            print(train(args, training))

    return run_guarded(prog, run, "judges")


if __name__ == "__main__":
    sys.exit(main())
