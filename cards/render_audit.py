"""Render the tables of `docs/audit.md` and what `docs/validity.md` says of them.

    python -m sdiareward.cards.render_audit

The lists of changes, attacks and limits come from the code; the numbers from audits of the nano checkpoint, as it is
and as it was before it was trained to withstand them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.audit.summary import describe_sample, render_verdicts
from sdiareward.audit.verdicts import FAIL, PASS, read_limits, show_limit, show_value
from sdiareward.common.escaping import escape_markdown
from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_markdown_table
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.registry import PERTURBATIONS

from .render import render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE, VALIDITY = _ROOT / "docs" / "audit.md", _ROOT / "docs" / "validity.md"
NOW = _ROOT / "checkpoints" / "nano" / "audit.json"
BEFORE = _ROOT / "benchmarks" / "results" / "audit_nano_before.json"
_NOT_AUDITED = "Not audited yet: `sdiareward audit` does it."
# What validity.md has a line of, by the beginning of the checks' names.
_KINDS = {
    "nuisance.": "Changes that must not matter",
    "attack.": "Attacks that must not pay",
    "ties.": "Ties",
    "hearing.": "What it hears",
    "baselines.": "Beside cheap baselines",
    "left_out.": "On synthesizers left out of training",
}


def render_guide(guide: str, now: Path = NOW, before: Path = BEFORE) -> str:
    """Return the guide with its tables.

    Args:
        guide (`str`): Text with the blocks `nuisances`, `attacks`, `limits` and `nano`.
        now (`Path`, *optional*): `audit.json` of the nano checkpoint as it is.
        before (`Path`, *optional*): The same of an earlier one.
    """
    blocks = {
        "nuisances": render_nuisances(),
        "attacks": render_attacks(),
        "limits": render_limits(),
        "nano": render_nano(_read(now), _read(before)),
    }
    return render_readme(guide, blocks)


def render_nuisances() -> str:
    """Return the changes with their severities."""
    rows = [
        [name, nuisance.title.format("…"), ", ".join(f"{severity:g}" for severity in nuisance.severities)]
        for name, nuisance in PERTURBATIONS.items()
    ]
    return "\n".join(render_markdown_table(["name", "change", "severities"], rows, num_left=3))


def render_attacks() -> str:
    """Return the attacks, the side that each is on, and what it needs."""
    rows = [[name, attack.title, attack.baseline, attack.needs] for name, attack in ATTACKS.items()]
    return "\n".join(render_markdown_table(["name", "attack", "on", "needs"], rows, num_left=4))


def render_limits() -> str:
    """Return the limits; a star stands for the names of the changes, attacks and so on."""
    rows = []
    for limit in read_limits():
        fields = {"at_most": limit.at_most, "at_least": limit.at_least, "unit": limit.unit}
        rows.append([limit.pattern, limit.title.format("…"), show_limit(fields)])
    return "\n".join(render_markdown_table(["check", "what", "limit"], rows, num_left=3))


def render_nano(now: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> str:
    """Return the verdicts of the nano checkpoint, those of an earlier one beside them.

    Args:
        now (`Mapping`, *optional*): Its `audit.json`.
        before (`Mapping`, *optional*): That of the earlier one.
    """
    if now is None:
        return _NOT_AUDITED
    earlier = None if before is None else before["verdicts"]
    return f"{describe_sample(now)}\n\n{render_verdicts(now['verdicts'], earlier)}"


def render_validity(guide: str, now: Path = NOW) -> str:
    """Return the guide to validity with what the audit of the nano checkpoint says.

    Args:
        guide (`str`): Text with the block `audit`.
        now (`Path`, *optional*): `audit.json` of the nano checkpoint.
    """
    return render_readme(guide, {"audit": render_findings(_read(now))})


def render_findings(audit: Mapping[str, Any] | None) -> str:
    """Return a line for each kind of check: how many pass, and what fails, the worst first.

    Args:
        audit (`Mapping`, *optional*): An `audit.json`.
    """
    if audit is None:
        return _NOT_AUDITED
    lines = [f"- **Sample.** {describe_sample(audit)}"]
    totals = [verdict for verdict in audit["verdicts"] if verdict["name"].startswith("nuisances.")]
    lines += [f"- **Over all changes.** {'; '.join(_sentence(verdict) for verdict in totals)}."] if totals else []
    for beginning, title in _KINDS.items():
        members = [verdict for verdict in audit["verdicts"] if verdict["name"].startswith(beginning)]
        measured = [verdict for verdict in members if verdict["value"] is not None]
        if not measured:
            lines.append(f"- **{title}.** Not measured.")
            continue
        failed = sorted((verdict for verdict in measured if verdict["status"] == FAIL), key=_distance, reverse=True)
        num_passed = sum(verdict["status"] == PASS for verdict in measured)
        missing = f", {len(members) - len(measured)} not measured" if len(measured) < len(members) else ""
        lost = f" Failed: {'; '.join(_sentence(verdict) for verdict in failed)}." if failed else ""
        lines.append(f"- **{title}.** {num_passed} of {len(members)} checks passed{missing}.{lost}")
    return "\n".join(lines)


def _sentence(verdict: Mapping[str, Any]) -> str:
    value = show_value(verdict["value"], verdict["unit"])
    return f"{escape_markdown(verdict['title'])} {value} ({show_limit(verdict)})"


def _distance(verdict: Mapping[str, Any]) -> float:
    """Return how far a value is from its limit."""
    limit = verdict["at_least"] if verdict["at_most"] is None else verdict["at_most"]
    return abs(float(verdict["value"]) - float(limit))


def _read(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


GUIDES = {GUIDE: render_guide, VALIDITY: render_validity}


def main() -> None:
    """Render both guides."""
    for path, render in GUIDES.items():
        write_file(path, render(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
