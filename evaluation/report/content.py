"""Gather every number of the page: `build_report` returns what `report.json` holds, the page shows no others."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdiareward.common.tables import format_percent
from sdiareward.esdr_accuracy.pairwise import COLUMNS, NO_SUBSET, SUBSETS
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.dataset import QUANTILES

from .. import statistics, summary
from ..results_files import Evaluation, compute_margin, is_finite, is_right
from ..summary import SUBSET_LABELS, Labels, Record, Scores


MIN_PAIRS, MIN_GROUPS = 10, 5
TAXONOMY = ("source", "primary", "secondary")
STRATA = {
    "high confidence": "quarter of the pairs with the largest |margin|",
    "low confidence": "quarter of the pairs with the smallest |margin|",
    "all pairs": "",
    "hard negatives": "pairs that the model orders wrongly, ties included",
}
# Of each baseline the title, the column in which it should be at chance, and what it means if it is not.
_BASELINES = {
    "acoustic": ("modality_micro", "It hears no words: that much can be told from channel and voice alone."),
    "text": ("colloquialness", "It hears nothing: that much can be told from the words alone."),
}
# Of `results.json`, shown as they are.
_AS_THEY_ARE = (
    *("left_out_synthesizers", "skipped", "num_skipped", "baselines", "timing", "run", "config"),
    *("versions", "python", "machine", "git_revision"),
)


def build_report(
    results: Mapping[str, Any],
    records: Labels,
    by_scorer: Mapping[str, Scores],
    others: Sequence[Evaluation] = (),
    training: Sequence[Record] = (),
    examples: Sequence[Record] = (),
    disagreements: Sequence[Record] = (),
) -> Record:
    """Return the numbers of the page as JSON values; NaN and infinity are None."""
    config = results["config"]
    options = {name: config[name] for name in ("nan", "num_bootstrap", "seed")}
    scorers, scores = _list_scorers(results, by_scorer, others)
    finite = {
        name: [record for record in records if is_finite(found[record["pair_id"]])] for name, found in scores.items()
    }
    accuracies = {name: summary.compute_accuracy(records, found, options) for name, found in scores.items()}
    left_out, sources = results["left_out_synthesizers"], results.get("left_out_sources")
    report = {
        "model": summary.name_scorer(config),
        "judge": results.get("judge"),
        "dataset": config["dataset"],
        "split": config["split"],
        "num_pairs": len(records),
        "num_groups": len(set(summary.list_groups(records))),
        "scorers": scorers,
        "columns": list_columns(accuracies["model"]["num_pairs"]),
        "accuracies": accuracies,
        "notes": _list_notes(results, accuracies, {row["name"]: row["title"] for row in scorers}),
        "by_synthesizer": summary.by_synthesizer(records, scores, left_out, options),
        "by_held_out": summary.by_held_out(records, scores, left_out, sources, options),
        "left_out_sources": sources,
        "by_taxonomy": by_taxonomy(records, scores, options),
        "rewards": describe_rewards(finite["model"], scores["model"]),
        "training": training,
        "calibration": [
            {"scorer": name, **describe_calibration(rows, scores[name], options)}
            for name, rows in finite.items()
            if rows and name not in _BASELINES
        ],
        "margins": describe_margins(finite["model"], scores["model"], options),
        "comparisons": describe_comparisons(records, scores, options),
        "disagreements": [{**found, "scorer": f"compared_{n}"} for n, found in enumerate(disagreements, start=1)],
        "examples": examples,
        "not_finite": [
            {"scorer": name, "pair_id": record["pair_id"]}
            for name, found in scores.items()
            for record in records
            if not is_finite(found[record["pair_id"]])
        ],
        "cut": results.get("cut"),
        "heard_from": results.get("heard_from"),
        **{name: results[name] for name in _AS_THEY_ARE},
    }
    return make_plain(report)


def make_plain(value: Any) -> Any:
    """Return JSON values: containers of any kind as dict and list, numbers that are not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): make_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _list_scorers(
    results: Mapping[str, Any], by_scorer: Mapping[str, Scores], others: Sequence[Evaluation]
) -> tuple[list[Record], dict[str, Scores]]:
    """Return name, title and kind of every scorer, the evaluated model first, and their scores by name."""
    names = [summary.name_scorer(config) for config in (results["config"], *(other.config for other in others))]
    rows = [{"name": "model", "title": names[0], "kind": "model"}]
    scores = {"model": by_scorer["model"]}
    for number, (name, other) in enumerate(zip(names[1:], others, strict=True), start=1):
        # Equal names get their folders.
        title = name if names.count(name) == 1 else f"{name} ({other.folder})"
        rows.append({"name": f"compared_{number}", "title": title, "kind": "compared"})
        scores[f"compared_{number}"] = other.by_pair
    for name in _BASELINES:
        if name in by_scorer:
            rows.append({"name": name, "title": f"{name} baseline", "kind": "baseline"})
            scores[name] = by_scorer[name]
    return rows, scores


