"""Describe each figure in words: captions for everyone, alternatives for readers who do not see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sdiareward.evaluation.columns import TITLES

from ..summary import format_percent


def describe_figures(report: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return `caption` and `alt` of every figure by its name; the alternatives carry the message and its numbers."""
    captions = {
        "accuracy": "Accuracy by column of the table; a marker a scorer, bars are 95% intervals over recordings.",
        "densities": "Density of the rewards, chosen on the left, rejected on the right of each axis.",
        "boxes": "Median, quartiles and 5-95% range of the rewards.",
        "score_alignment": "Mean reward of the chosen side over training steps.",
        "margin_stability": "Mean margin over training steps.",
        "reliability": "Accuracy against confidence in bins of equally many pairs; bars are 95% intervals.",
        "accuracy_by_margin": "Accuracy in bins of equally many pairs by |margin|; bars are 95% intervals.",
        "comparison": f"Accuracy of {report['model']} minus that of another scorer, with 95% intervals.",
    }
    alternatives: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "accuracy": _describe_accuracy,
        "densities": _describe_densities,
        "boxes": _describe_boxes,
        "score_alignment": lambda report: _describe_training(report, "chosen", "Mean chosen reward"),
        "margin_stability": lambda report: _describe_training(report, "margin", "Mean margin"),
        "reliability": _describe_reliability,
        "accuracy_by_margin": _describe_accuracy_by_margin,
        "comparison": _describe_comparison,
    }
    return {name: {"caption": text, "alt": alternatives[name](report)} for name, text in captions.items()}


def _describe_accuracy(report: Mapping[str, Any]) -> str:
    parts = []
    for scorer in report["scorers"]:
        result = report["accuracies"][scorer["name"]]
        present = {name: value for name in report["columns"] if (value := result[name]) is not None}
        worst = min(present, key=lambda name: present[name], default="")
        overall = format_percent(result["overall_micro"])
        lowest = f", lowest in {TITLES[worst]} with {format_percent(present[worst])}" if len(present) > 1 else ""
        parts.append(f"{scorer['title']}: {overall} of all pairs{lowest}.")
    return "Dot plot of accuracy in percent. " + " ".join(parts)


def _describe_densities(report: Mapping[str, Any]) -> str:
    medians: dict[str, dict[str, float]] = {}
    for row in report["rewards"]:
        medians.setdefault(row["subset"], {})[row["side"]] = row["median"]
    parts = [
        f"{TITLES[name]}: median {sides['chosen']:.2f} chosen, {sides['rejected']:.2f} rejected."
        for name, sides in medians.items()
    ]
    return "Split violins of the rewards by subset. " + " ".join(parts)


def _describe_boxes(report: Mapping[str, Any]) -> str:
    parts = [
        f"{TITLES[row['subset']]}, {row['side']}: {row['q25']:.2f} to {row['q75']:.2f}." for row in report["rewards"]
    ]
    return "Box plots of the rewards by subset; the middle half of the rewards lies at: " + " ".join(parts)


def _describe_training(report: Mapping[str, Any], value: str, what: str) -> str:
    parts = []
    for run in report["training"]:
        points = run["validation"] or run["train"]
        first, last = points[0], points[-1]
        parts.append(
            f"{run['title']}: {first[value]:.2f} at step {first['step']}, {last[value]:.2f} at step {last['step']}."
        )
    return f"{what} over training steps. " + " ".join(parts)


def _describe_reliability(report: Mapping[str, Any]) -> str:
    if not report["calibration"]:
        return ""
    found = report["calibration"][0]
    parts = []
    for name, when in (("before", "As it is"), ("after", "With temperature")):
        if found[name] is None:
            continue
        bins = found[name]["bins"]
        modest = sum(row["accuracy"] > row["confidence"] for row in bins)
        parts.append(
            f"{when}, the calibration error is {found[name]['error']:.3f}; accuracy is above confidence in {modest} "
            f"of {len(bins)} bins."
        )
    return "Reliability diagram. " + " ".join(parts)


def _describe_accuracy_by_margin(report: Mapping[str, Any]) -> str:
    bins = report["margins"]["bins"]
    if not bins:
        return ""
    low, high = format_percent(bins[0]["accuracy"]), format_percent(bins[-1]["accuracy"])
    return f"Accuracy is {low} percent where margins are smallest and {high} percent where they are largest."


def _describe_comparison(report: Mapping[str, Any]) -> str:
    titles = {scorer["name"]: scorer["title"] for scorer in report["scorers"]}
    parts = []
    for row in report["comparisons"]:
        bounds = [100 * bound for bound in row["interval"] or ()]
        interval = ", interval {:+.1f} to {:+.1f}".format(*bounds) if bounds else ", no interval"
        parts.append(f"{titles[row['scorer']]}, {TITLES[row['column']]}: {100 * row['difference']:+.1f}{interval}.")
    return "Difference in accuracy in percentage points to " + " ".join(parts)
