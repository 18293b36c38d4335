"""Command line of ChatReward: scenarios, speech, expert scores, statistics.

    python -m sdiareward.dataset_builder.recipes.chatreward COMMAND --help

A command that was interrupted or killed resumes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sdiareward.common.escaping import escape_terminal
from sdiareward.common.optional_dependencies import missing_extra_hint
from sdiareward.llm.client import EndpointError

from ...pipeline.components import ComponentError


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (ValueError, FileNotFoundError, ImportError, ComponentError, EndpointError) as error:
        sys.stderr.write(escape_terminal(f"error: {' '.join(missing_extra_hint(error, 'build').split())}\n"))
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run the same command again to resume.\n")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sdiareward.dataset_builder.recipes.chatreward",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = _add(commands, "build", _build, "have scenarios spoken, filter, and write the data set")
    build.add_argument("--config", type=Path, required=True, help="YAML file: the fields of ChatRewardConfig")
    build.add_argument("--output_dir", help="folder to write instead of the config's")
    build.add_argument("--num_workers", type=int, help="processes")
    build.add_argument("--strict", action="store_true", help="exit with 1 when a sample is missing")
    write = _add(commands, "write", _write, "have a language model write more scenarios")
    write.add_argument("--config", type=Path, required=True, help="YAML file: output, count, endpoint, seed, license")
    rate = _add(commands, "rate", _rate, "write the data set again with the scores of experts")
    rate.add_argument("folder", type=Path, help="data set folder")
    rate.add_argument("--ratings", type=Path, required=True, help="CSV: sample_id, rater, score")
    rate.add_argument("--output_dir", type=Path, required=True, help="folder to write")
    stats = _add(commands, "stats", _stats, "describe a data set: Table 4, figures 6 and 7")
    stats.add_argument("folder", type=Path, help="data set folder")
    stats.add_argument("--output_dir", type=Path, help="where to write tables and figures; printed without it")
    return parser


def _add(commands: Any, name: str, run: Any, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=description, description=description, allow_abbrev=False
    )
    parser.set_defaults(run=run)
    return parser


def _build(args: argparse.Namespace) -> int:
    from .builder import build
    from .settings import read_config

    config = read_config(args.config, {"output_dir": args.output_dir, "num_workers": args.num_workers})
    report = build(config)
    sys.stdout.write(f"{config.output_dir}: {summarize(report)}\n")
    return 1 if args.strict and report["skipped"] else 0


def summarize(report: dict[str, Any]) -> str:
    """Return the final summary of a build: samples by split, rejected lines, and what is missing by reason."""
    counts = report["samples"].items()
    lines = [", ".join(f"{name} {count['samples']} samples, {count['hours']:.2f} h" for name, count in counts)]
    rejected = ", ".join(f"{kind} {count}" for kind, count in report["rejected_lines"].items())
    lines.append(f"lines rejected and tried with other voices: {rejected or 'none'}")
    lines.append(f"{len(report['skipped'])} samples missing")
    lines += [f"  {kind}: {count}" for kind, count in report["drops"].items()]
    return "\n".join(lines)


def _write(args: argparse.Namespace) -> int:
    from sdiareward.llm.client import ChatClient, ChatSettings

    from ...settings import make_settings, read_mapping
    from .scenarios import read_scenarios
    from .scenarios_by_llm import write_scenarios

    values = read_mapping(args.config)
    if missing := [name for name in ("output", "count", "endpoint") if name not in values]:
        raise ValueError(f"{args.config}: keys {missing} are missing.")
    if unknown := sorted(set(values) - {"output", "count", "endpoint", "seed", "license"}):
        raise ValueError(f"{args.config}: unknown keys {unknown}.")
    output, count = Path(values.pop("output")), int(values.pop("count"))
    endpoint = make_settings(ChatSettings, values.pop("endpoint"), f"{args.config}: endpoint")
    client = ChatClient(endpoint, output.with_name(f"{output.name}-answers"))
    skipped = write_scenarios(output, client, count, **values)
    done = len(read_scenarios(output)) if output.is_file() else 0
    sys.stdout.write(f"{output}: {done} scenarios, {len(skipped)} missing; {client.usage}\n")
    for skip in skipped:
        sys.stdout.write(f"  {skip.kind}: {skip.item}: {skip.reason}\n")
    return 1 if skipped else 0


def _rate(args: argparse.Namespace) -> int:
    from .experts import merge_experts

    report = merge_experts(args.folder, args.ratings, args.output_dir)
    experts = {name: value for name, value in report["experts"].items() if name != "disagreements"}
    sys.stdout.write(f"{args.output_dir}: {experts}\n{len(report['bad_rows'])} rows were of no use\n")
    for row in report["bad_rows"]:
        sys.stdout.write(f"  {row['item']}: {row['reason']}\n")
    return 0


def _stats(args: argparse.Namespace) -> int:
    from .statistics_report import compute_statistics, render_statistics, write_statistics

    if args.output_dir is None:
        sys.stdout.write(render_statistics(compute_statistics(args.folder)))
    else:
        write_statistics(args.folder, args.output_dir)
        sys.stdout.write(f"{args.output_dir}: {', '.join(sorted(path.name for path in args.output_dir.iterdir()))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
