"""Gather every number of the page: `build_report` returns what `report.json` holds, the page shows no others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sdiareward.esdr_accuracy.pairwise import COLUMNS, NO_SUBSET, SUBSETS
from sdiareward.evaluation.columns import SUBSET_LABELS
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.dataset import QUANTILES

from .. import summary
from ..held_out import by_held_out
from ..results_files import name_scorer
from ..statistics import compare
from .calibration_content import describe_calibration
from .inputs import ComparedEvaluation, TrainingRun, is_finite, is_right, title_scorers
from .margins import STRATA, WRONG, find_strata
from .reliability import make_equal_mass_bins


Records = Sequence[Mapping[str, Any]]
Scores = Mapping[str, Mapping[str, Any]]

MIN_PAIRS, MIN_GROUPS = 10, 5
TAXONOMY = ("source", "primary", "secondary")
_BASELINE_TITLES = {"acoustic": "acoustic baseline", "text": "text baseline"}
# Of `results.json`, shown as it stands.
_AS_THEY_ARE = (
    *("left_out_synthesizers", "skipped", "num_skipped", "baselines", "timing", "run", "config"),
    *("versions", "python", "machine", "git_revision"),
)
# What a baseline above chance means, and the column that shows it.
_BASELINE_MEANINGS = {
    "acoustic": ("modality_micro", "It hears no words: that much can be told from channel and voice alone."),
    "text": ("colloquialness", "It hears nothing: that much can be told from the words alone."),
}


def build_report(
    results: Mapping[str, Any],
    records: Records,
    by_scorer: Mapping[str, Scores],
    others: Sequence[ComparedEvaluation] = (),
    training: Sequence[TrainingRun] = (),
    examples: Records = (),
    disagreements: Records = (),
) -> dict[str, Any]:
    """Return the numbers of the page as JSON values; NaN and infinity are None."""
    options = {name: results["config"][name] for name in ("nan", "num_bootstrap", "seed")}
    title = name_scorer(results["config"])
    scorers, scores = _list_scorers(title, by_scorer, others)
    ids = [record["pair_id"] for record in records]
    finite = _select_finite(records, scores)
    accuracies = {name: summary.compute_accuracy(records, found, options) for name, found in scores.items()}
    left_out = results["left_out_synthesizers"]
    report = {
        "model": title,
        "judge": results.get("judge"),
        "dataset": results["config"]["dataset"],
        "split": results["config"]["split"],
        "num_pairs": len(ids),
        "num_groups": len(set(summary.list_groups(records))),
        "scorers": scorers,
        "columns": list_columns(accuracies["model"]),
        "accuracies": accuracies,
        "notes": _list_notes(results, accuracies, scorers),
        "by_synthesizer": summary.by_synthesizer(
            records, scores, None if left_out is None else set(left_out), options
        ),
        "by_held_out": by_held_out(records, scores, left_out, results.get("left_out_sources"), options),
        "left_out_sources": results.get("left_out_sources"),
        "by_taxonomy": by_taxonomy(records, scores, options),
        "rewards": describe_rewards(finite["model"], scores["model"]),
        "training": [asdict(run) for run in training],
        "calibration": _describe_calibrations(finite, scores, options),
        "margins": describe_margins(finite["model"], scores["model"], options),
        "comparisons": describe_comparisons(records, scores, options),
        "disagreements": [
            {**found, "scorer": f"compared_{number}"} for number, found in enumerate(disagreements, start=1)
        ],
        "examples": list(examples),
        "not_finite": _list_not_finite(ids, scores),
        "cut": results.get("cut"),
        "heard_from": results.get("heard_from"),
        **{name: results[name] for name in _AS_THEY_ARE},
    }
    return make_plain(report)


def list_columns(result: Mapping[str, Any]) -> list[str]:
    """Return the columns of Table 2 that have pairs and do not repeat another."""
    present = [name for name in SUBSETS if result["num_pairs"][name]]
    if not present or result["num_pairs"][present[0]] == result["num_pairs"]["overall_micro"]:
        return present[:1] or ["overall_micro"]
    # Without one of the criteria, or with one subset of modality, its averages are those of other columns.
    has_both = "colloquialness" in present and len(present) > 2
    averages = [name for name in COLUMNS if name.startswith("overall_") or (has_both and name.startswith("modality_"))]
    return [name for name in COLUMNS if name in (*present, *averages)]


def _select_finite(records: Records, scores: Mapping[str, Scores]) -> dict[str, Records]:
    """Return the pairs with finite rewards by scorer; baselines always have them."""
    return {
        name: [record for record in records if is_finite(found[record["pair_id"]])]
        for name, found in scores.items()
        if name not in _BASELINE_TITLES
    }


def _describe_calibrations(
    finite: Mapping[str, Records], scores: Mapping[str, Scores], options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    return [
        {"scorer": name, **describe_calibration(rows, scores[name], options)} for name, rows in finite.items() if rows
    ]


def _list_not_finite(ids: Sequence[str], scores: Mapping[str, Scores]) -> list[dict[str, str]]:
    return [
        {"scorer": name, "pair_id": pair_id}
        for name, found in scores.items()
        for pair_id in ids
        if not is_finite(found[pair_id])
    ]


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
    model: str, by_scorer: Mapping[str, Scores], others: Sequence[ComparedEvaluation]
) -> tuple[list[dict[str, str]], dict[str, Scores]]:
    """Return name, title and kind of every scorer, the evaluated model first, and their scores by name."""
    rows = [{"name": "model", "title": model, "kind": "model"}]
    scores = {"model": by_scorer["model"]}
    titles = title_scorers(model, others)
    for number, (title, other) in enumerate(zip(titles, others, strict=True), start=1):
        rows.append({"name": f"compared_{number}", "title": title, "kind": "compared"})
        scores[f"compared_{number}"] = other.scores
    for name, title in _BASELINE_TITLES.items():
        if name in by_scorer:
            rows.append({"name": name, "title": title, "kind": "baseline"})
            scores[name] = by_scorer[name]
    return rows, scores


def _list_notes(
    results: Mapping[str, Any], accuracies: Mapping[str, Any], scorers: Sequence[Mapping[str, str]]
) -> list[str]:
    titles = {row["name"]: row["title"] for row in scorers if row["kind"] != "model"}
    named = {titles.get(name, name): result for name, result in accuracies.items()}
    found = summary.list_notes({**results, "accuracies": named})
    for name, (column, meaning) in _BASELINE_MEANINGS.items():
        bounds = accuracies[name]["interval"][column] if name in accuracies else None
        if bounds and bounds[0] > 0.5:
            accuracy = summary.format_percent(accuracies[name][column])
            found.append(f"{titles[name]}: {accuracy} on {column.replace('_', ' ')}. {meaning}")
    return found


def by_taxonomy(records: Records, by_scorer: Mapping[str, Scores], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the accuracies by source and category (Table 5); under 10 pairs or 5 recordings a row `is_small`."""
    cells: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        cell = (record["subset"], *(record.get(name) or "" for name in TAXONOMY))
        cells.setdefault(cell, []).append(record)
    rows = []
    in_order = sorted(cells.items(), key=lambda item: (SUBSET_LABELS.index(item[0][0]), item[0]))
    for (subset, *names), members in in_order:
        num_groups = len(set(summary.list_groups(members)))
        found = {
            name: summary.select_column(summary.compute_accuracy(members, scores, options), "overall_micro")
            for name, scores in by_scorer.items()
        }
        is_small = len(members) < MIN_PAIRS or num_groups < MIN_GROUPS
        counts = {"num_pairs": len(members), "num_groups": num_groups, "is_small": is_small}
        rows.append({"subset": subset, **dict(zip(TAXONOMY, names, strict=True)), **counts, **found})
    return rows