def list_columns(num_pairs: Mapping[str, int]) -> list[str]:
    """Return the columns of Table 2 that have pairs and do not repeat another."""
    present = [name for name in SUBSETS if num_pairs[name]]
    if not present or num_pairs[present[0]] == num_pairs["overall_micro"]:
        return present[:1] or ["overall_micro"]
    # Without one of the criteria, or with one subset of modality, its averages are those of other columns.
    has_both = "colloquialness" in present and len(present) > 2
    averages = [name for name in COLUMNS if name.startswith("overall_") or (has_both and name.startswith("modality_"))]
    return [name for name in COLUMNS if name in (*present, *averages)]


def _list_notes(results: Mapping[str, Any], accuracies: Mapping[str, Any], titles: Mapping[str, str]) -> list[str]:
    own = {"model": summary.title_scorers(results)["model"]}
    found = summary.list_notes({**results, "accuracies": accuracies}, {**titles, **own})
    for name, (column, meaning) in _BASELINES.items():
        bounds = accuracies[name]["interval"][column] if name in accuracies else None
        if bounds and bounds[0] > 0.5:
            accuracy = format_percent(accuracies[name][column])
            found.append(f"{titles[name]}: {accuracy} on {column.replace('_', ' ')}. {meaning}")
    return found


def by_taxonomy(records: Labels, by_scorer: Mapping[str, Scores], options: Mapping[str, Any]) -> list[Record]:
    """Return the accuracies by source and category (Table 5); under 10 pairs or 5 recordings a row `is_small`."""
    cells: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        cell = (record["subset"], *(record.get(name) or "" for name in TAXONOMY))
        cells.setdefault(cell, []).append(record)
    rows = []
    for cell, members in sorted(cells.items(), key=lambda item: (SUBSET_LABELS.index(item[0][0]), item[0])):
        num_pairs, num_groups = len(members), len(set(summary.list_groups(members)))
        about: Record = dict(zip(("subset", *TAXONOMY), cell, strict=True))
        about |= {"num_pairs": num_pairs, "num_groups": num_groups}
        about |= {"is_small": num_pairs < MIN_PAIRS or num_groups < MIN_GROUPS}
        rows.append({**about, **summary.measure_cell(members, by_scorer, "overall_micro", options)})
    return rows


def describe_rewards(records: Labels, scores: Scores) -> list[Record]:
    """Describe the rewards of both sides by subset: what Figure 4c and d draw."""
    rows = []
    for subset in SUBSET_LABELS:
        members = [scores[record["pair_id"]] for record in records if record["subset"] == subset]
        for side in SIDES if members else ():
            values = np.array([member[side] for member in members], dtype=np.float64)
            quantiles = {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}
            spread = {"mean": float(values.mean()), "sd": float(values.std())}
            rows.append({"subset": subset, "side": side, "num_pairs": len(values), **spread, **quantiles})
    return rows


def _list_margins(records: Labels, scores: Scores) -> NDArray[np.float64]:
    return np.array([compute_margin(scores[record["pair_id"]]) for record in records], dtype=np.float64)


