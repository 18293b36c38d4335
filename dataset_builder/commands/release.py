"""`release`: write the audio-free metadata release of a data set."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..release.scrubbing import DEFAULT_REGIONS
from . import AUDIO_ROOT, BuilderArguments, finish


_COLUMNS = ("criterion", "subset", "source", "synthesizer")


@dataclass(kw_only=True)
class ReleaseArguments(BuilderArguments):
    folder: Path = field(metadata={"positional": True, "help": "data set folder, as build writes it"})
    output_dir: Path = field(metadata={"help": "folder to write"})
    audio_root: list[str] = field(default_factory=list, metadata=AUDIO_ROOT)
    names: Path | None = field(
        default=None, metadata={"help": "text file of names to remove, one per line (uploaders)"}
    )
    phone_region: list[str] | None = field(
        default=None,
        metadata={
            "action": "append",
            "help": f"country of phone numbers without + (default: {' '.join(DEFAULT_REGIONS)})",
        },
    )


def run(args: ReleaseArguments) -> int:
    from ..release.release import AudioRoots, release
    from ..reports.data_card import summarise_skipped
    from ..shards import count_pairs, read_rows

    if args.dry_run:
        report = {"pairs": count_pairs(read_rows(args.folder, _COLUMNS)), **summarise_skipped([])}
    else:
        report = release(
            args.folder,
            args.output_dir,
            audio_roots=AudioRoots.parse(args.audio_root),
            names=args.names.read_text(encoding="utf-8").splitlines() if args.names else (),
            regions=tuple(args.phone_region or DEFAULT_REGIONS),
        )
    return finish(args.output_dir, report, args.strict)
