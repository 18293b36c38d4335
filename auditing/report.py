"""Write an audit: `audit.json`, its findings and checks as Markdown, and a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from sdiareward.common import tables
from sdiareward.common.files import write_file
from sdiareward.common.tables import Cell, Row, Table, escape_markdown
from sdiareward.evaluation.report.page import Block, Section, render_page
from sdiareward.evaluation.summary import TITLES, describe_overlap, name_model
from sdiareward.pairs.loading import name_data
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.registry import PERTURBATIONS

from .verdicts import (
    BOTH,
    FAIL,
    NOT_MEASURED,
    OTHERS,
    PASS,
    Verdicts,
    name_check,
    show_limit,
    show_value,
)


Audit = Mapping[str, Any]
# A sign and a word, because colour alone must not carry a verdict. Failures come first.
MARKS = {FAIL: "✗ failed", PASS: "✓ passed", NOT_MEASURED: "– not measured"}
# The checks by the part of the audit that their names begin with: heading, and what all checks of the group measure.
GROUPS = {
    "perturbations": ("All perturbations together", ""),
    "perturbation": ("Perturbations", "Pairs that flip, mean over severities and sides."),
    "attack": ("Attacks", "Pairs in which the attack succeeds."),
    "hearing": ("Sound or words alone", ""),
    "baselines": ("Baselines", ""),
}
# What a model ignores if these attacks succeed.
_IGNORED = {
    **dict.fromkeys(("foreign_ending", "shuffled", "foreign_transcript"), "It does not follow the conversation"),
    "silence": "It ignores the sound",
}
_COLUMNS = {**TITLES, "colloquialness": "colloquialness", OTHERS: "no subset", "overall_micro": "all pairs"}
_PLACES = {"chosen": "chosen side alone", "rejected": "rejected side alone", BOTH: "both sides"}
# Of the pairs and changes that could not be scored.
_NUM_SHOWN = 20


def write_audit(folder: Path, audit: dict[str, Any], earlier: Verdicts | None = None) -> str:
    """Write all files of an audit, beside the verdicts of an earlier one; return the Markdown."""
    write_file(folder / "audit.json", json.dumps(audit, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    text = render_audit(audit, earlier)
    write_file(folder / "audit.md", text)
    write_file(folder / "audit.html", render_audit_page(audit, earlier))
    return text


def render_audit_page(audit: Audit, earlier: Verdicts | None = None) -> str:
    name, data = name_model(audit["model"]), name_data(audit["dataset"], audit["split"])
    return render_page(
        title=f"Audit of {name}",
        kind="Audit of a reward model for spoken dialogue",
        subject=name,
        subtitle=f"on {data}",
        headline=" ".join(list_findings(audit)),
        notes=[describe_sample(audit)],
        sections=build_sections(audit, earlier),
        foot="Numbers and settings are in audit.json, every reward in rewards.jsonl, beside this page.",
    )


def list_findings(audit: Audit) -> list[str]:
    """Return in words what the model fails, the worst check of each kind, and how many checks it fails."""
    failed = [each for each in audit["verdicts"] if each["status"] == FAIL]
    found, worst = [], dict[str, Mapping[str, Any]]()
    for verdict in sorted(failed, key=lambda each: -each["value"]):
        part, _, change = verdict["name"].partition(".")
        if part in ("attack", "perturbation"):
            worst.setdefault(_IGNORED.get(change, part), verdict)
        elif part != "perturbations":
            found.append(_phrase_check(verdict))
    phrases = map(_phrase_failure, worst.values())
    num_measured = sum(each["status"] != NOT_MEASURED for each in audit["verdicts"])
    return [*phrases, *found, f"The model fails {len(failed)} of {num_measured} measured checks."]


def _phrase_failure(verdict: Mapping[str, Any]) -> str:
    change, share = verdict["name"].partition(".")[2], f"{show_value(verdict['value'], 'share')} of the pairs"
    if change not in ATTACKS:
        return f"With {_describe_change(change)}, {share} flip."
    title = ATTACKS[change].title
    if ATTACKS[change].against != "self":
        return f"With {title}, the worse dialogue catches up in {share}."
    start = f"{_IGNORED[change]}: with" if change in _IGNORED else "With"
    return f"{start} {title}, the reward does not fall in {share}."


def _phrase_check(verdict: Mapping[str, Any]) -> str:
    name = name_check(verdict["name"])
    value = show_value(verdict["value"], verdict["unit"])
    return f"{name[0].upper()}{name[1:]}: {value} (limit: {show_limit(verdict)})."


def render_audit(audit: Audit, earlier: Verdicts | None = None) -> str:
    """Render the findings and the checks, failures first, as Markdown that also reads well in a terminal."""
    model, data = map(escape_markdown, (name_model(audit["model"]), name_data(audit["dataset"], audit["split"])))
    found = {status: [each for each in audit["verdicts"] if each["status"] == status] for status in MARKS}
    missing = [each["name"] for each in found.pop(NOT_MEASURED)]
    rows = [[each["name"], each["title"], *_show_verdict(each, earlier)] for each in chain(*found.values())]
    verdicts = tables.render_table(["check", "what", *_head_verdicts(earlier)], rows, num_left=2)
    parts = [f"# Audit of {model} on {data}", " ".join(list_findings(audit)), describe_sample(audit)]
    parts += ["\n".join(verdicts), f"Not measured: {', '.join(missing)}." if missing else ""]
    return "\n\n".join(filter(None, parts)) + "\n"


def _head_verdicts(earlier: Verdicts | None) -> list[str]:
    return [*([] if earlier is None else ["before"]), "value", "limit", "verdict", "note"]


def _show_verdict(verdict: Mapping[str, Any], earlier: Verdicts | None) -> list[str]:
    """Return the cells of `_head_verdicts`; the status of an earlier audit if it was different."""
    value = show_value(verdict["value"], verdict["unit"])
    cells = [value, show_limit(verdict), MARKS[verdict["status"]], verdict["detail"]]
    if earlier is None:
        return cells
    before = {each["name"]: each for each in earlier}.get(verdict["name"])
    if before is None:
        return ["-", *cells]
    changed = f", {MARKS[before['status']][2:]}" if before["status"] != verdict["status"] else ""
    return [show_value(before["value"], before["unit"]) + changed, *cells]


def describe_sample(audit: Audit) -> str:
    natural, counts = audit["natural"]["all"], (audit["num_pairs"], audit["num_available"], audit["num_groups"])
    sentences = [
        "{} of {} pairs from {} recordings or dialogues".format(*counts),
        f"{100 * natural['accuracy']:.1f}% of them right unchanged, median margin {natural['natural_margin']:.3g}",
    ]
    for key, what in (("skipped", "pairs"), ("failures", "changed dialogues")):
        if audit[key]:
            sentences.append(f"{len(audit[key])} {what} could not be scored and are not counted")
    return f"{'; '.join(sentences)}. {describe_overlap(audit)}".rstrip()


def build_sections(audit: Audit, earlier: Verdicts | None = None) -> list[Section]:
    sections = [
        ("verdicts", "Checks", _show_verdicts(audit["verdicts"], earlier)),
        ("hearing", "Sound or words alone", _show_modalities(audit["hearing"]["rows"]) if audit["hearing"] else []),
        ("details", "Details", [*_show_perturbations(audit), *_show_attacks(audit["attacks"] or ())]),
        ("excluded", "Skipped by the audit", _show_skipped(audit)),
    ]
    return [section for section in sections if section[2]]


def _show_verdicts(verdicts: Verdicts, earlier: Verdicts | None) -> list[Block]:
    text = "A value on the limit passes. The limits were chosen before any model was measured."
    blocks: list[Block] = [("text", text)]
    for status, mark in MARKS.items():
        members = [verdict for verdict in verdicts if verdict["status"] == status]
        title = f"{mark}: {len(members)} checks"
        table: Block = ("table", _tabulate_verdicts(title, members, earlier))
        if status == FAIL:
            blocks += [("heading", title), table] if members else [("text", "No check failed.")]
        elif members:
            blocks.append(("details", (title, [table])))
    return blocks


def _tabulate_verdicts(title: str, verdicts: Verdicts, earlier: Verdicts | None) -> Table:
    rows = []
    for group, members in groupby(verdicts, key=lambda verdict: verdict["name"].partition(".")[0]):
        rows.append(Row([Cell(*GROUPS[group])], "group"))
        for verdict in members:
            name, status = verdict["name"], verdict["status"]
            # The rule of these groups says the rest of the title.
            what = _describe_change(name.partition(".")[2]) if GROUPS[group][1] else verdict["title"]
            *cells, mark, note = _show_verdict(verdict, earlier)
            style = "none" if status == NOT_MEASURED else status
            first = Cell(name_check(name), f"{what}\n{name}")
            rows.append(Row([first, *cells, Cell(mark, style=style), Cell(note, style="note")]))
    words = ("limit", "verdict", "note")
    return Table(title, ["check", *_head_verdicts(earlier)], rows, words, style="checks")


def _describe_change(name: str) -> str:
    """Return what an attack does, or a perturbation at all its severities."""
    if name in ATTACKS:
        return ATTACKS[name].title
    severities = [f"{severity:g}" for severity in PERTURBATIONS[name].severities]
    return PERTURBATIONS[name].title.format(" or ".join(filter(None, [", ".join(severities[:-1]), *severities[-1:]])))


def _show_perturbations(audit: Audit) -> list[Block]:
    rows = [_show_change(row) for row in (audit["nuisances"] or {}).get("rows", ()) if row.get("flip_rate")]
    head = ["change, applied to", "pairs", "recordings", "accuracy in %", "change in points", "flips in %"]
    head += ["no longer right", "now right", "mean shift"]
    title = "Perturbations that flip pairs"
    return [("details", (title, [("table", Table(title, head, rows))]))] if rows else []


def _show_change(row: Mapping[str, Any]) -> Row:
    title = f"{PERTURBATIONS[row['nuisance']].format_title(row['severity'])}, {_PLACES[row['place']]}"
    interval = tables.format_range(row["accuracy_change_interval"], tables.format_points)
    change = Cell(tables.format_points(row["accuracy_change"]), interval)
    flips = tables.make_share(row["flip_rate"], row["flip_interval"])
    counts = [row["num_pairs"], row["num_groups"], tables.format_percent(row["accuracy"])]
    numbers = [row["num_lost"], row["num_won"], tables.format_signed(row["mean_shift"])]
    return Row([title, *counts, change, flips, *numbers])


def _show_attacks(attacks: Verdicts) -> list[Block]:
    text = (
        "An attack on the rejected side succeeds if its reward now reaches the chosen side's and did not before. An "
        "attack on the chosen side succeeds if it does not lower the reward."
    )
    rows, reasons = [], []
    for row in attacks:
        name = row["attack"].replace("_", " ")
        reasons += [f"{name}, {count} pairs: {reason}" for reason, count in row["not_applicable"].items()]
        if row["num_pairs"]:
            gains = [tables.format_signed(row[name]) for name in ("gain", "relative_gain")]
            cells = [Cell(name, row["title"]), row["baseline"], row["num_pairs"], row["num_groups"]]
            shares = [tables.make_share(row["paid"], row["interval"]), tables.format_percent(row["paid_before"])]
            rows.append(Row([*cells, *shares, *gains]))
    head = ["attack", "on", "pairs", "recordings", "succeeds in %", "ahead without it in %", "mean change of reward"]
    table = Table("By attack", [*head, "over median margin"], rows, words=("on",))
    tried: list[Block] = [("details", ("Attacks", [("text", text), ("table", table)]))] if rows else []
    return tried + ([("details", ("Attacks not tried", [("list", reasons)]))] if reasons else [])


def _show_modalities(rows: Verdicts) -> list[Block]:
    text = (
        "Without sound, pairs with equal words tie. The margin kept is the share of the margin with sound and words."
    )
    head, table = ["pairs of", "pairs", "recordings"], []
    for name in rows[0]["conditions"]:
        head += [name.replace("_", " "), *([] if name == BOTH else ["margin kept"])]
    for row in rows:
        cells: list[Any] = [_COLUMNS[row["column"]], row["num_pairs"], row["conditions"][BOTH]["num_groups"]]
        for name, found in row["conditions"].items():
            interval = tables.format_range(found["margin_kept_interval"], tables.format_number)
            kept = Cell(tables.format_number(found["margin_kept"]), interval)
            cells += [_show_accuracy(found, row["num_pairs"]), *([] if name == BOTH else [kept])]
        table.append(Row([*cells, *(_show_accuracy(found, row["num_pairs"]) for found in row["baselines"].values())]))
    head += [f"{name} baseline" for name in rows[0]["baselines"]]
    return [("text", text), ("table", Table("Sound and words", head, table))]


def _show_accuracy(found: Mapping[str, Any], num_pairs: int) -> Cell:
    if found["num_ties"] == num_pairs:
        return Cell("all tie")
    share = tables.make_share(found["accuracy"], found["interval"])
    return share._replace(note=f"{share.note}\n{found['num_ties']} ties") if found["num_ties"] else share


def _show_skipped(audit: Audit) -> list[Block]:
    skipped = [f"{row['pair_id']}, {_COLUMNS[row['subset']]}: {row['reason']}" for row in audit["skipped"]]
    failures = [f"{row['condition']}, pair {row['pair_id']}: {row['reason']}" for row in audit["failures"]]
    blocks: list[Block] = []
    for what, lines in (("pairs", skipped), ("changed dialogues", failures)):
        if lines:
            first = f"; the first {_NUM_SHOWN}:" if len(lines) > _NUM_SHOWN else ":"
            blocks += [("text", f"{len(lines)} {what} could not be scored{first}"), ("list", lines[:_NUM_SHOWN])]
    return blocks
