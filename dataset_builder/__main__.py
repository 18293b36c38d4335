"""Command line of the dataset builder: `build` a data set from a YAML file, or write the bundled `sample`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from sdiareward.dataset_builder.builder import BuildConfig, SourceConfig, build
from sdiareward.dataset_builder.channel import ChannelSettings
from sdiareward.dataset_builder.pairing import SynthesizerChoice


_Settings = TypeVar("_Settings", SourceConfig, SynthesizerChoice, ChannelSettings)


def read_config(path: Path, overrides: Mapping[str, Any]) -> BuildConfig:
    """Read a build's YAML file.

    Args:
        path (`Path`): The file; its keys are the fields of `BuildConfig`.
        overrides (`Mapping`): Values that replace the file's; None is ignored.

    Raises:
        ValueError: A key is unknown or missing, or a value is out of range.
    """
    import yaml

    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{path}: holds {type(values).__name__}; a mapping of settings is needed.")
    values |= {key: value for key, value in overrides.items() if value is not None}
    _check_keys(values, BuildConfig, str(path))
    values["sources"] = tuple(_settings(SourceConfig, entry, f"{path}: sources") for entry in values["sources"])
    values["synthesizers"] = {
        criterion: _settings(SynthesizerChoice, entry, f"{path}: synthesizers.{criterion}")
        for criterion, entry in values["synthesizers"].items()
    }
    if values.get("channel") is not None:
        values["channel"] = _settings(ChannelSettings, values["channel"], f"{path}: channel")
    return BuildConfig(**values)


def _settings(kind: type[_Settings], values: Mapping[str, Any], label: str) -> _Settings:
    _check_keys(values, kind, label)
    arguments: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return kind(**arguments)


def _check_keys(values: Mapping[str, Any], kind: type, label: str) -> None:
    known = [field.name for field in fields(kind)]
    if unknown := sorted(set(values) - set(known)):
        raise ValueError(f"{label}: unknown keys {unknown}; known are {known}.")


def _build(args: argparse.Namespace) -> int:
    overrides = {"output_dir": args.output_dir, "num_workers": args.num_workers}
    config = read_config(args.config, overrides)
    report = build(config)
    print(json.dumps(report["pairs"], indent=1))
    print(
        f"{config.output_dir}: {sum(row['pairs'] for row in report['pairs'])} pairs, {len(report['skipped'])} skipped"
    )
    return 1 if args.strict and report["skipped"] else 0


def _sample(args: argparse.Namespace) -> int:
    from itertools import chain, islice

    from sdiareward.dataset_builder.schema import stable_id
    from sdiareward.dataset_builder.sources import amazon_queen, asterisk
    from sdiareward.dataset_builder.sources.sample import write_sample

    queen = sorted(amazon_queen.episodes(args.amazon_queen), key=lambda episode: stable_id(0, episode.name))
    chosen = chain(asterisk.episodes(args.asterisk), islice(queen, args.amazon_queen_limit))
    count = write_sample(chosen, args.output_dir, args.max_bytes)
    print(f"{args.output_dir}: {count} episodes")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sdiareward.dataset_builder", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("build", help="build a data set of preference pairs")
    command.add_argument("--config", type=Path, required=True, help="YAML file with the fields of BuildConfig")
    command.add_argument("--output_dir", help="folder to write instead of the config's")
    command.add_argument("--num_workers", type=int, help="processes")
    command.add_argument("--strict", action="store_true", help="exit with 1 when anything was skipped")
    command.set_defaults(run=_build)
    command = commands.add_parser("sample", help="write the bundled sample from the Debian packages")
    command.add_argument("--output_dir", type=Path, default=Path("sample"))
    command.add_argument("--amazon_queen", type=Path, help="queen.1c or its folder")
    command.add_argument("--amazon_queen_limit", type=int, help="how many episodes of it")
    command.add_argument("--asterisk", type=Path, help="folder above asterisk/ and doc/")
    command.add_argument("--max_bytes", type=int, default=22_000_000)
    command.set_defaults(run=_sample)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
