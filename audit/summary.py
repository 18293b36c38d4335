"""Render an audit as Markdown: its verdicts, and a few short tables of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sdiareward.common.escaping import escape_markdown
from sdiareward.common.tables import render_table
from sdiareward.evaluation.summary import TITLES, describe_overlap, format_interval
from sdiareward.pairs.loading import name_data
from sdiareward.perturbations.registry import PERTURBATIONS

from .checks import describe_worst, num_by_status
from .statistics import OTHERS
from .verdicts import FAIL, NOT_MEASURED, PASS, show_limit, show_value


Audit = Mapping[str, Any]
_MARKS = {PASS: "passed", FAIL: "FAILED", NOT_MEASURED: "not measured"}
_ABSENT = "-"
COLUMN_TITLES = {**TITLES, "colloquialness": "colloquialness", OTHERS: "no subset"}
PLACE_TITLES = {"chosen": "chosen side alone", "rejected": "rejected side alone", "both": "both sides"}


def render_audit(audit: Audit, earlier: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Render an audit, beside the verdicts of an earlier one, as Markdown that also reads well in a terminal."""
    model, data = map(escape_markdown, (audit["model"], name_data(audit["dataset"], audit["split"])))
    parts = [
        f"# Audit of {model} on {data}",
        describe_sample(audit),
        render_verdicts(audit["verdicts"], earlier),
        *_summarise_perturbations(audit),
        *_summarise_attacks(audit),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def describe_sample(audit: Audit) -> str:
    counts = num_by_status(audit["verdicts"])
    verdicts = ", ".join(f"{counts[status]} {_MARKS[status].lower()}" for status in _MARKS if status in counts)
    natural = audit["natural"]["all"]
    sentences = [
        f"{audit['num_pairs']} of {audit['num_available']} pairs from {audit['num_groups']} recordings or dialogues",
        f"{100 * natural['accuracy']:.1f}% of them right as they are, natural margin {natural['natural_margin']:.3g}",
        f"checks: {verdicts}",
    ]
    if audit["skipped"]:
        sentences.append(f"{len(audit['skipped'])} pairs could not be read or scored and count nowhere")
    if audit["failures"]:
        sentences.append(f"{len(audit['failures'])} changed dialogues could not be scored")
    return " ".join(filter(None, [f"{'; '.join(sentences)}.", describe_overlap(audit)]))


def render_verdicts(verdicts: Sequence[Mapping[str, Any]], earlier: Sequence[Mapping[str, Any]] | None = None) -> str:
    before = None if earlier is None else {verdict["name"]: verdict for verdict in earlier}
    head = ["check", "what", *([] if before is None else ["before"]), "value", "limit", "verdict", "note"]
    rows = []
    for verdict in verdicts:
        values = [show_value(verdict["value"], verdict["unit"])]
        if before is not None:
            values = [show_before(verdict, before), *values]
        ends = [show_limit(verdict), _MARKS[verdict["status"]], verdict["detail"]]
        rows.append([verdict["name"], verdict["title"], *values, *ends])
    return "\n".join(render_table(head, rows, num_left=2))


def show_before(verdict: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the value of an earlier audit, with its status if that was different."""
    found = before.get(verdict["name"])
    if found is None:
        return _ABSENT
    value = show_value(found["value"], found["unit"])
    return value if found["status"] == verdict["status"] else f"{value}, {_MARKS[found['status']].lower()}"


def describe_perturbation(name: str) -> str:
    """Return what a perturbation does at any severity: `N` stands for the severity."""
    return PERTURBATIONS[name].title.format("N")


def _summarise_perturbations(audit: Audit) -> list[str]:
    if not audit["nuisances"]:
        return []
    rows = [
        [describe_perturbation(row["nuisance"]), *_format_means(row)]
        for row in audit["nuisances"]["by_nuisance"]
        if row["flip_rate"] is not None
    ]
    places = [
        [PLACE_TITLES[row["place"]], *_format_means(row)] for row in audit["nuisances"]["by_place"] if row["worst"]
    ]
    columns = [
        [COLUMN_TITLES[row["column"]], *_format_means(row)] for row in audit["nuisances"]["by_column"] if row["worst"]
    ]
    head = ["change in points", "flips in %", "shift over natural margin", "worst: flips in %"]
    return [
        "## Changes that must not matter\n\nMeans over severities and sides; changes of accuracy and shifts count by "
        "their size.",
        "\n".join(render_table(["change", *head], rows)),
        "\n".join(render_table(["applied to", *head], places)),
        "\n".join(render_table(["pairs of", *head], columns)),
    ]


def _format_means(row: Mapping[str, Any]) -> list[str]:
    shift = row["relative_shift"]
    return [
        f"{100 * row['accuracy_change']:.1f}",
        f"{100 * row['flip_rate']:.1f}",
        _ABSENT if shift is None else f"{shift:.2f}",
        ", ".join(filter(None, [f"{100 * row['worst']['flip_rate']:.1f}", describe_worst(row["worst"])])),
    ]


def _summarise_attacks(audit: Audit) -> list[str]:
    if audit["attacks"] is None:
        return []
    rows = [
        [row["title"], row["num_pairs"], row.get("num_groups", _ABSENT), *_format_attack(row)]
        for row in audit["attacks"]
    ]
    head = [
        "attack",
        "pairs",
        "recordings",
        "pays in %",
        "95%",
        "ahead without it, %",
        "mean gain over natural margin",
    ]
    return ["## Attacks that must not pay", "\n".join(render_table(head, rows))]


def _format_attack(row: Mapping[str, Any]) -> list[str]:
    if not row["num_pairs"]:
        return [_ABSENT] * 4
    before, gain = row["paid_before"], row["relative_gain"]
    return [
        _ABSENT if row["paid"] is None else f"{100 * row['paid']:.1f}",
        format_interval(row["interval"]),
        _ABSENT if before is None else f"{100 * before:.1f}",
        _ABSENT if gain is None else f"{gain:+.2f}",
    ]
