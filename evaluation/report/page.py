"""Write the page of an evaluation: one HTML file with everything in it, its figures and its numbers beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import write_file
from sdiareward.common.html import make_html_environment
from sdiareward.common.package_files import EVALUATION_PAGE

from ..summary import phrase_interval
from .content import TAXONOMY, build_report
from .disagreements import find_disagreements
from .examples import Collector, EmbedAudio, describe_disagreements, describe_lowest
from .figures import FIGURE_TITLES, draw_figures
from .inputs import ComparedEvaluation, TrainingRun
from .pieces import (
    FILTERS,
    format_interval,
    format_number,
    format_percent,
    hash_content,
    make_breakable,
    make_picture,
)
from .sections import build_sections, get_titles


if TYPE_CHECKING:
    import datasets
    from markupsafe import Markup

# Averages of the table that are also shown large.
_TILES = ("overall_macro", "overall_micro", "modality_micro", "colloquialness")


def write_page(
    folder: str | Path,
    results: Mapping[str, Any],
    pairs: datasets.Dataset,
    labels: Sequence[Mapping[str, Any]],
    by_scorer: Mapping[str, Mapping[str, Mapping[str, Any]]],
    *,
    others: Sequence[ComparedEvaluation] = (),
    training: Sequence[TrainingRun] = (),
    embed_audio: EmbedAudio = "all",
) -> Path:
    """Write `report/index.html`, `report/report.json` and `report/*.png`; the same results give the same bytes."""
    records = _add_columns(pairs, labels)
    found = find_disagreements(records, by_scorer["model"], others, results["config"]["nan"])
    collector = Collector(embed_audio)
    examples = describe_lowest(pairs, records, by_scorer["model"], collector)
    disagreements = describe_disagreements(pairs, records, found, collector)
    report = build_report(results, records, by_scorer, others, training, examples, disagreements)
    report["private_licenses"] = sorted(collector.private_licenses)
    target = Path(folder) / "report"
    target.mkdir(parents=True, exist_ok=True)
    scored = [{**record, **by_scorer["model"][record["pair_id"]]} for record in records]
    figures = draw_figures(report, scored, target)
    for stale in {path.stem for path in target.glob("*.png")} - set(figures):
        (target / f"{stale}.png").unlink()
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    write_file(target / "report.json", text + "\n")
    page = render_page(report, {name: (target / f"{name}.png").read_bytes() for name in figures}, collector.clips)
    write_file(target / "index.html", page)
    return target / "index.html"


def _add_columns(pairs: datasets.Dataset, labels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the labels with the columns that the metric does not need but the page shows."""
    names = [name for name in (*TAXONOMY, "language", "license") if name in pairs.column_names]
    rows = list(pairs.select_columns(names)) if names else [{}] * len(labels)
    return [{**row, **label} for row, label in zip(rows, labels, strict=True)]


def render_page(report: Mapping[str, Any], figures: Mapping[str, bytes], clips: Mapping[str, str]) -> str:
    """Render the page as HTML that requests nothing and escapes all data."""
    from markupsafe import Markup

    environment = make_html_environment(EVALUATION_PAGE)
    environment.filters |= FILTERS
    style, script = ((EVALUATION_PAGE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    contents = build_sections(report)
    split = f", split {report['split']}" if report["split"] else ""
    page = environment.get_template("page.html").render(
        title=f"Evaluation of {report['model']}",
        kind="Evaluation on preference pairs of spoken dialogue",
        subject=report["model"],
        subtitle=f"{report['num_pairs']} pairs from {report['num_groups']} recordings or dialogues of "
        f"{report['dataset']}{split}",
        headline=_write_headline(report),
        tiles=_list_tiles(report),
        notes=report["notes"],
        contents=contents,
        sections=[(key, title) for key, title, _ in contents],
        figures={name: {"alt": FIGURE_TITLES[name], **make_picture(data)} for name, data in figures.items()},
        clips=clips,
        titles=get_titles(report),
        left_out=report["left_out_synthesizers"],
        style=Markup(style),
        script=Markup(script),
        style_hash=hash_content(style),
        script_hash=hash_content(script),
    )
    return page + "\n"


def _write_headline(report: Mapping[str, Any]) -> Markup:
    """Return the result of the model and of the other scorers in one sentence."""
    from markupsafe import Markup, escape

    own, num_pairs = report["accuracies"]["model"], report["num_pairs"]
    who, what = ("Judge", "answer") if report["judge"] else ("Model", "reward")
    if own["overall_micro"] is None:
        found = escape(f"has no usable {what} for any of {num_pairs} pairs")
    else:
        interval = phrase_interval(own["interval"]["overall_micro"], own["num_groups"]["overall_micro"])
        found = Markup("puts the right dialogue first in {} of {} pairs: <strong>{}%</strong> ({})").format(
            own["num_correct"]["overall_micro"], num_pairs, format_percent(own["overall_micro"]), interval
        )
    others = []
    for scorer in report["scorers"][1:]:
        result = report["accuracies"][scorer["name"]]
        ties = result["num_ties"]["overall_micro"]
        counted = f" ({ties} ties, counted as wrong)" if ties else ""
        article = "the " if scorer["kind"] == "baseline" else ""
        others.append(f"{article}{scorer['title']}: {format_percent(result['overall_micro'])}%{counted}")
    rest = f"On the same pairs, {', '.join(others)}; chance: 50%." if others else "Chance: 50%."
    return Markup("{} <strong>{}</strong> {}. {}").format(who, make_breakable(report["model"]), found, rest)


def _list_tiles(report: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return name, value, unit and note of the numbers that are shown large."""
    own, columns, titles = report["accuracies"]["model"], report["columns"], get_titles(report)
    tiles = []
    for name in columns if len(columns) == 1 else [name for name in _TILES if name in columns]:
        num_groups = own["num_groups"][name]
        recordings = f"{num_groups} recording{'' if num_groups == 1 else 's'}"
        note = f"{format_interval(own['interval'][name])}, {recordings}"
        tiles.append((titles[name], format_percent(own[name]), "%", note))
    num_wrong = own["num_pairs"]["overall_micro"] - own["num_correct"]["overall_micro"]
    ties = f"of {report['num_pairs']} pairs, {own['num_ties']['overall_micro']} of them ties"
    tiles.append(("wrong", str(num_wrong), "", ties))
    if report["calibration"]:
        before, after = (report["calibration"][0][when] for when in ("before", "after"))
        note = f"{format_number(after['error'], 3)} with temperature" if after else "no temperature fits"
        tiles.append(("calibration error", format_number(before["error"], 3), "", note))
    return tiles
