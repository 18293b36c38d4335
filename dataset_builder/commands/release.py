"""`release`: write the audio-free metadata release of a data set."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..formats.shards import count_pairs, read_rows
from ..release.recorded_parts import AudioRoots
from ..release.release import release
from ..release.scrubbing import DEFAULT_REGIONS
from ..reports.data_card import summarize_skipped
from . import add_audio_root_argument, add_common_arguments, finish


_COLUMNS = ("criterion", "subset", "source", "synthesizer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_common_arguments(parser)
    parser.add_argument("folder", type=Path, help="data set folder, as build writes it")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder to write")
    add_audio_root_argument(parser)
    parser.add_argument("--names", type=Path, help="text file of names to take out, one a line (uploaders)")
    parser.add_argument(
        "--phone-region", action="append", help=f"country of phone numbers without +; {' '.join(DEFAULT_REGIONS)}"
    )


def run(args: argparse.Namespace) -> int:
    """Write the release."""
    if args.dry_run:
        report = {"pairs": count_pairs(read_rows(args.folder, _COLUMNS)), **summarize_skipped([])}
    else:
        report = release(
            args.folder,
            args.output_dir,
            audio_roots=AudioRoots.parse(args.audio_root),
            names=args.names.read_text(encoding="utf-8").splitlines() if args.names else (),
            regions=tuple(args.phone_region or DEFAULT_REGIONS),
        )
    return finish(args.output_dir, report, args.strict)
