"""Summarise an audit for a card or a guide: one line for each kind of check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdiareward.audit.report import describe_sample
from sdiareward.audit.verdicts import FAIL, PASS, show_limit, show_value
from sdiareward.common.escaping import escape_markdown


# Titles by the beginning of the checks' names.
_KINDS = {
    "nuisance.": "Changes that must not matter",
    "attack.": "Attacks that must not pay",
    "hearing.": "What it hears",
    "baselines.": "Beside cheap baselines",
}


def render_findings(audit: Mapping[str, Any]) -> str:
    """Return one line for each kind of check: how many pass, and which fail, the worst first."""
    lines = [f"- **Sample.** {describe_sample(audit)}"]
    totals = [verdict for verdict in audit["verdicts"] if verdict["name"].startswith("nuisances.")]
    if totals:
        lines.append(f"- **Over all changes.** {'; '.join(map(_render_verdict, totals))}.")
    for beginning, title in _KINDS.items():
        members = [verdict for verdict in audit["verdicts"] if verdict["name"].startswith(beginning)]
        lines.append(f"- **{title}.** {_render_kind(members)}")
    return "\n".join(lines)


def _render_kind(members: list[Mapping[str, Any]]) -> str:
    measured = [verdict for verdict in members if verdict["value"] is not None]
    if not measured:
        return "Not measured."
    failed = sorted(
        (verdict for verdict in measured if verdict["status"] == FAIL), key=_compute_distance, reverse=True
    )
    num_passed = sum(verdict["status"] == PASS for verdict in measured)
    missing = f", {len(members) - len(measured)} not measured" if len(measured) < len(members) else ""
    failures = f" Failed: {'; '.join(map(_render_verdict, failed))}." if failed else ""
    return f"{num_passed} of {len(members)} checks passed{missing}.{failures}"


def _render_verdict(verdict: Mapping[str, Any]) -> str:
    value = show_value(verdict["value"], verdict["unit"])
    return f"{escape_markdown(verdict['title'])} {value} ({show_limit(verdict)})"


def _compute_distance(verdict: Mapping[str, Any]) -> float:
    limit = verdict["at_least"] if verdict["at_most"] is None else verdict["at_most"]
    return abs(float(verdict["value"]) - float(limit))
