"""`stats`: describe a data set: Table 1, hours, turns and durations, and the panels of Figure 5."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(kw_only=True)
class StatsArguments:
    folder: Path = field(metadata={"positional": True, "help": "data set folder"})
    output_dir: Path | None = field(
        default=None, metadata={"help": "folder for the tables and figures (default: the tables are printed)"}
    )
    split: Literal["train", "validation", "test"] | None = field(
        default=None, metadata={"help": "describe this split alone"}
    )


def run(args: StatsArguments) -> None:
    from ..reports.data_card import compute_statistics, render_statistics, write_statistics

    if args.output_dir is None:
        sys.stdout.write(render_statistics(compute_statistics(args.folder, split=args.split)))
        return
    write_statistics(args.folder, args.output_dir, split=args.split)
    sys.stdout.write(f"{args.output_dir}: {', '.join(sorted(path.name for path in args.output_dir.iterdir()))}\n")
