"""`chatreward`: build the scored dialogues that WavReward is trained on, or add the scores of experts to them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class BuildArguments:
    config: Path = field(metadata={"help": "YAML file: the fields of ChatRewardConfig"})
    output_dir: str | None = field(default=None, metadata={"help": "folder to write instead of the config's"})
    num_workers: int | None = field(default=None, metadata={"help": "processes"})
    strict: bool = field(default=False, metadata={"help": "exit with 1 when a sample is missing"})


def build(args: BuildArguments) -> int:
    from ..chatreward import builder
    from ..chatreward.voices import read_config

    config = read_config(args.config, {"output_dir": args.output_dir, "num_workers": args.num_workers})
    report = builder.build(config)
    sys.stdout.write(f"{config.output_dir}: {summarise(report)}\n")
    return 1 if args.strict and report["skipped"] else 0


def summarise(report: dict[str, Any]) -> str:
    """Return the summary of a build: samples by split, rejected lines, and missing samples by reason."""
    rejected = ", ".join(f"{kind} {count}" for kind, count in report["rejected_lines"].items())
    samples, hours = (sum(row[name] for row in report["samples"]) for name in ("samples", "hours"))
    lines = [
        f"{samples} samples, {hours:.2f} h",
        f"lines rejected and tried with other voices: {rejected or 'none'}",
        f"{len(report['skipped'])} samples missing",
    ]
    return "\n".join([*lines, *(f"  {kind}: {count}" for kind, count in report["drops"].items())])


@dataclass(kw_only=True)
class RateArguments:
    folder: Path = field(metadata={"positional": True, "help": "data set folder"})
    ratings: Path = field(metadata={"help": "CSV: sample_id, rater, score and, to reject a sample, wrong"})
    output_dir: Path = field(metadata={"help": "folder to write"})


def rate(args: RateArguments) -> None:
    from ..chatreward.builder import merge_experts

    report = merge_experts(args.folder, args.ratings, args.output_dir)
    experts = {name: value for name, value in report["experts"].items() if name != "disagreements"}
    sys.stdout.write(f"{args.output_dir}: {experts}\n{len(report['bad_rows'])} rows cannot be used\n")
    for row in report["bad_rows"]:
        sys.stdout.write(f"  {row['item']}: {row['reason']}\n")
