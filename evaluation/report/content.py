"""Measure what only the page shows: `build_report` returns the content of `report.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdiareward.esdr_accuracy.pairwise import NO_SUBSET
from sdiareward.pairs.schema import SIDES

from .. import statistics, summary
from ..scores import Evaluation, compute_margin, is_finite, is_right
from ..summary import BASELINES, SUBSET_LABELS, Labels, Record, Scores, describe_accuracy, list_groups


MIN_PAIRS, MIN_GROUPS = 10, 5
TAXONOMY = ("source", "primary", "secondary")
_NUM_EXAMPLES = 20


def build_report(
    results: Mapping[str, Any],
    records: Labels,
    by_scorer: Mapping[str, Scores],
    others: Sequence[Evaluation] = (),
    training: Sequence[Record] = (),
) -> Record:
    """Return the results with the scorers of `others` and with what only the page has, as JSON values."""
    options = {name: results["config"][name] for name in ("nan", "num_bootstrap", "seed")}
    scorers = list_scorers(results, others)
    scores = {**by_scorer, **{f"compared_{number}": other.by_pair for number, other in enumerate(others, start=1)}}
    scores = {scorer["name"]: scores[scorer["name"]] for scorer in scorers}
    report = {**results, "scorers": scorers, "num_pairs": len(records), "num_groups": len(set(list_groups(records)))}
    if others:
        measure = summary.make_measure(scores, options)
        left_out, sources = (results[f"left_out_{name}"] or () for name in ("synthesizers", "sources"))
        report["accuracies"] = {name: summary.compute_accuracy(records, of, options) for name, of in scores.items()}
        report["by_synthesizer"] = summary.by_synthesizer(records, results["left_out_synthesizers"], measure)
        report["by_held_out"] = summary.by_held_out(records, left_out, sources, measure)
    invalid = {name: [row for row in records if not is_finite(of[row["pair_id"]])] for name, of in scores.items()}
    finite = {name: [row for row in records if is_finite(of[row["pair_id"]])] for name, of in scores.items()}
    sizes = np.abs(_list_margins(finite["model"], scores["model"]))
    found = {
        **report,
        "by_taxonomy": by_taxonomy(records, scores, options),
        "training": list(training),
        "calibration": [
            {"scorer": name, **describe_calibration(rows, scores[name], options)}
            for name, rows in finite.items()
            if rows and name not in BASELINES
        ],
        "margins": describe_bins(finite["model"], scores["model"], sizes, options),
        "comparisons": describe_comparisons(records, scores, options),
        "not_finite": [{"scorer": name, "pair_id": row["pair_id"]} for name, rows in invalid.items() for row in rows],
    }
    return dict(make_plain(found))


def make_plain(value: Any) -> Any:
    """Return JSON values: containers of any kind as dict and list, numbers that are not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): make_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def list_scorers(results: Mapping[str, Any], others: Sequence[Evaluation] = ()) -> list[Record]:
    """Return name, title and kind of every scorer, the evaluated model first, the baselines last."""
    names = [summary.name_scorer(config) for config in (results["config"], *(other.config for other in others))]
    rows = [{"name": "model", "title": names[0], "kind": "model"}]
    for number, (name, other) in enumerate(zip(names[1:], others, strict=True), start=1):
        # Equal names get their folders.
        title = name if names.count(name) == 1 else f"{name} ({other.folder})"
        rows.append({"name": f"compared_{number}", "title": title, "kind": "compared"})
    found = [name for name in BASELINES if name in results["accuracies"]]
    return rows + [{"name": name, "title": f"{name} baseline", "kind": "baseline"} for name in found]


def by_taxonomy(records: Labels, by_scorer: Mapping[str, Scores], options: Mapping[str, Any]) -> list[Record]:
    """Return the accuracies by source and category (Table 5); under 10 pairs or 5 recordings a row `is_small`."""
    measure, cells = summary.make_measure(by_scorer, options), dict[tuple[str, ...], list[Mapping[str, Any]]]()
    for record in records:
        cell = (record["subset"], *(record.get(name) or "" for name in TAXONOMY))
        cells.setdefault(cell, []).append(record)
    rows = []
    for cell, members in sorted(cells.items(), key=lambda item: (SUBSET_LABELS.index(item[0][0]), item[0])):
        num_groups = len(set(list_groups(members)))
        is_small = len(members) < MIN_PAIRS or num_groups < MIN_GROUPS
        about = dict(zip(("subset", *TAXONOMY), cell, strict=True))
        rows.append({**about, "num_groups": num_groups, "is_small": is_small, **measure(members, "overall_micro")})
    return rows


