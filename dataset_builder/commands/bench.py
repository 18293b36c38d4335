"""`bench`: draw ESDR-Bench from a data set and isolate it from training (appendix B.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..pairing.splits import BenchSettings, draw_bench, make_bench
from ..reports.data_card import summarise_skipped
from ..shards import count_pairs
from . import BuilderArguments, finish


@dataclass(kw_only=True)
class BenchArguments(BuilderArguments):
    folder: Path = field(metadata={"positional": True, "help": "data set folder, as build or filter writes it"})
    output_dir: Path = field(metadata={"help": "folder to write"})


def run(args: BenchArguments, settings: BenchSettings) -> int:
    if not args.dry_run:
        return finish(args.output_dir, make_bench(args.folder, args.output_dir, settings), args.strict)
    labels, assignment, skipped = draw_bench(args.folder, settings)
    taken = ((assignment[label["pair_id"]], label) for label in labels if label["pair_id"] in assignment)
    return finish(args.output_dir, {"pairs": count_pairs(taken), **summarise_skipped(skipped)}, args.strict)