def describe_margins(records: Labels, scores: Scores, options: Mapping[str, Any]) -> dict[str, list[Record]]:
    """Describe accuracy against margin: equal-mass bins of `|margin|`, and the strata of Table 3."""
    margins = _list_margins(records, scores)

    def describe(rows: Any) -> Record:
        size, is_any = np.abs(margins[rows]), len(rows) > 0
        return {
            **summary.describe_accuracy([records[row] for row in rows], scores, options),
            "mean_margin": float(margins[rows].mean()) if is_any else None,
            "low": float(size.min()) if is_any else None,
            "high": float(size.max()) if is_any else None,
        }

    found = []
    for name, rows in find_strata(margins).items():
        by_subset = Counter(records[row]["subset"] for row in rows)
        counts = {subset: by_subset[subset] for subset in SUBSET_LABELS if by_subset[subset]}
        # The accuracy of hard negatives is 0 by choice of the pairs.
        unknown = {"accuracy": None, "interval": None} if name == "hard negatives" else {}
        found.append({"name": name, "rule": STRATA[name], **describe(rows), **unknown, "by_subset": counts})
    bins = [describe(rows) for rows in statistics.make_equal_mass_bins(np.abs(margins)) if len(rows)]
    return {"bins": bins, "strata": found}


def find_strata(margins: ArrayLike) -> dict[str, NDArray[np.intp]]:
    """Find the strata of Table 3: top and bottom quarter by `|margin|`, all pairs, and those ordered wrongly."""
    array = np.asarray(margins, dtype=np.float64)
    # A quarter is rounded up; of equal margins the earlier pair counts as the larger.
    order, quarter = np.argsort(-np.abs(array), kind="stable"), math.ceil(len(array) / 4)
    found = (order[:quarter], order[len(array) - quarter :], np.arange(len(array)), np.flatnonzero(array <= 0))
    return dict(zip(STRATA, found, strict=True))


def describe_calibration(records: Labels, scores: Scores, options: Mapping[str, Any]) -> Record:
    """Describe the calibration of one model before and after temperatures from folds of other recordings."""
    margins = _list_margins(records, scores)
    folds = statistics.deal_folds(summary.list_groups(records), [record["subset"] for record in records])
    by_pair = statistics.cross_fit_temperatures(margins, folds)

    def describe(margins: NDArray[np.float64]) -> Record:
        confidence, _ = statistics.fold(margins)
        bins = []
        for rows in statistics.make_equal_mass_bins(confidence):
            bounds = {"low": float(confidence[rows].min()), "high": float(confidence[rows].max())}
            accuracy = summary.describe_accuracy([records[row] for row in rows], scores, options)
            bins.append({**accuracy, "confidence": float(confidence[rows].mean()), **bounds})
        subsets, by_subset = np.array([record["subset"] for record in records]), {}
        for name in SUBSET_LABELS:
            if (is_in := subsets == name).any():
                error = statistics.expected_calibration_error(margins[is_in])
                mean = float(confidence[is_in].mean())
                by_subset[name] = {"num_pairs": int(is_in.sum()), "confidence": mean, "error": error}
        return {
            "confidence": float(confidence.mean()),
            "error": statistics.expected_calibration_error(margins),
            "negative_log_likelihood": statistics.negative_log_likelihood(margins),
            "bins": bins,
            "by_subset": by_subset,
        }

    return {
        "num_pairs": len(records),
        "num_wrong": int((margins <= 0).sum()),
        "temperature": statistics.fit_temperature(margins),
        "fold_temperatures": None if by_pair is None else [float(by_pair[folds == k][0]) for k in np.unique(folds)],
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
            own, other = (
                [is_right(by_scorer[each][record["pair_id"]]) for record in members] for each in ("model", name)
            )
            groups, subsets = summary.list_groups(members), [record["subset"] for record in members]
            found.append(
                {"scorer": name, "column": column, **statistics.compare(own, other, groups, subsets, **draws)}
            )
    return found


def read_training_runs(paths: Sequence[str | Path]) -> list[Record]:
    """Read what training runs logged about their rewards, for Figures 4 and 8, a and b."""
    runs = []
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
    # Equal names get their paths.
    return [
        {**run, "title": f"{run['title']} ({run['path']})"} if titles.count(run["title"]) > 1 else run for run in runs
    ]


def _make_points(history: Sequence[Mapping[str, Any]], prefix: str) -> list[dict[str, float]]:
    """Return the mean reward of each side by step: TRL logs the mean over both and their difference."""
    mean, margin = f"{prefix}mean_reward", f"{prefix}margin"
    sides = (("chosen", 0.5), ("rejected", -0.5))
    return [
        {
            "step": entry["step"],
            **{side: entry[mean] + half * entry[margin] for side, half in sides},
            "margin": entry[margin],
        }
        for entry in history
        if mean in entry and margin in entry
    ]
