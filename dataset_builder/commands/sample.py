"""`sample`: write the bundled sample from the Debian packages."""

from __future__ import annotations

import argparse
import sys
from itertools import chain, islice
from pathlib import Path

from sdiareward.dataset_builder.episodes import Episode
from sdiareward.pairs.schema import stable_id

from ..sources import amazon_queen, asterisk
from ..sources.sample import write_sample


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--output-dir", type=Path, default=Path("sample"))
    parser.add_argument("--amazon-queen", type=Path, help="queen.1c or its folder")
    parser.add_argument("--amazon-queen-limit", type=int, help="how many episodes of it")
    parser.add_argument("--asterisk", type=Path, help="folder above asterisk/ and doc/")
    parser.add_argument("--max-bytes", type=int, default=22_000_000)


def run(args: argparse.Namespace) -> int:
    """Write the sample."""
    items = (item for item in amazon_queen.episodes(args.amazon_queen) if isinstance(item, Episode))
    queen = sorted(items, key=lambda episode: stable_id(0, episode.name))
    read = (item for item in asterisk.episodes(args.asterisk) if isinstance(item, Episode))
    count = write_sample(chain(read, islice(queen, args.amazon_queen_limit)), args.output_dir, args.max_bytes)
    sys.stdout.write(f"{args.output_dir}: {count} episodes\n")
    return 0
