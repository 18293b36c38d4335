"""Merge what human experts found into a data set (section 3.2.3: five experts verified text, speech and scores).

Raters write a CSV with the columns `sample_id`, `rater` and `score` (1 to 5), a row per sample that they heard. The
gold score is the median; a half is rounded up. The optional column `wrong` rejects a sample: `text` or `speech` says
what is wrong with it, `sample` that it is of no use; it then needs no score. One rater suffices, and a rejected sample
is not in the new data set. Unusable rows are reported by line and change nothing.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from sdiareward.common.files import require_other_folder
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.schema import make_stable_id

from ..formats.shards import ShardWriter, read_rows
from ..reports.data_card import make_content_id
from .builder import save_samples_report
from .schema import features


_COLUMNS = ("sample_id", "rater", "score")
_WRONG = ("text", "speech", "sample")
# From this difference on, two raters disagree clearly.
_WIDE = 2
# Sample -> rater -> score.
Ratings = Mapping[str, Mapping[str, int]]


def read_ratings(path: Path, known: set[str]) -> tuple[dict[str, dict[str, int]], list[Skipped], list[Skipped]]:
    """Return the ratings of a CSV, and a `Skipped` for each rejection of a sample and for each unusable row."""
    ratings: dict[str, dict[str, int]] = defaultdict(dict)
    rejected, skipped = [], []
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
            raise ValueError(f"{path}: the header lacks {missing}; the columns are {list(_COLUMNS)}.")
        for row in rows:
            sample, rater, score, wrong = ((row.get(name) or "").strip() for name in (*_COLUMNS, "wrong"))
            if sample not in known:
                problem = "unknown_sample", f"sample_id {sample!r} is not in the data set."
            elif not rater:
                problem = "missing_rater", "rater is empty; every score needs one."
            elif wrong and wrong not in _WRONG:
                problem = "bad_wrong", f"wrong is {wrong!r}; it must be one of {list(_WRONG)}."
            elif wrong:
                rejected.append(Skipped(sample, f"wrong_{wrong}", f"{rater} rejects it."))
                continue
            elif score not in ("1", "2", "3", "4", "5"):
                problem = "bad_score", f"score is {score!r}; it must be a whole number from 1 to 5."
            elif rater in ratings[sample]:
                problem = "rated_twice", f"{rater!r} has rated {sample} before; the first score is kept."
            else:
                ratings[sample][rater] = int(score)
                continue
            skipped.append(Skipped(f"{path.name} line {rows.line_num}", *problem))
    gone = {skip.item for skip in rejected}
    return {sample: given for sample, given in ratings.items() if given and sample not in gone}, rejected, skipped


def compute_gold_score(scores: Sequence[int]) -> int:
    return math.floor(median(scores) + 0.5)


def merge_ratings(row: Mapping[str, Any], ratings: Ratings) -> dict[str, Any]:
    """Return a sample with its expert scores, in the order of the raters' names, and its gold score."""
    given = ratings.get(row["sample_id"])
    if not given:
        return dict(row)
    scores = [given[rater] for rater in sorted(given)]
    return {**row, "expert_scores": scores, "score": compute_gold_score(scores)}


def measure_agreement(design: Mapping[str, int], ratings: Ratings) -> dict[str, Any]:
    """Measure how far raters agree with each other (ranges) and with the designed scores (changes)."""
    golds = {sample: compute_gold_score(list(given.values())) for sample, given in ratings.items()}
    changes = Counter(f"{design[sample]} -> {gold}" for sample, gold in golds.items() if gold != design[sample])
    ranges = {sample: max(given.values()) - min(given.values()) for sample, given in ratings.items() if len(given) > 1}
    wide = sorted(sample for sample, width in ranges.items() if width >= _WIDE)
    return {
        "rated": len(ratings),
        "ratings": sum(map(len, ratings.values())),
        "raters": len({rater for given in ratings.values() for rater in given}),
        "changed": changes.total(),
        "changes": dict(sorted(changes.items())),
        "mean_range": round(fmean(ranges.values()), 4) if ranges else None,
        "wide": len(wide),
        "disagreements": wide,
    }


def merge_experts(folder: Path, ratings_path: Path, output: Path) -> dict[str, Any]:
    """Copy a data set with the expert scores of a CSV, without what experts reject; return the report of the copy."""
    require_other_folder(folder, output)
    design = {row["sample_id"]: row["design_score"] for _, row in read_rows(folder, ("sample_id", "design_score"))}
    ratings, rejected, bad_rows = read_ratings(ratings_path, set(design))
    gone = {skip.item for skip in rejected}
    if gone >= set(design):
        raise ValueError(f"{ratings_path}: rejects all {len(design)} samples; nothing is left to write.")
    if not ratings and not rejected:
        raise ValueError(f"{ratings_path}: no row can be used ({[skip.reason for skip in bad_rows[:3]]}).")
    with ShardWriter(output, features()) as writer:
        for split, row in read_rows(folder):
            if row["sample_id"] not in gone:
                writer.write(split, merge_ratings(row, ratings))
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    report |= {
        "plan_id": make_stable_id(report["plan_id"], make_content_id(output)),
        "experts": {**measure_agreement(design, ratings), "rejected": len(gone)},
        "rejected_by_experts": [*report.get("rejected_by_experts", ()), *map(asdict, rejected)],
        "bad_rows": [asdict(skip) for skip in bad_rows],
    }
    return save_samples_report(output, report)