def describe_rewards(records: Records, scores: Scores) -> list[dict[str, Any]]:
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


def describe_margins(records: Records, scores: Scores, options: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Describe accuracy against margin: equal-mass bins of `|margin|`, and the strata of Table 3."""
    pairs = [scores[record["pair_id"]] for record in records]
    margins = np.array([pair["chosen"] - pair["rejected"] for pair in pairs], dtype=np.float64)

    def describe(rows: Any) -> dict[str, Any]:
        size = np.abs(margins[rows])
        return {
            **summary.describe_accuracy([records[row] for row in rows], scores, options),
            "mean_margin": float(margins[rows].mean()) if len(rows) else None,
            "low": float(size.min()) if len(rows) else None,
            "high": float(size.max()) if len(rows) else None,
        }

    found = []
    for name, rows in find_strata(margins).items():
        by_subset = Counter(records[row]["subset"] for row in rows)
        counts = {subset: by_subset[subset] for subset in SUBSET_LABELS if by_subset[subset]}
        described = describe(rows)
        if name == WRONG:
            # It is 0 by choice of the pairs.
            described |= {"accuracy": None, "interval": None}
        found.append({"name": name, "rule": STRATA[name], **described, "by_subset": counts})
    bins = [describe(rows) for rows in make_equal_mass_bins(np.abs(margins)) if len(rows)]
    return {"bins": bins, "strata": found}


def describe_comparisons(
    records: Records, by_scorer: Mapping[str, Scores], options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Compare the evaluated model with every other scorer, on all pairs and by criterion."""
    right = {
        name: np.array([is_right(scores[record["pair_id"]]) for record in records])
        for name, scores in by_scorer.items()
    }
    is_colloquial = np.array([record["subset"] == "colloquialness" for record in records])
    columns = {"modality_micro": ~is_colloquial, "colloquialness": is_colloquial}
    # With pairs of one criterion alone, the column of all pairs is that criterion's.
    all_pairs = {"overall_micro": np.ones(len(records), dtype=np.bool_)}
    if any(record["subset"] == NO_SUBSET for record in records):
        columns = all_pairs
    elif all(rows.any() for rows in columns.values()):
        columns = {**all_pairs, **columns}
    groups, subsets = summary.list_groups(records), [record["subset"] for record in records]
    draws = {name: options[name] for name in ("num_bootstrap", "seed")}
    found = []
    for name in by_scorer:
        for column, rows in columns.items():
            if name == "model" or not rows.any():
                continue
            where = np.flatnonzero(rows)
            one, other = right["model"][where], right[name][where]
            parts = ([groups[row] for row in where], [subsets[row] for row in where])
            found.append({"scorer": name, "column": column, **compare(one, other, *parts, **draws)})
    return found
