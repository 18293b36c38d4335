"""Write a ChatReward folder with the scores of experts in the place of the designed ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sdiareward.pairs.schema import stable_id

from ...reports.data_card import content_id
from .builder import SampleWriter, write_report
from .experts import describe_agreement, merge_ratings, read_ratings
from .schema import SPLITS
from .statistics_report import compute_statistics, read_labels


def merge_experts(folder: str | Path, ratings_path: str | Path, output: str | Path) -> dict[str, Any]:
    """Copy a data set with the expert scores of a CSV merged in; rows are copied one after another.

    Args:
        folder (`str` or `Path`): As `build` writes it.
        ratings_path (`str` or `Path`): The CSV; see `experts`.
        output (`str` or `Path`): Another folder to write.

    Returns:
        `dict[str, Any]`: The report of `output`; `experts` holds what `describe_agreement` returns, `bad_rows` the
        lines of the CSV that were of no use.

    Raises:
        FileNotFoundError: `folder` holds no data set, or there is no such CSV.
        ValueError: `output` is `folder`, or the CSV lacks a column or has no usable row.
    """
    folder, output = Path(folder), Path(output)
    if output.resolve() == folder.resolve():
        raise ValueError(f"{output}: is the data set itself; write to another folder.")
    design = {row["sample_id"]: row["design_score"] for row in read_labels(folder)}
    ratings, bad_rows = read_ratings(ratings_path, set(design))
    if not ratings:
        raise ValueError(f"{ratings_path}: no row can be used ({[skip.reason for skip in bad_rows[:3]]}).")
    _copy(folder, output, ratings)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    build_id = content_id(output)
    report |= {
        "build_id": build_id,
        "plan_id": stable_id(report["plan_id"], build_id),
        "experts": describe_agreement(design, ratings),
        "bad_rows": [asdict(skip) for skip in bad_rows],
    }
    return write_report(output, report, compute_statistics(output))


def _copy(folder: Path, output: Path, ratings: dict[str, dict[str, int]]) -> None:
    import pyarrow.parquet as pq

    with SampleWriter(output) as writer:
        for split in SPLITS:
            for path in sorted((folder / "data").glob(f"{split}-*.parquet")):
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(batch_size=20):
                        for row in batch.to_pylist():
                            writer.write(split, merge_ratings(row, ratings))
