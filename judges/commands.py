"""The commands of judges, which `sdiareward judge` and `sdiareward wavreward` run."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from sdiareward.common.arguments import Inherited
from sdiareward.common.commands import Command
from sdiareward.common.data_help import PAIR_HELP
from sdiareward.common.hub import make_revision_field


_MODULE = "sdiareward.judges"
_SHOWN = {
    "output_dir": "folder of the run and of the finished judge",
    "num_train_epochs": "passes over the training samples",
    "learning_rate": "largest learning rate",
    "per_device_train_batch_size": "samples per device and step",
    "save_steps": "steps between checkpoints",
    "bf16": "compute in bfloat16; needs a GPU, or --use_cpu",
    "use_cpu": "compute on the CPU",
    "seed": "seed of everything that is drawn",
}

WAVREWARD = {
    "sft": Command(
        f"{_MODULE}.wavreward.train:run_sft",
        "fine-tune a judge on scores, the supervised baseline (Table 1, II)",
        "Only the answer counts in the loss. --resume resumes from the newest checkpoint.",
        extra="judges",
        inherited=Inherited("trl:SFTConfig", "trl.SFTConfig", _SHOWN),
    ),
    "grpo": Command(
        f"{_MODULE}.wavreward.train:run_grpo",
        "train WavReward by reinforcement learning (section 3.1)",
        "--resume resumes from the newest checkpoint. docs/wavreward.md is the guide.",
        extra="judges",
        inherited=Inherited("trl:GRPOConfig", "trl.GRPOConfig", _SHOWN),
    ),
    "eval": Command(
        f"{_MODULE}.wavreward.evaluate:run",
        "evaluate WavReward or another model on ChatReward: Table 1 with intervals and baselines",
        "Predictions are written after each chunk, and the same command resumes after a kill.\n"
        "docs/wavreward.md is the guide.",
        extra="eval",
    ),
    "reasoning": Command(
        f"{_MODULE}.wavreward.evaluate:run_reasoning",
        "have another judge rate WavReward's thoughts as Good or Poor (appendix I)",
        "Answers are cached in cache_dir: the same command resumes after a kill.",
        extra="judges",
        locked=("predictions",),
    ),
}
JUDGE = {
    "list": Command(f"{_MODULE}.commands:list_judges", "list the zero-shot judges of a file of judges"),
    "eval": Command(
        "sdiareward.eval:run",
        "evaluate a judge on pairs; the same as `sdiareward eval --judge NAME`",
        "docs/judges.md is the guide.\n\n" + PAIR_HELP,
        extra="eval",
    ),
    "nano": Command(f"{_MODULE}.commands:build_nano", "write the untrained nano judge, a thinker for tests"),
}


@dataclass(kw_only=True)
class ListArguments:
    judges_file: Path | None = field(
        default=None, metadata={"help": "YAML of judges (default: configs/judges.yaml of the package)"}
    )


def list_judges(args: ListArguments) -> None:
    from sdiareward.common.settings import read_mapping, require_mapping

    from .settings import JUDGES_FILE

    path = args.judges_file or JUDGES_FILE
    judges = read_mapping(path)
    width = max(map(len, map(str, judges)), default=0)
    for name, settings in judges.items():
        require_mapping(settings, f"{path}: {name}")
        shown = f"{name!s:<{width}}  {settings.get('backend', '')}  {settings.get('model', '')}"
        sys.stdout.write(f"{shown.rstrip()}\n")


@dataclass(kw_only=True)
class NanoJudgeArguments:
    output_dir: Path = field(metadata={"positional": True, "help": "folder of the checkpoint"})
    whisper: str | None = field(default=None, metadata={"help": "folder or Hub id of Whisper tiny.en"})
    whisper_revision: str | None = make_revision_field("whisper", "Whisper")
    seed: int = field(default=0, metadata={"help": "seed of the random tensors"})


def build_nano(args: NanoJudgeArguments) -> None:
    from .thinker import build_nano_judge

    sys.stdout.write(f"{build_nano_judge(args.output_dir, whisper=args.whisper, seed=args.seed)}\n")
