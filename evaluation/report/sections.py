"""The page of an evaluation: `write_page` writes `report/index.html`, its figures and `report.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import write_file
from sdiareward.common.package import SDIAREWARD_ARXIV
from sdiareward.common.tables import (
    Cell,
    Row,
    Table,
    format_interval,
    format_number,
    format_p_value,
    format_percent,
    format_points,
    format_range,
    format_signed,
    make_share,
)
from sdiareward.pairs.schema import SIDES

from .. import summary
from ..results_files import Evaluation, find_disagreements
from ..summary import Labels, Record, Scores
from .content import MIN_GROUPS, MIN_PAIRS, TAXONOMY, build_report
from .examples import Collector, EmbedAudio, describe_disagreements, describe_lowest
from .figures import FIGURE_TITLES, draw_figures
from .page import Block, Dialogue, Section, Side, make_breakable, render_page


if TYPE_CHECKING:
    import datasets
    from markupsafe import Markup

Report = Mapping[str, Any]
# Averages of the table that are also shown large.
_TILES = ("overall_macro", "overall_micro", "modality_micro", "colloquialness")


def write_page(
    folder: str | Path,
    results: Mapping[str, Any],
    pairs: datasets.Dataset,
    labels: Labels,
    by_scorer: Mapping[str, Scores],
    *,
    others: Sequence[Evaluation] = (),
    training: Sequence[Record] = (),
    embed_audio: EmbedAudio = "all",
) -> Path:
    """Write `report/index.html`, `report/report.json` and `report/*.png`; the same results give the same bytes."""
    # What the metric does not need, but the page shows.
    names = [name for name in (*TAXONOMY, "language", "license") if name in pairs.column_names]
    rows = list(pairs.select_columns(names)) if names else [{}] * len(labels)
    records = [{**row, **label} for row, label in zip(rows, labels, strict=True)]
    own, collector = by_scorer["model"], Collector(embed_audio)
    examples = describe_lowest(pairs, records, own, collector)
    found = find_disagreements(records, own, others, results["config"]["nan"])
    disagreements = describe_disagreements(pairs, records, found, collector)
    report = build_report(results, records, by_scorer, others, training, examples, disagreements)
    report["private_licenses"] = sorted(collector.private_licenses)
    target = Path(folder) / "report"
    figures = draw_figures(report, [{**record, **own[record["pair_id"]]} for record in records], target)
    write_file(target / "report.json", json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    write_file(target / "index.html", _render(report, figures, collector.clips))
    return target / "index.html"


def _render(report: Report, figures: Mapping[str, bytes], clips: Mapping[str, str]) -> str:
    split = f", split {report['split']}" if report["split"] else ""
    return render_page(
        title=f"Evaluation of {report['model']}",
        kind="Evaluation on preference pairs of spoken dialogue",
        subject=report["model"],
        subtitle=f"{report['num_pairs']} pairs from {report['num_groups']} recordings or dialogues of "
        f"{report['dataset']}{split}",
        headline=_write_headline(report),
        tiles=_list_tiles(report),
        notes=report["notes"],
        sections=build_sections(report),
        figures={name: (FIGURE_TITLES[name], data) for name, data in figures.items()},
        clips=clips,
    )


def _write_headline(report: Report) -> Markup:
    """Return the result of the model and of the other scorers in one sentence."""
    from markupsafe import Markup, escape

    own, num_pairs = report["accuracies"]["model"], report["num_pairs"]
    who, what = ("Judge", "answer") if report["judge"] else ("Model", "reward")
    if own["overall_micro"] is None:
        found = escape(f"has no usable {what} for any of {num_pairs} pairs")
    else:
        interval = summary.phrase_interval(own["interval"]["overall_micro"], own["num_groups"]["overall_micro"])
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


def _list_tiles(report: Report) -> list[tuple[str, str, str, str]]:
    """Return name, value, unit and note of the numbers that are shown large."""
    own, columns, titles = report["accuracies"]["model"], report["columns"], _title_columns(report)
    tiles = []
    for name in columns if len(columns) == 1 else [name for name in _TILES if name in columns]:
        recordings = f"{own['num_groups'][name]} recording{'' if own['num_groups'][name] == 1 else 's'}"
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


def build_sections(report: Report) -> list[Section]:
    """Return every section that has something to show."""
    builders: dict[str, tuple[str, Callable[[Report], list[Block]]]] = {
        "accuracy": ("Accuracy", _show_accuracy),
        "judge": ("The judge", _show_judge),
        "synthesizers": ("By synthesizer", _show_synthesizers),
        "categories": ("By source and category", _show_categories),
        "rewards": ("Rewards by subset", _show_rewards),
        "training": ("Rewards during training", _show_training),
        "calibration": ("Calibration", _show_calibration),
        "margins": ("Accuracy against margin", _show_margins),
        "comparison": ("Comparison on the same pairs", _show_comparisons),
        "examples": ("Lowest margins", _show_examples),
        "disagreements": ("Disagreements", _show_disagreements),
        "left-out": ("Skipped and cut", _show_skipped),
        "provenance": ("How this was made", _show_provenance),
    }
    found = [(key, title, build(report)) for key, (title, build) in builders.items()]
    return [section for section in found if section[2]]


def _title_columns(report: Report) -> dict[str, str]:
    return {**summary.title_columns(report["columns"]), "colloquialness": "colloquialness"}


def _title_scorers(report: Report) -> dict[str, str]:
    return {scorer["name"]: scorer["title"] for scorer in report["scorers"]}


def _share(found: Mapping[str, Any]) -> Cell:
    return make_share(found["accuracy"], found["interval"])


def _show_accuracy(report: Report) -> list[Block]:
    columns, titles, own = report["columns"], _title_columns(report), report["accuracies"]["model"]
    rows = []
    for scorer in report["scorers"]:
        found, cells = report["accuracies"][scorer["name"]], []
        for name in columns:
            ties = f"\n{found['num_ties'][name]} ties" if found["num_ties"][name] else ""
            cell = make_share(found[name], found["interval"][name])
            cells.append(cell._replace(note=cell.note + ties))
        rows.append(Row([scorer["title"], *cells], "own" if scorer["kind"] == "model" else ""))
    counts = {"pairs": own["num_pairs"], "recordings": own["num_groups"]}
    counts |= {"skipped": report["num_skipped"]} if report["skipped"] else {}
    rows += [Row([title, *(count[name] for name in columns)], "foot") for title, count in counts.items()]
    text = (
        f"Pairwise accuracy in percent (Table 2 of arXiv:{SDIAREWARD_ARXIV}), with 95% intervals over recordings. A "
        "tie is wrong. Micro weighs pairs, macro weighs subsets."
    )
    table = Table("Accuracy by subset", ["scorer", *(titles[name] for name in columns)], rows)
    return [("text", text), ("table", table), ("figures", ["accuracy"])]


def _show_judge(report: Report) -> list[Block]:
    judge = report["judge"]
    if not judge:
        return []
    text = "The judge scored each side by itself, from 1 to 5; the side with the higher score wins."
    if judge["kind"] == "pairwise":
        text = (
            "The judge heard every pair in both orders. Where both answers prefer one side, it wins; else the side "
            "with the higher mean score; else the pair is a tie. A pair without a usable answer is wrong. Position "
            "bias is the share of answers that prefer the version heard first, minus one half, in percentage points."
        )
    sessions = " ".join(f"{name.capitalize()}: {count}." for name, count in judge["sessions"].items())
    answers = f"{summary.describe_answers(judge)} {sessions}".replace("_", " ")
    blocks: list[Block] = [("text", text), ("table", summary.tabulate_judge(judge)), ("text", answers)]
    rows = [
        Row([row["pair_id"], row["order"].replace("_", " "), row["status"], row["problem"]])
        for row in judge["problems"]
    ]
    words = ["order", "what", "why"]
    return [*blocks, ("table", Table("Unusable answers", ["pair", *words], rows, words))] if rows else blocks


def _show_synthesizers(report: Report) -> list[Block]:
    if not report["by_synthesizer"]:
        return []
    left_out, trained_on = report["left_out_synthesizers"], summary.describe_training(report)
    text = "What the model heard in training is not known, so none is marked as held out."
    if left_out is not None:
        marked = f"Held out of {trained_on} are the synthesizers marked “held out”."
        text = marked if left_out else f"None is held out of {trained_on}."
        text += " A model that has only learned its synthesizers fails on the others."
    titles = _title_scorers(report)
    blocks: list[Block] = [("text", text), ("table", summary.tabulate_synthesizers(report, titles))]
    if table := summary.tabulate_held_out(report, titles):
        blocks += [("heading", "Held-out synthesizers by source"), ("table", table)]
    return blocks


def _show_categories(report: Report) -> list[Block]:
    # One cell repeats the table of subsets.
    if len(report["by_taxonomy"]) < 2:
        return []
    titles, scorers, rows = _title_columns(report), _title_scorers(report), []
    for subset, members in groupby(report["by_taxonomy"], key=lambda row: row["subset"]):
        rows.append(Row([titles[subset]], "group"))
        for row in members:
            categories = ", ".join(filter(None, [row["primary"], row["secondary"]]))
            title = Cell(row["source"] or "unknown source", categories, "few" if row["is_small"] else "")
            cells = [title, *(_share(row[scorer]) for scorer in scorers), row["num_pairs"], row["num_groups"]]
            rows.append(Row(cells, "small" if row["is_small"] else ""))
    text = f"As in Table 5 of the paper. “few” marks fewer than {MIN_PAIRS} pairs or {MIN_GROUPS} recordings."
    head = ["source: primary, secondary", *scorers.values(), "pairs", "recordings"]
    return [("text", text), ("table", Table("Accuracy by source, primary and secondary category", head, rows))]


def _show_rewards(report: Report) -> list[Block]:
    titles, rows = _title_columns(report), []
    for row in report["rewards"]:
        quantiles = (format_signed(row[name]) for name in ("q05", "q25", "median", "q75", "q95"))
        spread = [format_signed(row["mean"]), format_number(row["sd"])]
        rows.append(Row([f"{titles[row['subset']]}, {row['side']}", row["num_pairs"], *spread, *quantiles]))
    text = (
        "As in Figures 4 and 8, c and d, of the paper. Where the chosen side of one subset is below the rejected side "
        "of another, rewards do not compare dialogues of different subsets."
    )
    head = ["subset, side", "pairs", "mean", "standard deviation", "5%", "25%", "median", "75%", "95%"]
    table = Table("Rewards by subset and side", head, rows)
    return [("text", text), ("figures", ["densities", "boxes"]), ("table", table)] if rows else []


def _show_training(report: Report) -> list[Block]:
    rows = []
    for run in report["training"]:
        for name, title in (("validation", "validation"), ("train", "training batches")):
            for point in run[name][-1:]:
                numbers = (format_signed(point[value]) for value in ("chosen", "rejected", "margin"))
                rows.append(Row([run["title"], title, point["step"], *numbers]))
    text = "As in Figures 4 and 8, a and b, of the paper. Lines are training batches, markers the validation split."
    head = ["run", "measured on", "last step", "chosen", "rejected", "margin"]
    table = Table("Rewards at the end of training", head, rows, ("measured on",))
    return [("text", text), ("figures", ["score_alignment", "margin_stability"]), ("table", table)] if rows else []


def _show_calibration(report: Report) -> list[Block]:
    if not report["calibration"]:
        return []
    scorers, titles, rows = _title_scorers(report), _title_columns(report), []
    text = (
        "A pair’s confidence is sigmoid(|margin|). The calibration error is the mean gap between confidence and "
        "accuracy in bins of equally many pairs; the temperature of each pair was fitted on other recordings."
    )
    blocks: list[Block] = [("text", text)]
    for found in report["calibration"]:
        name, before, after = scorers[found["scorer"]], found["before"], found["after"]
        if found["temperature"] is None:
            why = "the margins are not positive on average, so no temperature was fitted."
            blocks.append(("caution", f"{name}: {why}"))
        elif found["num_wrong"] < 10:
            few = f"only {found['num_wrong']} of {found['num_pairs']} pairs are wrong"
            blocks.append(("caution", f"{name}: {few}: the temperature rests on those few."))
        folds = found["fold_temperatures"]
        spread = f"{format_range([min(folds), max(folds)], format_number)} in folds" if folds else ""
        numbers = [before["confidence"], before["error"], after and after["error"]]
        numbers += [before["negative_log_likelihood"], after and after["negative_log_likelihood"]]
        temperature = Cell(format_number(found["temperature"]), spread)
        cells = [name, found["num_pairs"], *(format_number(number, 3) for number in numbers), temperature]
        rows.append(Row(cells, "sum"))
        for subset, part in before["by_subset"].items() if len(report["columns"]) > 1 else ():
            numbers = [part["confidence"], part["error"], after and after["by_subset"][subset]["error"]]
            rows.append(Row([titles[subset], part["num_pairs"], *(format_number(n, 3) for n in numbers), "", "", ""]))
    head = ["model, subset", "pairs", "mean confidence", "error as it is", "error with temperature"]
    head += ["loss in nats", "loss with temperature", "temperature"]
    blocks.append(("table", Table("Calibration error by model and subset", head, rows)))
    beside: list[Block] = [("figures", ["reliability"])]
    for when, title in (("before", "as it is"), ("after", "with temperature")):
        if measured := report["calibration"][0][when]:
            table = _tabulate_bins(f"Reliability bins {title}", "confidence", measured["bins"], True)
            beside.append(("table", table._replace(has_caption=True)))
    return [*blocks, ("beside", beside)]


def _tabulate_bins(title: str, what: str, bins: Sequence[Mapping[str, Any]], is_share: bool) -> Table:
    """Return the accuracy in bins of confidence, which is a share, or of margin."""
    rows = []
    for row in bins:
        bounds = [row["low"], row["high"]]
        span = format_range(bounds, lambda value: format_percent(value, 1) if is_share else format_number(value))
        mean = format_percent(row["confidence"]) if is_share else format_signed(row["mean_margin"])
        rows.append(Row([span, row["num_pairs"], row["num_groups"], mean, _share(row)]))
    return Table(title, [what, "pairs", "recordings", f"mean {what.strip('|')}", "accuracy"], rows)


def _show_margins(report: Report) -> list[Block]:
    if not report["margins"]["bins"]:
        return []
    titles, has_subsets, rows = _title_columns(report), len(report["columns"]) > 1, []
    for row in report["margins"]["strata"]:
        sizes = format_range([row["low"], row["high"]], format_number) if row["num_pairs"] else "n/a"
        margin = format_signed(row["mean_margin"])
        cells = [Cell(row["name"], row["rule"]), row["num_pairs"], sizes, margin, _share(row)]
        counts = ", ".join(f"{titles[subset]} {count}" for subset, count in row["by_subset"].items())
        rows.append(Row([*cells, counts] if has_subsets else cells))
    text = "The strata of Table 3 of the paper: large margins should be right more often than small ones."
    head = ["stratum", "pairs", "|margin|", "mean margin", "accuracy", *(["by subset"] if has_subsets else [])]
    strata = Table("Strata by margin", head, rows, ("by subset",))
    title = "Accuracy in bins of equally many pairs by margin"
    bins = _tabulate_bins(title, "|margin|", report["margins"]["bins"], False)
    return [("text", text), ("table", strata), ("beside", [("figures", ["accuracy_by_margin"]), ("table", bins)])]


def _show_comparisons(report: Report) -> list[Block]:
    if not report["comparisons"]:
        return []
    titles, columns, rows = _title_columns(report), report["columns"], []
    for scorer, members in groupby(report["comparisons"], key=lambda row: row["scorer"]):
        rows.append(Row([_title_scorers(report)[scorer]], "group"))
        for row in members:
            counts = (f"num_{name}" for name in ("only_first", "only_second", "both", "neither", "pairs", "groups"))
            difference = Cell(format_points(row["difference"]), format_range(row["interval"], format_points))
            title = titles[columns[0] if len(columns) == 1 else row["column"]]
            rows.append(Row([title, difference, format_p_value(row["p_value"]), *(row[name] for name in counts)]))
    text = (
        "The difference is in percentage points, its 95% interval and McNemar’s exact test are over recordings; p "
        "values are not corrected for the number of rows."
    )
    head = ["other scorer, pairs of", "difference", "McNemar’s p", f"only this {_name_kind(report)} right"]
    head += ["only the other right", "both right", "both wrong", "pairs", "recordings"]
    return [("text", text), ("figures", ["comparison"]), ("table", Table("Comparison with other scorers", head, rows))]


def _name_kind(report: Report) -> str:
    return "judge" if report["judge"] else "model"


def _show_examples(report: Report) -> list[Block]:
    examples, licenses = report["examples"], report["private_licenses"]
    if not examples:
        return []
    wrong = sum(row["margin"] <= 0 for row in examples)
    text = (
        f"{len(examples)} pairs, the most wrongly ordered first; {wrong} of them {'is' if wrong == 1 else 'are'} "
        "wrong, the others only just right."
    )
    warning: Block = ("text", "Pass recordings on only as the licence beside them allows.")
    if licenses:
        unknown = f"not known to be free to pass on (licence: {', '.join(licenses)})"
        remedy = "Do not publish it; --embed_audio open writes a page without them."
        warning = ("caution", f"This page plays recordings of your own disk that are {unknown}. {remedy}")
    blocks: list[Block] = [("text", text), warning]
    for number, row in enumerate(examples, start=1):
        title = f"{number}. {'Wrong' if row['margin'] <= 0 else 'Right'}, margin {format_signed(row['margin'])}"
        found = _make_dialogue(report, row, title, f"pair {number}", {f"the {_name_kind(report)}": row["margin"]})
        blocks.append(("dialogue", found._replace(is_open=number <= 3)))
    return blocks


def _make_dialogue(
    report: Report, row: Mapping[str, Any], title: str, place: str, margins: Mapping[str, float | None]
) -> Dialogue:
    """Return both sides of a pair, with the scorers of `margins` that prefer each."""
    sides = []
    for side in SIDES:
        marks = [
            f"{who} prefers this" for who, margin in margins.items() if margin and (side == "chosen") == (margin > 0)
        ]
        sides.append(Side(side, row[side], row.get(f"{side}_reward"), side, marks))
    labels = (row["criterion"], row["source"], _title_columns(report)[row["subset"]], row["synthesizer"])
    categories = ", ".join(
        filter(None, [f"Pair {row['pair_id']}", row["primary"], row["primary"] and row["secondary"]])
    )
    return Dialogue(
        title,
        place,
        sides,
        about=" · ".join(dict.fromkeys(filter(None, labels))),
        mark="held out" if row["synthesizer"] in (report["left_out_synthesizers"] or ()) else "",
        foot=f"{categories}. Licence: {row['license'] or 'not given'}.",
        language=row["language"],
    )


def _show_disagreements(report: Report) -> list[Block]:
    if not report["disagreements"]:
        return []
    who = f"this {_name_kind(report)}"
    text = (
        "Pairs that only one of two has right, the most confident first. A scorer’s confidence in a pair is the share "
        "of the pairs on which its |margin| is smaller."
    )
    blocks: list[Block] = [("text", text)]
    for other, found in enumerate(report["disagreements"], start=1):
        shown = f"{found['num_pairs']} of {report['num_pairs']} pairs; {len(found['rows'])} of them are here."
        none = "None: of every pair, both are right or both are wrong."
        blocks.append(("heading", f"With {_title_scorers(report)[found['scorer']]}"))
        blocks.append(("text", shown if found["num_pairs"] else none))
        for number, row in enumerate(found["rows"], start=1):
            title = (
                f"{number}. Only {who if row['is_right'] else 'the other'} is right: margin "
                f"{format_signed(row['margin'])}, the other’s {format_signed(row['other_margin'])}, confidence "
                f"{100 * row['confidence']:.0f}%"
            )
            margins = {who: row["margin"], "the other": row["other_margin"]}
            pair = _make_dialogue(report, row, title, f"disagreement {other}.{number}", margins)
            blocks.append(("dialogue", pair._replace(level=4)))
    return blocks


def _show_skipped(report: Report) -> list[Block]:
    titles, scorers, blocks = _title_columns(report), _title_scorers(report), list[Block]()
    if report["skipped"]:
        rows = [Row([row["pair_id"], titles[row["subset"]], row["reason"]]) for row in report["skipped"]]
        blocks.append(("text", f"{len(rows)} pairs were skipped and are not counted."))
        blocks.append(("table", Table("Skipped pairs", ["pair", "subset", "why"], rows, ("subset", "why"))))
    if cut := summary.describe_cut(report["cut"]):
        blocks.append(("text", cut))
    if report["not_finite"]:
        blocks.append(("text", "Rewards that are missing, NaN or infinite count as wrong and are part of no figure:"))
        blocks.append(("list", [f"{scorers[row['scorer']]}: pair {row['pair_id']}" for row in report["not_finite"]]))
    return blocks


def _show_provenance(report: Report) -> list[Block]:
    blocks: list[Block] = [("text", timing)] if (timing := summary.describe_timing(report["timing"])) else []
    for kind, fitted in report["baselines"].items():
        counts = ", ".join(f"{count} pairs of {criterion}" for criterion, count in fitted["num_train"].items())
        skipped = f"; {len(fitted['skipped_train'])} could not be read" if fitted["skipped_train"] else ""
        title = _title_scorers(report)[kind].capitalize()
        blocks.append(("text", f"{title}: fitted on the split {report['config']['train_split']}, {counts}{skipped}."))
    about = {name: report[name] for name in ("versions", "python", "machine")}
    settings = {**report["config"], **report["run"], **about, "git": report["git_revision"]}
    blocks.append(("table", make_settings_table(settings)))
    blocks.append(("text", "Every number of this page is in report.json beside it, every figure in a PNG file."))
    return blocks


def make_settings_table(settings: Mapping[str, Any]) -> Table:
    """Return names and values, without those that are empty."""
    rows = [Row((name, text)) for name, value in settings.items() if (text := _format_value(value))]
    return Table("Settings and versions", ["what", "value"], rows, ("value",))


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_format_value(item)}" for name, item in value.items() if item is not None)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
