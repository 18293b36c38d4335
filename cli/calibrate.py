"""`sdiareward calibrate`: make rewards of different domains comparable, and save the calibration with the model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class CalibrateArguments:
    checkpoint: Path = field(metadata={"positional": True, "help": "folder of a checkpoint"})
    eval_dir: Path = field(
        metadata={"positional": True, "help": "output_dir of a finished evaluation of it, by `sdiareward eval`"}
    )
    output: Path | None = field(
        default=None,
        metadata={"flag": "output_dir", "help": "folder of the calibrated checkpoint; only config.json differs"},
    )
    in_place: bool = field(default=False, metadata={"help": "replace the checkpoint's own config.json"})

    def __post_init__(self) -> None:
        if (self.output is None) != self.in_place:
            raise ValueError("give either --output_dir, a folder for the calibrated checkpoint, or --in_place.")


def run(args: CalibrateArguments) -> None:
    from sdiareward.evaluation.calibrate import calibrate_checkpoint, find_calibration_warnings
    from sdiareward.evaluation.results_files import read_evaluation

    evaluation = read_evaluation(args.eval_dir)
    warnings = find_calibration_warnings(evaluation, args.checkpoint)
    calibration = calibrate_checkpoint(args.checkpoint, evaluation, args.output)
    for warning in warnings:
        print(f"sdiareward: notice: {warning}", file=sys.stderr)
    print(_render_table(calibration))
    print(args.output or args.checkpoint)


def _render_table(calibration: dict[str, Any]) -> str:
    subsets = calibration["subsets"]
    width = max(map(len, (*subsets, "subset")))
    lines = [f"{'subset':<{width}}  {'pairs':>6}  {'offset':>9}  {'temperature':>11}"]
    for name, fitted in subsets.items():
        numbers = f"{fitted['num_pairs']:>6}  {fitted['offset']:>+9.4f}  {fitted['temperature']:>11.4f}"
        lines.append(f"{name:<{width}}  {numbers}")
    return "\n".join(lines)
