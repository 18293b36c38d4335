"""Write the page of an evaluation: one HTML file with everything in it, its figures and its numbers beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import write_file
from sdiareward.common.html import make_html_environment
from sdiareward.common.package_files import EVALUATION_PAGE
from sdiareward.common.papers import SDIAREWARD_ARXIV
from sdiareward.evaluation.columns import title_columns

from ..cut_turns import describe_cut
from ..held_out import name_held_out_sources
from ..summary import ALL_LEFT_OUT, ALL_SEEN, SHOWN_NAMES, describe_training
from .captions import describe_figures
from .content import MIN_GROUPS, MIN_PAIRS, TAXONOMY, build_report
from .disagreements import find_disagreements
from .examples import Collector, EmbedAudio, describe_disagreements, describe_lowest
from .figures import draw_figures
from .inputs import ComparedEvaluation, TrainingRun
from .pieces import FILTERS, hash_content, make_picture


if TYPE_CHECKING:
    import datasets

# A table and a figure need the short form, a page does not.
SECTIONS = {
    "accuracy": "Accuracy",
    "judge": "The judge",
    "synthesizers": "By synthesizer",
    "categories": "By source and category",
    "rewards": "Rewards",
    "training": "Training",
    "calibration": "Calibration",
    "margins": "Margins",
    "comparison": "Comparison",
    "examples": "Lowest margins",
    "disagreements": "Disagreements",
    "left-out": "Skipped and cut",
    "provenance": "How this was made",
}

# Sections that a page has only if the report has something for them, by its name there.
_OPTIONAL = {
    "judge": "judge",
    "synthesizers": "by_synthesizer",
    "rewards": "rewards",
    "training": "training",
    "calibration": "calibration",
    "comparison": "comparisons",
    "examples": "examples",
    "disagreements": "disagreements",
}
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
    texts = {name: (EVALUATION_PAGE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")}
    descriptions = describe_figures(report)
    sections = {key: title for key, title in SECTIONS.items() if _has_content(key, report)}
    columns = report["columns"]
    page = environment.get_template("page.html").render(
        report=report,
        figures={name: {**descriptions[name], **make_picture(data)} for name, data in figures.items()},
        clips=clips,
        sections=list(sections.items()),
        shown=tuple(sections),
        columns=columns,
        tiles=columns if len(columns) == 1 else [name for name in _TILES if name in columns],
        cut=describe_cut(report["cut"]),
        trained_on=describe_training(report),
        paper=SDIAREWARD_ARXIV,
        titles={**title_columns(columns), "colloquialness": "colloquialness"},
        scorer_titles={scorer["name"]: scorer["title"] for scorer in report["scorers"]},
        sums=(ALL_SEEN, ALL_LEFT_OUT),
        shown_names=SHOWN_NAMES,
        held_out_sources=name_held_out_sources(report),
        min_pairs=MIN_PAIRS,
        min_groups=MIN_GROUPS,
        settings=_list_settings(report),
        style=Markup(texts["page.css"]),
        script=Markup(texts["page.js"]),
        style_hash=hash_content(texts["page.css"]),
        script_hash=hash_content(texts["page.js"]),
    )
    return page + "\n"


def _has_content(section: str, report: Mapping[str, Any]) -> bool:
    """Return whether a section adds anything to the others."""
    if section == "categories":
        # One cell repeats the table of subsets.
        return len(report["by_taxonomy"]) > 1
    if section == "margins":
        return bool(report["margins"]["bins"])
    if section == "left-out":
        return bool(report["skipped"] or report["not_finite"] or describe_cut(report["cut"]))
    return section not in _OPTIONAL or bool(report[_OPTIONAL[section]])


def _list_settings(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    depends_on = {**report["config"], **report["run"]}
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    found = {"versions": versions, "python": report["python"], "machine": machine, "git": report["git_revision"]}
    settings = {name: _format_value(value) for name, value in {**depends_on, **found}.items()}
    return [(name, value) for name, value in settings.items() if value]


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_format_value(item)}" for name, item in value.items() if item is not None)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
