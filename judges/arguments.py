"""The arguments of the nano judge's command, without the libraries that it imports."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from sdiareward.common.hub import make_revision_field


@dataclass(kw_only=True)
class NanoJudgeArguments:
    output_dir: Path = field(metadata={"positional": True, "help": "folder of the checkpoint"})
    whisper: str | None = field(default=None, metadata={"help": "folder or Hub id of Whisper tiny.en"})
    whisper_revision: str | None = make_revision_field("whisper", "Whisper")
    seed: int = field(default=0, metadata={"help": "seed of the random tensors"})


def build_nano(args: NanoJudgeArguments) -> None:
    from .nano_judge import build_nano_judge

    sys.stdout.write(f"{build_nano_judge(args.output_dir, whisper=args.whisper, seed=args.seed)}\n")