def find_wrong(records: Labels, scores: Scores) -> list[Record]:
    """Return the wrong pairs with their rewards, the lowest margin first; ties are wrong."""
    found = []
    for record in records:
        score = scores[record["pair_id"]]
        if (margin := compute_margin(score)) is not None and margin <= 0:
            rewards = {f"{side}_reward": score[side] for side in SIDES}
            found.append({"pair_id": record["pair_id"], "margin": margin, **rewards})
    return sorted(found, key=lambda row: row["margin"])[:_NUM_EXAMPLES]


def _list_margins(records: Labels, scores: Scores) -> NDArray[np.float64]:
    return np.array([compute_margin(scores[record["pair_id"]]) for record in records], dtype=np.float64)


def describe_bins(
    records: Labels, scores: Scores, values: NDArray[np.float64], options: Mapping[str, Any]
) -> list[Record]:
    """Return the accuracy in bins of equally many pairs by a value, and its `mean`, `low` and `high` in each."""
    found = []
    for rows in statistics.make_equal_mass_bins(values):
        if len(rows):
            of_bin = values[rows]
            spread = {"mean": float(of_bin.mean()), "low": float(of_bin.min()), "high": float(of_bin.max())}
            found.append({**describe_accuracy([records[row] for row in rows], scores, options), **spread})
    return found


def describe_calibration(records: Labels, scores: Scores, options: Mapping[str, Any]) -> Record:
    """Describe the calibration of one model before and after temperatures from folds of other recordings."""
    margins = _list_margins(records, scores)
    folds = statistics.deal_folds(list_groups(records), [record["subset"] for record in records])
    by_pair = statistics.cross_fit_temperatures(margins, folds)

    def describe(margins: NDArray[np.float64]) -> Record:
        error = statistics.expected_calibration_error(margins)
        return {"error": error, "bins": describe_bins(records, scores, statistics.fold(margins)[0], options)}

    return {
        "num_pairs": len(records),
        "num_wrong": int((margins <= 0).sum()),
        "temperature": statistics.fit_temperature(margins),
        "before": describe(margins),
        "after": None if by_pair is None else describe(margins / by_pair),
    }


def describe_comparisons(records: Labels, by_scorer: Mapping[str, Scores], options: Mapping[str, Any]) -> list[Record]:
    """Compare the evaluated model with every other scorer, on all pairs and by criterion."""
    parts = [(column, members) for _, column, members in summary.split_by_criterion(records)]
    # With pairs of one criterion alone, the column of all pairs is that criterion's.
    if any(record["subset"] == NO_SUBSET for record in records):
        parts = [("overall_micro", records)]
    elif len(parts) > 1:
        parts = [("overall_micro", records), *parts]
    draws = {name: options[name] for name in ("num_bootstrap", "seed")}
    found = []
    for name in [name for name in by_scorer if name != "model"]:
        for column, members in parts:
            own, other = ([is_right(by_scorer[each][row["pair_id"]]) for row in members] for each in ("model", name))
            strata = [row["subset"] for row in members]
            compared = statistics.compare(own, other, list_groups(members), strata, **draws)
            found.append({"scorer": name, "column": column, **compared})
    return found


def read_training_runs(paths: Sequence[str | Path]) -> list[Record]:
    """Read what training runs logged about their rewards, for Figures 4 and 8, a and b."""
    runs: list[Record] = []
    for path in map(Path, paths):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; training takes the run.json that train.py writes.")
        run = json.loads(path.read_text(encoding="utf-8"))
        if absent := [name for name in ("history", "training") if name not in run]:
            raise ValueError(f"{path}: has no {' and no '.join(absent)}; training takes the run.json of train.py.")
        weight = float(run["training"].get("center_rewards_coefficient") or 0.0)
        points = {name: _make_points(run["history"], of) for name, of in (("train", ""), ("validation", "eval_"))}
        if not any(points.values()):
            raise ValueError(f"{path}: its history has no mean_reward and margin; set logging_steps and train again.")
        title = f"with centering, λ = {weight:g}" if weight else "without centering"
        runs.append({"path": str(path), "title": title, "center_rewards_coefficient": weight, **points})
    titles = [run["title"] for run in runs]
    for run in runs:
        if titles.count(run["title"]) > 1:
            run["title"] += f" ({run['path']})"
    return runs


def _make_points(history: Sequence[Mapping[str, Any]], prefix: str) -> list[dict[str, float]]:
    """Return the mean reward of each side by step: TRL logs the mean over both and their difference."""
    names = ("step", f"{prefix}mean_reward", f"{prefix}margin")
    logged = [[entry[name] for name in names] for entry in history if {*names} <= entry.keys()]
    return [
        {"step": step, "chosen": mean + 0.5 * margin, "rejected": mean - 0.5 * margin, "margin": margin}
        for step, mean, margin in logged
    ]
