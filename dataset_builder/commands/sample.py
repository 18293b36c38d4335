"""`sample`: write the bundled sample from the Debian packages."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path


@dataclass(kw_only=True)
class SampleArguments:
    """What to read the sample from, and its size."""

    output_dir: Path = field(default=Path("sample"), metadata={"help": "folder to write"})
    amazon_queen: Path | None = field(default=None, metadata={"help": "queen.1c or its folder"})
    amazon_queen_limit: int | None = field(default=None, metadata={"help": "number of its episodes"})
    asterisk: Path | None = field(default=None, metadata={"help": "folder above asterisk/ and doc/"})
    max_bytes: int = field(default=22_000_000, metadata={"help": "size of the sample"})


def run(args: SampleArguments) -> None:
    """Write the sample."""
    from sdiareward.pairs.schema import make_stable_id

    from ..episodes import Episode
    from ..sources import amazon_queen, asterisk
    from ..sources.sample import write_sample

    items = (item for item in amazon_queen.read_episodes(args.amazon_queen) if isinstance(item, Episode))
    queen = sorted(items, key=lambda episode: make_stable_id(0, episode.name))
    read = (item for item in asterisk.read_episodes(args.asterisk) if isinstance(item, Episode))
    count = write_sample(chain(read, islice(queen, args.amazon_queen_limit)), args.output_dir, args.max_bytes)
    sys.stdout.write(f"{args.output_dir}: {count} episodes\n")
