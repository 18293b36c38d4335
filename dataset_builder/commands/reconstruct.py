"""`reconstruct`: rebuild a released data set from the user's own audio."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..release.reconstruct import reconstruct
from ..release.recorded_parts import AudioRoots
from ..settings import read_mapping
from . import add_audio_root_argument, add_common_arguments, finish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_common_arguments(parser)
    parser.add_argument("folder", type=Path, help="folder of the metadata release")
    parser.add_argument("--output-dir", type=Path, required=True, help="data set folder to write")
    add_audio_root_argument(parser)
    parser.add_argument(
        "--allow-reencoded", action="store_true", help="take recordings that went through another codec"
    )
    parser.add_argument(
        "--synthesizer-options", type=Path, help="YAML file: options by synthesizer, such as an endpoint's address"
    )
    parser.add_argument("--num-workers", type=int, default=2, help="processes")


def run(args: argparse.Namespace) -> int:
    """Rebuild the release."""
    report = reconstruct(
        args.folder,
        AudioRoots.parse(args.audio_root),
        args.output_dir,
        allow_reencoded=args.allow_reencoded,
        synthesizer_options=read_mapping(args.synthesizer_options) if args.synthesizer_options else None,
        num_workers=args.num_workers,
        dry_run=args.dry_run,
    )
    return finish(args.output_dir, report, args.strict)
