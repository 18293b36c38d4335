"""Write the page of an audit: one self-contained HTML file, verdicts first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.html import make_html_environment
from sdiareward.common.package_files import AUDIT, EVALUATION_PAGE
from sdiareward.evaluation.report.pieces import FILTERS, hash_content
from sdiareward.evaluation.summary import describe_overlap
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.registry import PERTURBATIONS

from .checks import describe_worst, num_by_status
from .summary import COLUMN_TITLES, PLACE_TITLES, describe_perturbation, show_before
from .verdicts import FAIL, NOT_MEASURED, PASS, name_check, show_limit, show_value


# A sign and a word, because colour alone must not carry a verdict. Failures come first.
MARKS = {FAIL: "✗ failed", PASS: "✓ passed", NOT_MEASURED: "– not measured"}
SECTIONS = {
    "verdicts": "Verdicts",
    "nuisances": "Perturbations",
    "attacks": "Attacks",
    "hearing": "What it hears",
    "excluded": "Skipped by the audit",
    "provenance": "How this was made",
}
_ALWAYS = ("verdicts", "excluded", "provenance")
# The checks by the part of the audit that their names begin with: heading, and what all checks of the group measure.
GROUPS = {
    "nuisances": ("All perturbations together", ""),
    "nuisance": ("Perturbations", "Pairs that flip, mean over severities and sides."),
    "attack": ("Attacks", "Pairs in which the attack succeeds."),
    "hearing": ("What it hears", ""),
    "baselines": ("Baselines", "Accuracy above that of the better cheap baseline on the same pairs."),
}
_ABOUT = ("dataset", "split", "num_pairs", "seed", "num_bootstrap", "parts")


def write_page(folder: Path, audit: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]] | None = None) -> Path:
    """Write `audit.html` into the folder; `earlier` holds the verdicts of an earlier audit to compare with."""
    write_file(folder / "audit.html", render_page(audit, earlier))
    return folder / "audit.html"


def render_page(audit: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Render the page as HTML that requests nothing and escapes all data."""
    from markupsafe import Markup

    environment = make_html_environment(AUDIT, EVALUATION_PAGE)
    environment.filters |= {**FILTERS, "value": show_value, "limit": show_limit, "worst": describe_worst}
    style = (EVALUATION_PAGE / "page.css").read_text(encoding="utf-8") + (AUDIT / "audit.css").read_text(
        encoding="utf-8"
    )
    before = None if earlier is None else {verdict["name"]: verdict for verdict in earlier}
    page = environment.get_template("audit.html").render(
        audit=audit,
        overlap=describe_overlap(audit),
        counts=num_by_status(audit["verdicts"]),
        marks=MARKS,
        failed=group_verdicts(audit["verdicts"], FAIL),
        folded=[(status, group_verdicts(audit["verdicts"], status)) for status in (PASS, NOT_MEASURED)],
        before=before,
        show_before=show_before,
        sections=[(key, title) for key, title in SECTIONS.items() if key in _ALWAYS or audit.get(key)],
        titles={**COLUMN_TITLES, "overall_micro": "all pairs"},
        places=PLACE_TITLES,
        nuisances=PERTURBATIONS,
        describe_perturbation=describe_perturbation,
        settings=_list_settings(audit),
        style=Markup(style),
        style_hash=hash_content(style),
    )
    return page + "\n"


def group_verdicts(verdicts: Sequence[Mapping[str, Any]], status: str) -> list[dict[str, Any]]:
    """Return the checks with a status by group of `GROUPS`, each with a `short` name and `what` it measures."""
    found = []
    for group, (title, rule) in GROUPS.items():
        rows = [
            {**verdict, "short": name_check(verdict["name"]), "what": _describe_check(verdict)}
            for verdict in verdicts
            if verdict["status"] == status and verdict["name"].partition(".")[0] == group
        ]
        if rows:
            found.append({"title": title, "rule": rule, "rows": rows})
    return found


def _describe_check(verdict: Mapping[str, Any]) -> str:
    """Return what a check measures, without what its group and its short name say."""
    group, _, name = verdict["name"].partition(".")
    if group == "nuisance" and name in PERTURBATIONS:
        return describe_perturbation(name)
    if group == "attack" and name in ATTACKS:
        return ATTACKS[name].title
    return "" if GROUPS[group][1] else str(verdict["title"])


def _list_settings(audit: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = {name: audit["config"].get(name) for name in _ABOUT} | {"model": audit["run"]["model"]}
    found |= {"dtype": audit["run"]["dtype"], "python": audit["python"], "git": audit["git_revision"]}
    found |= {name: version for name, version in audit["versions"].items() if version}
    rows = {
        name: ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        for name, value in found.items()
    }
    return [(name, str(value)) for name, value in rows.items() if value not in (None, "")]
