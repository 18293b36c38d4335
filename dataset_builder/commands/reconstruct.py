"""`reconstruct`: rebuild a released data set from the user's own audio."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sdiareward.common.settings import read_mapping

from . import AUDIO_ROOT, BuilderArguments, finish


@dataclass(kw_only=True)
class ReconstructArguments(BuilderArguments):
    folder: Path = field(metadata={"positional": True, "help": "folder of the metadata release"})
    output_dir: Path = field(metadata={"help": "data set folder to write"})
    audio_root: list[str] = field(default_factory=list, metadata=AUDIO_ROOT)
    allow_reencoded: bool = field(
        default=False, metadata={"help": "accept recordings that were encoded with another codec"}
    )
    synthesizer_options: Path | None = field(
        default=None, metadata={"help": "YAML file: options by synthesizer, such as an endpoint's address"}
    )
    num_workers: int = field(default=2, metadata={"help": "processes"})


def run(args: ReconstructArguments) -> int:
    from ..release.release import AudioRoots, reconstruct

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
