"""`stats`: describe a data set: Table 1, hours, turns and durations, and the panels of Figure 5."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..formats.shards import SPLITS
from ..reports.statistics_report import compute_statistics, render_statistics, write_statistics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("folder", type=Path, help="data set folder")
    parser.add_argument("--output-dir", type=Path, help="where to write the tables and figures; printed without it")
    parser.add_argument("--split", choices=SPLITS, help="describe this split alone")


def run(args: argparse.Namespace) -> int:
    """Describe the data set."""
    if args.output_dir is None:
        sys.stdout.write(render_statistics(compute_statistics(args.folder, split=args.split)))
        return 0
    write_statistics(args.folder, args.output_dir, split=args.split)
    sys.stdout.write(f"{args.output_dir}: {', '.join(sorted(path.name for path in args.output_dir.iterdir()))}\n")
    return 0
