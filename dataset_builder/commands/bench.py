"""`bench`: draw ESDR-Bench from a data set and isolate it from training (appendix B.1)."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..formats.shards import count_pairs
from ..pairing.stratify import CANDIDATES, BenchSettings, isolate, make_bench, sample_bench
from ..reports.data_card import summarize_skipped
from ..reports.statistics_report import read_labels
from ..settings import make_settings, read_mapping
from . import add_common_arguments, finish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("folder", type=Path, help="data set folder, as build or filter writes it")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder to write")
    parser.add_argument("--config", type=Path, help="YAML file: the fields of BenchSettings")
    parser.add_argument("--cap", type=int, help="most pairs of a bucket")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--candidates", choices=CANDIDATES, help="draw from the test split, or from all")
    add_common_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Draw the benchmark."""
    given = {"cap": args.cap, "seed": args.seed, "candidates": args.candidates}
    values = read_mapping(args.config) if args.config else {}
    values |= {key: value for key, value in given.items() if value is not None}
    settings = make_settings(BenchSettings, values, str(args.config or "bench"))
    options = {name: getattr(settings, name) for name in BenchSettings.__dataclass_fields__}
    if not args.dry_run:
        return finish(args.output_dir, make_bench(args.folder, args.output_dir, **options), args.strict)
    labels = list(read_labels(args.folder))
    assignment, skipped = isolate(labels, sample_bench(labels, **options))
    taken = ((assignment[label["pair_id"]], label) for label in labels if label["pair_id"] in assignment)
    return finish(args.output_dir, {"pairs": count_pairs(taken), **summarize_skipped(skipped)}, args.strict)
