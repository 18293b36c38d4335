"""The commands of `python -m sdiareward.dataset_builder`, one module each: its arguments and what it runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


AUDIO_ROOT = {
    "action": "append",
    "metavar": "[SOURCE=]DIR",
    "help": "folder of the recordings, DIR/SOURCE/..., or the folder of one source; may be given several times",
}


@dataclass(kw_only=True)
class BuilderArguments:
    strict: bool = field(default=False, metadata={"help": "exit with 1 if anything was skipped"})
    dry_run: bool = field(default=False, metadata={"help": "only print the plan"})


def finish(folder: str | Path, report: Mapping[str, Any], strict: bool) -> int:
    from ..reports.data_card import summarise

    sys.stdout.write(f"{folder}: {summarise(report)}\n")
    return 1 if strict and report["skipped"] else 0
