"""`sdiareward calibrate`: fit what makes rewards of different domains comparable, and save it with the checkpoint."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sdiareward.common.escaping import escape_terminal

from .arguments import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.epilog = "Evaluate a validation split for this: what is fitted on the test split must not be tested on it."
    parser.add_argument("checkpoint", type=Path, help="folder of a checkpoint")
    parser.add_argument("eval_dir", type=Path, help="output_dir of a finished evaluation of it, by eval.py")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--output", type=Path, help="folder of the calibrated checkpoint; only config.json differs")
    where.add_argument("--in-place", action="store_true", help="replace the checkpoint's own config.json")


def run(args: argparse.Namespace) -> int:
    """Calibrate a checkpoint; return the exit status."""
    from sdiareward.evaluation.calibrate import calibrate_checkpoint, find_calibration_warnings
    from sdiareward.evaluation.results_files import read_evaluation

    try:
        evaluation = read_evaluation(args.eval_dir)
        doubts = find_calibration_warnings(evaluation, args.checkpoint)
        calibration = calibrate_checkpoint(args.checkpoint, evaluation, args.output)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error
    for doubt in doubts:
        print(escape_terminal(f"sdiareward: notice: {doubt}"), file=sys.stderr)
    print(escape_terminal(_as_lines(calibration)))
    print(args.output or args.checkpoint)
    return 0


def _as_lines(calibration: dict[str, Any]) -> str:
    subsets = calibration["subsets"]
    width = max(map(len, (*subsets, "subset")))
    lines = [f"{'subset':<{width}}  {'pairs':>6}  {'offset':>9}  {'temperature':>11}"]
    for name, fitted in subsets.items():
        numbers = f"{fitted['num_pairs']:>6}  {fitted['offset']:>+9.4f}  {fitted['temperature']:>11.4f}"
        lines.append(f"{name:<{width}}  {numbers}")
    return "\n".join(lines)
