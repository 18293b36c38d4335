"""Write an audit: `audit.json` and `conditions.json`, the verdicts and main tables as Markdown, and a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from sdiareward.common import tables
from sdiareward.common.files import write_file
from sdiareward.common.tables import Cell, Row, Table, escape_markdown
from sdiareward.evaluation.report.page import Block, Section, render_page
from sdiareward.evaluation.report.sections import make_settings_table
from sdiareward.evaluation.summary import TITLES, describe_overlap
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
    count_statuses,
    describe_worst,
    name_check,
    show_limit,
    show_value,
)


Audit = Mapping[str, Any]
# A sign and a word, because colour alone must not carry a verdict. Failures come first.
MARKS = {FAIL: "✗ failed", PASS: "✓ passed", NOT_MEASURED: "– not measured"}
# The checks by the part of the audit that their names begin with: heading, and what all checks of the group measure.
GROUPS = {
    "nuisances": ("All perturbations together", ""),
    "nuisance": ("Perturbations", "Pairs that flip, mean over severities and sides."),
    "attack": ("Attacks", "Pairs in which the attack succeeds."),
    "hearing": ("What it hears", ""),
    "baselines": ("Baselines", ""),
}
_COLUMNS = {**TITLES, "colloquialness": "colloquialness", OTHERS: "no subset", "overall_micro": "all pairs"}
_PLACES = {"chosen": "chosen side alone", "rejected": "rejected side alone", BOTH: "both sides"}
# Of the pairs and changes that could not be scored.
_NUM_SHOWN = 20
_MEANS = ["change in points", "flips in %", "shift over natural margin", "worst: flips in %"]


def write_audit(folder: Path, audit: dict[str, Any], earlier: Verdicts | None = None) -> str:
    """Write all files of an audit, beside the verdicts of an earlier one; return the Markdown."""
    rows, short = (audit["nuisances"] or {}).get("rows", []), audit
    if rows:
        # The long table of changes by column has a file of its own.
        rows_of_all = [{key: value for key, value in row.items() if key != "columns"} for row in rows]
        short = {**audit, "nuisances": {**audit["nuisances"], "rows": rows_of_all}}
    for name, content in (("conditions.json", rows), ("audit.json", short)):
        write_file(folder / name, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    text = render_audit(audit, earlier)
    write_file(folder / "audit.md", text)
    write_file(folder / "audit.html", render_audit_page(audit, earlier))
    return text


def render_audit_page(audit: Audit, earlier: Verdicts | None = None) -> str:
    counts, natural, num_pairs = count_statuses(audit["verdicts"]), audit["natural"]["all"], audit["num_pairs"]
    num_failed, right = counts.get(FAIL, 0), tables.format_percent(natural["accuracy"], 1)
    of_all = f"of {len(audit['verdicts'])} checks"
    tiles = [(mark, counts[status], "", of_all) for status, mark in MARKS.items() if status in counts]
    interval = tables.format_interval(natural["interval"])
    recordings = f"{interval}, {num_pairs} pairs from {audit['num_groups']} recordings"
    return render_page(
        title=f"Audit of {audit['model']}",
        kind="Audit of a reward model for spoken dialogue",
        subject=audit["model"],
        subtitle=f"on {name_data(audit['dataset'], audit['split'])}",
        headline=f"The model fails {num_failed} of {num_failed + counts.get(PASS, 0)} measured checks. It puts "
        f"{right}% of {num_pairs} pairs in the right order when nothing is changed. {describe_overlap(audit)}",
        tiles=[*tiles, ("right as they are", right, "%", recordings)],
        sections=build_sections(audit, earlier),
    )


def render_audit(audit: Audit, earlier: Verdicts | None = None) -> str:
    """Render the verdicts and the main tables as Markdown that also reads well in a terminal."""
    model, data = map(escape_markdown, (audit["model"], name_data(audit["dataset"], audit["split"])))
    rows = [[verdict["name"], verdict["title"], *_show_verdict(verdict, earlier)] for verdict in audit["verdicts"]]
    verdicts = tables.render_table(["check", "what", *_head_verdicts(earlier)], rows, num_left=2)
    parts = [f"# Audit of {model} on {data}", describe_sample(audit), "\n".join(verdicts)]
    for key, title, blocks in build_sections(audit):
        if key in ("nuisances", "attacks", "hearing"):
            parts += [f"## {title}", *(content.to_markdown() for kind, content in blocks if kind == "table")]
    return "\n\n".join(parts) + "\n"


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
    counts, natural = count_statuses(audit["verdicts"]), audit["natural"]["all"]
    order = [status for status in (PASS, FAIL, NOT_MEASURED) if status in counts]
    verdicts = ", ".join(f"{counts[status]} {MARKS[status][2:]}" for status in order)
    sentences = [
        f"{audit['num_pairs']} of {audit['num_available']} pairs from {audit['num_groups']} recordings or dialogues",
        f"{100 * natural['accuracy']:.1f}% of them right as they are, natural margin {natural['natural_margin']:.3g}",
        f"checks: {verdicts}",
    ]
    for key, what in (("skipped", "pairs"), ("failures", "changed dialogues")):
        if audit[key]:
            sentences.append(f"{len(audit[key])} {what} could not be scored and count nowhere")
    return f"{'; '.join(sentences)}. {describe_overlap(audit)}".rstrip()


def build_sections(audit: Audit, earlier: Verdicts | None = None) -> list[Section]:
    sections = [
        ("verdicts", "Verdicts", _show_verdicts(audit["verdicts"], earlier)),
        ("nuisances", "Perturbations", _show_perturbations(audit) if audit["nuisances"] else []),
        ("attacks", "Attacks", _show_attacks(audit["attacks"]) if audit["attacks"] else []),
        ("hearing", "What it hears", _show_modalities(audit["hearing"]["rows"]) if audit["hearing"] else []),
        ("excluded", "Skipped by the audit", _show_skipped(audit)),
        ("provenance", "How this was made", _show_provenance(audit)),
    ]
    return [section for section in sections if section[2]]


def _show_verdicts(verdicts: Verdicts, earlier: Verdicts | None) -> list[Block]:
    text = "A value on the limit passes. The limits were chosen before a model was measured against them."
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
    """Return what an attack does, or a perturbation at any severity: `N` stands for the severity."""
    return ATTACKS[name].title if name in ATTACKS else PERTURBATIONS[name].title.format("N")


def _show_perturbations(audit: Audit) -> list[Block]:
    nuisances = audit["nuisances"]
    text = (
        "Means are over severities and sides; changes and shifts count by their size. Shifts are divided by the "
        f"natural margin, {tables.format_number(audit['natural']['all']['natural_margin'], 3)}."
    )
    rows = [
        Row([Cell(row["nuisance"].replace("_", " "), _describe_change(row["nuisance"])), *_show_means(row)])
        for row in nuisances["by_nuisance"]
        if row["worst"]
    ]
    if nuisances["total"]["worst"]:
        rows.append(Row(["all perturbations", *_show_means(nuisances["total"])], "sum"))
    blocks: list[Block] = [("text", text), ("table", Table("By change", ["change", *_MEANS], rows))]
    for key, titles, first in (("place", _PLACES, "applied to"), ("column", _COLUMNS, "pairs of")):
        rows = [Row([titles[row[key]], *_show_means(row)]) for row in nuisances[f"by_{key}"] if row["worst"]]
        blocks.append(("table", Table(f"Perturbations: {first}", [first, *_MEANS], rows)))
    rows = [_show_change(row) for row in nuisances["rows"] if row["num_pairs"]]
    head = ["change, applied to", "pairs", "recordings", "accuracy in %", "change in points", "flips in %"]
    head += ["no longer right", "now right", "mean shift"]
    title = "Every severity and side"
    return [*blocks, ("details", (title, [("table", Table(title, head, rows))]))]


def _show_means(row: Mapping[str, Any]) -> list[Any]:
    percents = (tables.format_percent(row[name], 1) for name in ("accuracy_change", "flip_rate"))
    worst = Cell(tables.format_percent(row["worst"]["flip_rate"], 1), describe_worst(row["worst"]))
    return [*percents, tables.format_number(row["relative_shift"]), worst]


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
        "An attack on the rejected side succeeds if its reward now reaches the chosen side's and did not before; an "
        "attack on the chosen side, if the broken dialogue is not rewarded less than the intact one."
    )
    rows = []
    for row in attacks:
        # An attack that does not apply to any pair has no numbers.
        success = tables.make_share(row.get("paid"), row.get("interval"))
        gains = [tables.format_signed(row.get(name)) for name in ("gain", "relative_gain")]
        reasons = "; ".join(f"{count} pairs: {reason}" for reason, count in row["not_applicable"].items())
        about = [Cell(row["attack"].replace("_", " "), row["title"]), row["baseline"]]
        counts = [row["num_pairs"], row["num_groups"]]
        rows.append(Row([*about, *counts, success, tables.format_percent(row.get("paid_before")), *gains, reasons]))
    head = ["attack", "on", "pairs", "recordings", "succeeds in %", "ahead without it in %", "mean gain"]
    table = Table("By attack", [*head, "over natural margin", "not tried"], rows, words=("on", "not tried"))
    return [("text", text), ("table", table)]


def _show_modalities(rows: Verdicts) -> list[Block]:
    text = "Pairs tie without the sound where both sides say the same. Margin kept is a share of that with both."
    head, table = ["pairs of", "pairs", "recordings"], []
    for name in rows[0]["conditions"]:
        head += [name.replace("_", " "), *([] if name == BOTH else ["margin kept"])]
    for row in rows:
        cells: list[Any] = [_COLUMNS[row["column"]], row["num_pairs"], row["conditions"][BOTH]["num_groups"]]
        for name, found in row["conditions"].items():
            interval = tables.format_range(found["margin_kept_interval"], tables.format_number)
            kept = Cell(tables.format_number(found["margin_kept"]), interval)
            cells += [_show_accuracy(found), *([] if name == BOTH else [kept])]
        table.append(Row([*cells, *map(_show_accuracy, row["baselines"].values())]))
    head += [f"{name} baseline" for name in rows[0]["baselines"]]
    return [("text", text), ("table", Table("Sound and words", head, table))]


def _show_accuracy(found: Mapping[str, Any]) -> Cell:
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
    return blocks or [("text", "Every pair of the sample could be read and scored.")]


def _show_provenance(audit: Audit) -> list[Block]:
    text = (
        "All numbers are in audit.json, conditions.json and rewards.jsonl beside this page. {num_dialogues} dialogues "
        "were scored in {seconds:.0f} seconds."
    )
    about = {name: audit["config"][name] for name in ("num_bootstrap", "parts")}
    about |= {**audit["run"], "python": audit["python"], "git": audit["git_revision"], **audit["versions"]}
    return [("text", text.format(**audit["timing"])), ("table", make_settings_table(about))]
