"""Command line of ChatReward: scenarios, speech, expert scores, statistics.

    sdiareward build chatreward COMMAND --help

The same command resumes a run that was interrupted or killed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.common.commands import Command, run_command


_MODULE = "sdiareward.dataset_builder.recipes.chatreward.__main__"
_COMMANDS = {
    "build": Command(f"{_MODULE}:build", "synthesise the scenarios, filter, and write the data set"),
    "write": Command(f"{_MODULE}:write", "let a language model write more scenarios"),
    "rate": Command(f"{_MODULE}:rate", "write the data set again with the scores of experts"),
    "stats": Command(f"{_MODULE}:stats", "describe a data set: Table 4, figures 6 and 7"),
}
CHATREWARD = Command(
    _COMMANDS,
    "build ChatReward, the scored dialogues that WavReward is trained on",
    "The same command resumes a run that was interrupted or killed.",
    extra="build",
    default="build",
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    prog = "python -m sdiareward.dataset_builder.recipes.chatreward"
    return run_command(_COMMANDS, argv, prog=prog, description=__doc__, extra="build")


@dataclass(kw_only=True)
class BuildArguments:
    """Which data set to build where."""

    config: Path = field(metadata={"help": "YAML file: the fields of ChatRewardConfig"})
    output_dir: str | None = field(default=None, metadata={"help": "folder to write instead of the config's"})
    num_workers: int | None = field(default=None, metadata={"help": "processes"})
    strict: bool = field(default=False, metadata={"help": "exit with 1 when a sample is missing"})


def build(args: BuildArguments) -> int:
    """Build the data set of the config."""
    from . import builder
    from .settings import read_config

    config = read_config(args.config, {"output_dir": args.output_dir, "num_workers": args.num_workers})
    report = builder.build(config)
    sys.stdout.write(f"{config.output_dir}: {summarise(report)}\n")
    return 1 if args.strict and report["skipped"] else 0


def summarise(report: dict[str, Any]) -> str:
    """Return the final summary of a build: samples by split, rejected lines, and what is missing by reason."""
    counts = report["samples"].items()
    lines = [", ".join(f"{name} {count['samples']} samples, {count['hours']:.2f} h" for name, count in counts)]
    rejected = ", ".join(f"{kind} {count}" for kind, count in report["rejected_lines"].items())
    lines.append(f"lines rejected and tried with other voices: {rejected or 'none'}")
    lines.append(f"{len(report['skipped'])} samples missing")
    lines += [f"  {kind}: {count}" for kind, count in report["drops"].items()]
    return "\n".join(lines)


@dataclass(kw_only=True)
class WriteArguments:
    """How many scenarios a language model writes, and where to."""

    output: Path = field(metadata={"help": "JSONL file of scenarios"})
    count: int = field(metadata={"help": "scenarios in all"})
    endpoint: dict[str, Any] = field(metadata={"help": "fields of ChatSettings"})
    seed: int = field(default=0, metadata={"help": "seed of the topics"})
    license: str = field(default="LicenseRef-model-output", metadata={"help": "licence of the scenarios"})
    prompt_file: str | None = field(
        default=None, metadata={"help": "prompts of the writer instead of the shipped ones (configs/prompts.yaml)"}
    )
    max_failed: float = field(
        default=0.5, metadata={"help": "largest share of the scenarios that the model may fail to write"}
    )


def write(args: WriteArguments) -> int:
    """Let a language model write more scenarios."""
    from sdiareward.common.settings import make_settings
    from sdiareward.common.llm.client import ChatClient, ChatSettings
    from sdiareward.pairs.prompts import read_prompt_file

    from .scenarios import read_scenarios
    from .scenarios_by_llm import write_scenarios

    prompts = read_prompt_file(args.prompt_file)
    client = ChatClient(
        make_settings(ChatSettings, args.endpoint, "endpoint"), args.output.with_name(f"{args.output.name}-answers")
    )
    skipped = write_scenarios(
        args.output,
        client,
        args.count,
        seed=args.seed,
        license=args.license,
        prompts=prompts,
        max_failed=args.max_failed,
    )
    done = len(read_scenarios(args.output)) if args.output.is_file() else 0
    sys.stdout.write(f"{args.output}: {done} scenarios, {len(skipped)} missing; {client.usage}\n")
    for skip in skipped:
        sys.stdout.write(f"  {skip.kind}: {skip.item}: {skip.reason}\n")
    return 1 if skipped else 0


@dataclass(kw_only=True)
class RateArguments:
    """Which data set gets which scores of experts."""

    folder: Path = field(metadata={"positional": True, "help": "data set folder"})
    ratings: Path = field(metadata={"help": "CSV: sample_id, rater, score"})
    output_dir: Path = field(metadata={"help": "folder to write"})


def rate(args: RateArguments) -> None:
    """Write the data set again with the scores of experts."""
    from .experts import merge_experts

    report = merge_experts(args.folder, args.ratings, args.output_dir)
    experts = {name: value for name, value in report["experts"].items() if name != "disagreements"}
    sys.stdout.write(f"{args.output_dir}: {experts}\n{len(report['bad_rows'])} rows cannot be used\n")
    for row in report["bad_rows"]:
        sys.stdout.write(f"  {row['item']}: {row['reason']}\n")


@dataclass(kw_only=True)
class StatsArguments:
    """Which data set to describe."""

    folder: Path = field(metadata={"positional": True, "help": "data set folder"})
    output_dir: Path | None = field(
        default=None, metadata={"help": "folder for the tables and figures (default: the tables are printed)"}
    )


def stats(args: StatsArguments) -> None:
    """Describe the data set."""
    from .statistics_report import compute_statistics, render_statistics, write_statistics

    if args.output_dir is None:
        sys.stdout.write(render_statistics(compute_statistics(args.folder)))
        return
    write_statistics(args.folder, args.output_dir)
    sys.stdout.write(f"{args.output_dir}: {', '.join(sorted(path.name for path in args.output_dir.iterdir()))}\n")


if __name__ == "__main__":
    sys.exit(main())
