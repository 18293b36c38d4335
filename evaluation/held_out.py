"""Accuracy on synthesizers that training did not hear, by source: what a model learned beyond its training data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product
from typing import Any

from sdiareward.common.tables import render_table
from sdiareward.evaluation.columns import group_by_criterion, is_of_criterion

from .summary import (
    ALL_LEFT_OUT,
    SHOWN_NAMES,
    Labels,
    Scores,
    compute_accuracy,
    format_estimate,
    select_column,
    title_scorer,
)


def find_left_out_sources(labels: Labels, heard: Collection[str] | None) -> list[str] | None:
    """Return the sources of pairs that training did not have, in order; None if its sources are unknown."""
    return None if heard is None else sorted({label["source"] for label in labels if label["source"]} - set(heard))


def by_held_out(
    labels: Labels,
    by_scorer: Mapping[str, Scores],
    left_out: Collection[str] | None,
    left_out_sources: Collection[str] | None,
    options: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return the accuracies by criterion, held-out synthesizer and source; `ALL_LEFT_OUT` stands for all of them."""
    spoken = [label for label in labels if label["synthesizer"] in (left_out or ()) and label["source"]]
    rows = []
    for criterion, column in group_by_criterion(label["subset"] for label in spoken).items():
        members = [label for label in spoken if is_of_criterion(label["subset"], criterion)]
        names, sources = (sorted({label[key] for label in members}) for key in ("synthesizer", "source"))
        for name, source in product((*names, ALL_LEFT_OUT), (*sources, ALL_LEFT_OUT)):
            in_sources = {source} if source != ALL_LEFT_OUT else set(left_out_sources or ())
            in_row = [label for label in members if name in (label["synthesizer"], ALL_LEFT_OUT)]
            if cell := [label for label in in_row if label["source"] in in_sources]:
                found = {
                    key: select_column(compute_accuracy(cell, scores, options), column)
                    for key, scores in by_scorer.items()
                }
                about = {"criterion": criterion, "synthesizer": name, "source": source, "num_pairs": len(cell)}
                rows.append({**about, **found})
    return rows


def name_held_out_sources(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the sources of `by_held_out` in the order of its columns, with their titles."""
    sources = sorted(
        {row["source"] for row in results.get("by_held_out", ())}, key=lambda name: (name == ALL_LEFT_OUT, name)
    )
    held_out = results.get("left_out_sources") or ()
    return {name: SHOWN_NAMES.get(name, f"{name} (held out)" if name in held_out else name) for name in sources}


def render_held_out(results: Mapping[str, Any]) -> str:
    """Render `by_held_out` of a run's results as Markdown; empty without held-out synthesizers."""
    titles = name_held_out_sources(results)
    cells = {(row["criterion"], row["synthesizer"], row["source"]): row for row in results.get("by_held_out", ())}
    table = []
    for criterion, synthesizer in dict.fromkeys(key[:2] for key in cells):
        for scorer in results["accuracies"]:
            found = [cells.get((criterion, synthesizer, source)) for source in titles]
            names = [SHOWN_NAMES.get(synthesizer, synthesizer), title_scorer(scorer, results)]
            table.append([criterion, *names, *(_format_cell(row, scorer) for row in found)])
    if not table:
        return ""
    head = ["criterion", "held-out synthesizer", "", *titles.values()]
    text = "\n".join(render_table(head, table, 3, pad=True))
    return f"## Held-out synthesizers by source\n\nn: pairs, recordings.\n\n{text}\n"


def _format_cell(row: Mapping[str, Any] | None, scorer: str) -> str:
    if row is None:
        return "-"
    found = row[scorer]
    return f"{format_estimate(found['accuracy'], found['interval'])}, n {row['num_pairs']}, {found['num_groups']}"
