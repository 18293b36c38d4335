"""`build`: sources -> splits -> pairs -> Parquet."""

from __future__ import annotations

import argparse

from ..builder import build
from ..settings import read_build_config
from . import add_common_arguments, finish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_common_arguments(parser, config="the fields of BuildConfig")
    parser.add_argument("--output-dir", help="folder to write instead of the config's")
    parser.add_argument("--num-workers", type=int, help="processes")
    parser.add_argument("--engine", choices=("datasets", "ray"), help="what runs the pipeline of long recordings")


def run(args: argparse.Namespace) -> int:
    """Build the data set of the config."""
    overrides = {"output_dir": args.output_dir, "num_workers": args.num_workers, "engine": args.engine}
    config = read_build_config(args.config, overrides)
    return finish(config.output_dir, build(config, dry_run=args.dry_run), args.strict)
