"""The sections of the page of an evaluation: each is a list of blocks, which `page.html` renders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from sdiareward.common.papers import SDIAREWARD_ARXIV
from sdiareward.common.tables import Cell, Row, Table
from sdiareward.evaluation.columns import title_columns

from ..cut_turns import describe_cut
from ..held_out import name_held_out_sources
from ..summary import ALL_LEFT_OUT, ALL_SEEN, SHOWN_NAMES, describe_training
from .content import MIN_GROUPS, MIN_PAIRS
from .pieces import (
    format_interval,
    format_number,
    format_p_value,
    format_percent,
    format_points,
    format_range,
    format_signed,
)


Report = Mapping[str, Any]
# What to render and how: `text`, `caution`, `heading`, `list`, `table`, `figures`, `pair`, or `beside` of blocks.
Block = tuple[str, Any]


def build_sections(report: Report) -> list[tuple[str, str, list[Block]]]:
    """Return key, title and blocks of every section that has something to show."""
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
    return [(key, title, blocks) for key, title, blocks in found if blocks]


def get_titles(report: Report) -> dict[str, str]:
    return {**title_columns(report["columns"]), "colloquialness": "colloquialness"}


def _title_scorers(report: Report) -> dict[str, str]:
    return {scorer["name"]: scorer["title"] for scorer in report["scorers"]}


def make_share(value: float | None, bounds: Sequence[float] | None, mark: str = "") -> Cell:
    return Cell(format_percent(value), "" if value is None else format_interval(bounds), mark)


def _make_scorer_cells(report: Report, row: Mapping[str, Any]) -> list[Cell]:
    found = (row[scorer["name"]] for scorer in report["scorers"])
    return [make_share(each["accuracy"], each["interval"]) for each in found]


def _show_accuracy(report: Report) -> list[Block]:
    columns, titles, own = report["columns"], get_titles(report), report["accuracies"]["model"]
    rows = []
    for scorer in report["scorers"]:
        found = report["accuracies"][scorer["name"]]
        cells = []
        for name in columns:
            ties = f"\n{found['num_ties'][name]} ties" if found["num_ties"][name] else ""
            cell = make_share(found[name], found["interval"][name])
            cells.append(cell._replace(note=cell.note + ties))
        rows.append(Row([scorer["title"], *cells], "own" if scorer["kind"] == "model" else ""))
    counts = {"pairs": own["num_pairs"], "recordings": own["num_groups"]}
    counts |= {"skipped": report["num_skipped"]} if report["skipped"] else {}
    rows += [Row([title, *(count[name] for name in columns)], "foot") for title, count in counts.items()]
    weights = "Micro weighs pairs, macro weighs subsets; intervals" if len(columns) > 1 else "Intervals"
    text = (
        "The share of pairs whose chosen side gets the higher reward, in percent, with 95% intervals (Table 2 of the "
        f"SDiaReward paper, arXiv:{SDIAREWARD_ARXIV}). A tie is wrong. {weights} are over recordings; one recording "
        "has none."
    )
    table = Table("Accuracy by subset", ["scorer", *(titles[name] for name in columns)], rows)
    return [("text", text), ("table", table), ("figures", ["accuracy"])]


def _show_judge(report: Report) -> list[Block]:
    judge = report["judge"]
    if not judge:
        return []
    compares = judge["kind"] == "pairwise"
    text = (
        "The judge heard every pair twice, with the chosen side first and with the rejected side first (once, if its "
        "setting orders is one). Its verdict counts where both answers prefer the same side; else the side with the "
        "higher mean score over all dimensions and both answers wins; else the pair is a tie. A pair without a usable "
        "answer counts as wrong. Position bias is the share of answers that prefer the version heard first, minus one "
        "half, in percentage points. The last two columns are the accuracy of the verdicts in one order alone."
    )
    head = ["pairs of", "pairs", "recordings", "decided by scores", "ties", "no usable answer"]
    if compares:
        head += ["decided by verdict", "position bias", "orders agree"]
        head += ["accuracy, chosen first only", "accuracy, rejected first only"]
    rows = []
    for group in judge["groups"]:
        decided, ties = group["decided_by"], group["ties"]
        tie = Cell(decided["tie"], f"{format_percent(ties['share'])}%, {format_interval(ties['interval'])}")
        cells = [group["criterion"], group["num_pairs"], ties["num_groups"], decided["scores"], tie, decided["failed"]]
        if compares:
            bias = group["position_bias"]
            cells += [decided["verdict"], Cell(format_points(bias["bias"]), _show_points(bias["interval"]))]
            shares = [group["order_agreement"], *group["one_order"].values()]
            cells += [make_share(each["share"], each["interval"]) for each in shares]
        rows.append(Row(cells))
    cost = "" if judge["usd"] is None else f", {format_number(judge['usd'])} US dollars"
    counts = {**judge["answers"], **judge["sessions"]}
    counted = " ".join(f"{name.replace('_', ' ').capitalize()}: {count}." for name, count in counts.items())
    answers = (
        f"{judge['num_answers']} answers in {judge['num_replies']} replies, {judge['prompt_tokens']} tokens in and "
        f"{judge['completion_tokens']} out{cost}. {counted}"
    )
    one_side = "The judge scored each side by itself, from 1 to 5; the side with the higher score wins."
    table = Table("How the judge decided", head, rows)
    blocks: list[Block] = [("text", text if compares else one_side), ("table", table), ("text", answers)]
    problems = [
        Row([row["pair_id"], row["order"].replace("_", " "), row["status"], row["problem"]])
        for row in judge["problems"]
    ]
    unusable = Table("Unusable answers", ["pair", "order", "what", "why"], problems, ("order", "what", "why"))
    return [*blocks, ("table", unusable)] if problems else blocks


def _show_points(bounds: Sequence[float] | None) -> str:
    return "no interval" if bounds is None else f"{format_points(bounds[0])} to {format_points(bounds[1])}"


def _show_synthesizers(report: Report) -> list[Block]:
    if not report["by_synthesizer"]:
        return []
    left_out, trained_on = report["left_out_synthesizers"], describe_training(report)
    rows = []
    for criterion, members in groupby(report["by_synthesizer"], key=lambda row: row["criterion"]):
        rows.append(Row([criterion], "group"))
        for row in members:
            name = row["synthesizer"]
            title = Cell(SHOWN_NAMES.get(name, name), mark="held out" if name in (left_out or ()) else "")
            counts = [row["num_pairs"], row["model"]["num_groups"]]
            style = "sum" if name in (ALL_SEEN, ALL_LEFT_OUT) else ""
            rows.append(Row([title, *_make_scorer_cells(report, row), *counts], style))
    if left_out is None:
        text = "What the model heard in training is not known, so none is marked as held out."
    else:
        marked = f"Held out of {trained_on} are the synthesizers marked “held out”."
        text = marked if left_out else f"None is held out of {trained_on}."
        text += " A model that has only learned its synthesizers fails on the others."
    head = ["synthesizer", *_title_scorers(report).values(), "pairs", "recordings"]
    blocks: list[Block] = [("text", text), ("table", Table("Accuracy by synthesizer", head, rows))]
    sources = name_held_out_sources(report)
    if not sources:
        return blocks
    rows = []
    for criterion, members in groupby(report["by_held_out"], key=lambda row: row["criterion"]):
        rows.append(Row([criterion], "group"))
        by_cell = {(row["synthesizer"], row["source"]): row for row in members}
        for name in dict.fromkeys(name for name, _ in by_cell):
            for scorer in report["scorers"]:
                cells: list[Cell] = []
                for source in sources:
                    found = by_cell.get((name, source))
                    if found is None:
                        cells.append(Cell(""))
                        continue
                    share = make_share(found[scorer["name"]]["accuracy"], found[scorer["name"]]["interval"])
                    of_cell = f"\n{found['num_pairs']} pairs, {found['model']['num_groups']} recordings"
                    cells.append(Cell(share.value, share.note + of_cell))
                rows.append(Row([Cell(SHOWN_NAMES.get(name, name), scorer["title"]), *cells]))
    head = ["held-out synthesizer", *sources.values()]
    table = Table("Accuracy by held-out synthesizer and source", head, rows)
    return [*blocks, ("heading", "Held-out synthesizers by source"), ("table", table)]


def _show_categories(report: Report) -> list[Block]:
    # One cell repeats the table of subsets.
    if len(report["by_taxonomy"]) < 2:
        return []
    titles, rows = get_titles(report), []
    for subset, members in groupby(report["by_taxonomy"], key=lambda row: row["subset"]):
        rows.append(Row([titles[subset]], "group"))
        for row in members:
            categories = ", ".join(filter(None, [row["primary"], row["secondary"]]))
            title = Cell(row["source"] or "unknown source", categories, "few" if row["is_small"] else "")
            cells = [title, *_make_scorer_cells(report, row), row["num_pairs"], row["num_groups"]]
            rows.append(Row(cells, "small" if row["is_small"] else ""))
    text = (
        "Primary and secondary category are those of Table 5 of the SDiaReward paper. A cell marked “few” has fewer "
        f"than {MIN_PAIRS} pairs or {MIN_GROUPS} recordings: read nothing into it."
    )
    head = ["source: primary, secondary", *_title_scorers(report).values(), "pairs", "recordings"]
    return [("text", text), ("table", Table("Accuracy by source, primary and secondary category", head, rows))]


def _show_rewards(report: Report) -> list[Block]:
    if not report["rewards"]:
        return []
    titles, rows = get_titles(report), []
    for row in report["rewards"]:
        quantiles = (format_signed(row[name]) for name in ("q05", "q25", "median", "q75", "q95"))
        spread = [format_signed(row["mean"]), format_number(row["sd"])]
        rows.append(Row([f"{titles[row['subset']]}, {row['side']}", row["num_pairs"], *spread, *quantiles]))
    text = (
        "As in Figures 4 and 8, c and d, of the SDiaReward paper. Where the chosen side of one subset lies below the "
        "rejected side of another, rewards order the two renderings of one dialogue but do not compare dialogues of "
        "different subsets."
    )
    head = ["subset, side", "pairs", "mean", "standard deviation", "5%", "25%", "median", "75%", "95%"]
    table = Table("Rewards by subset and side", head, rows)
    return [("text", text), ("figures", ["densities", "boxes"]), ("table", table)]


def _show_training(report: Report) -> list[Block]:
    rows = []
    for run in report["training"]:
        for name, title in (("validation", "validation"), ("train", "training batches")):
            if run[name]:
                point = run[name][-1]
                numbers = (format_signed(point[value]) for value in ("chosen", "rejected", "margin"))
                rows.append(Row([run["title"], title, point["step"], *numbers]))
    if not rows:
        return []
    text = (
        "As in Figures 4 and 8, a and b, of the SDiaReward paper: the loss without centering leaves the level of "
        "rewards free to drift; the margin is what the ranking needs. Lines are training batches, markers the "
        "validation split."
    )
    head = ["run", "measured on", "last step", "chosen", "rejected", "margin"]
    table = Table("Rewards at the end of training", head, rows, ("measured on",))
    return [("text", text), ("figures", ["score_alignment", "margin_stability"]), ("table", table)]


def _show_calibration(report: Report) -> list[Block]:
    if not report["calibration"]:
        return []
    scorers, titles, rows = _title_scorers(report), get_titles(report), []
    text = (
        "Can sigmoid(margin) be read as the probability that the chosen side is better? A pair’s confidence is "
        "sigmoid(|margin|), and it is right if the margin is positive. The calibration error is the mean gap between "
        "the two in bins of equally many pairs. The temperature divides margins; each pair’s was fitted on other "
        "recordings, so the error after it is not fitted."
    )
    blocks: list[Block] = [("text", text)]
    for found in report["calibration"]:
        name, before, after = scorers[found["scorer"]], found["before"], found["after"]
        if found["temperature"] is None:
            blocks.append(
                ("caution", f"{name}: the margins are not positive on average, so no temperature was fitted.")
            )
        elif found["num_wrong"] < 10:
            few = f"only {found['num_wrong']} of {found['num_pairs']} pairs are wrong"
            blocks.append(("caution", f"{name}: {few}: the temperature rests on those few."))
        folds = found["fold_temperatures"]
        spread = f"{format_range(min(folds), max(folds))} in folds" if folds else ""
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
    first = report["calibration"][0]
    beside: list[Block] = [("figures", ["reliability"])]
    for when, title in (("before", "as it is"), ("after", "with temperature")):
        rows = [
            Row(
                [
                    f"{format_range(100 * row['low'], 100 * row['high'], 1)}",
                    *(row["num_pairs"], row["num_groups"], format_percent(row["confidence"])),
                    make_share(row["accuracy"], row["interval"]),
                ]
            )
            for row in (first[when] or {"bins": ()})["bins"]
        ]
        head = ["confidence", "pairs", "recordings", "mean confidence", "accuracy"]
        if rows:
            beside.append(("table", Table(f"Reliability bins {title}", head, rows, has_caption=True)))
    return [*blocks, ("beside", beside)]


def _show_margins(report: Report) -> list[Block]:
    if not report["margins"]["bins"]:
        return []
    titles, has_subsets, rows = get_titles(report), len(report["columns"]) > 1, []
    for row in report["margins"]["strata"]:
        sizes = format_range(row["low"], row["high"]) if row["num_pairs"] else "n/a"
        share = make_share(row["accuracy"], row["interval"])
        cells = [Cell(row["name"], row["rule"]), row["num_pairs"], sizes, format_signed(row["mean_margin"]), share]
        counts = ", ".join(f"{titles[subset]} {count}" for subset, count in row["by_subset"].items())
        rows.append(Row([*cells, counts] if has_subsets else cells))
    text = (
        "The strata of Table 3 of the SDiaReward paper. If large margins are not more often right than small ones, "
        "the margin says nothing about how sure the model can be."
    )
    head = ["stratum", "pairs", "|margin|", "mean margin", "accuracy", *(["by subset"] if has_subsets else [])]
    strata = Table("Strata by margin", head, rows, ("by subset",))
    rows = [
        Row(
            [
                *(format_range(row["low"], row["high"]), row["num_pairs"], row["num_groups"]),
                *(format_signed(row["mean_margin"]), make_share(row["accuracy"], row["interval"])),
            ]
        )
        for row in report["margins"]["bins"]
    ]
    head = ["|margin|", "pairs", "recordings", "mean margin", "accuracy"]
    bins = Table("Accuracy in bins of equally many pairs by margin", head, rows)
    return [("text", text), ("table", strata), ("beside", [("figures", ["accuracy_by_margin"]), ("table", bins)])]


def _show_comparisons(report: Report) -> list[Block]:
    if not report["comparisons"]:
        return []
    titles, columns, rows = get_titles(report), report["columns"], []
    for scorer, members in groupby(report["comparisons"], key=lambda row: row["scorer"]):
        rows.append(Row([_title_scorers(report)[scorer]], "group"))
        for row in members:
            counts = (f"num_{name}" for name in ("only_first", "only_second", "both", "neither", "pairs", "groups"))
            difference = Cell(format_points(row["difference"]), _show_points(row["interval"]))
            title = titles[columns[0] if len(columns) == 1 else row["column"]]
            rows.append(Row([title, difference, format_p_value(row["p_value"]), *(row[name] for name in counts)]))
    text = (
        f"Each row sets {report['model']} against another scorer: in how many pairs only one of the two is right, the "
        "difference in accuracy in percentage points with its 95% interval, and McNemar’s exact test. Both are over "
        "recordings. p values are not corrected for the number of rows."
    )
    head = ["other scorer, pairs of", "difference", "McNemar’s p", f"only this {_name_kind(report)} right"]
    head += ["only the other right", "both right", "both wrong", "pairs", "recordings"]
    return [("text", text), ("figures", ["comparison"]), ("table", Table("Comparison with other scorers", head, rows))]


def _name_kind(report: Report) -> str:
    return "judge" if report["judge"] else "model"


def _show_examples(report: Report) -> list[Block]:
    if not report["examples"]:
        return []
    wrong, licenses = sum(row["margin"] <= 0 for row in report["examples"]), report["private_licenses"]
    blocks: list[Block] = [
        (
            "text",
            f"{len(report['examples'])} pairs, the most wrongly ordered first; {wrong} of them "
            f"{'is' if wrong == 1 else 'are'} wrong, the others only just right.",
        )
    ]
    if licenses:
        warning = (
            "This page plays recordings of your own disk that are not known to be free to pass on (licence: "
            f"{', '.join(licenses)}). Do not publish it; --embed_audio open writes a page without them."
        )
        blocks.append(("caution", warning))
    else:
        blocks.append(("text", "Pass recordings on only as the licence beside them allows."))
    for number, row in enumerate(report["examples"], start=1):
        title = f"{number}. {'Wrong' if row['margin'] <= 0 else 'Right'}, margin {format_signed(row['margin'])}"
        preferences = [(f"the {_name_kind(report)}", row["margin"])]
        pair = {"row": row, "title": title, "place": f"pair {number}", "level": 3, "preferences": preferences}
        blocks.append(("pair", {**pair, "is_open": number <= 3}))
    return blocks


def _show_disagreements(report: Report) -> list[Block]:
    if not report["disagreements"]:
        return []
    who = f"this {_name_kind(report)}"
    text = (
        "Pairs that only one of two has right. Margins of different scorers have no scale in common, so a scorer’s "
        "confidence in a pair is the share of the pairs on which its |margin| is smaller; the disagreements on which "
        "both are most confident come first."
    )
    blocks: list[Block] = [("text", text)]
    for other, found in enumerate(report["disagreements"], start=1):
        shown = f"{found['num_pairs']} of {report['num_pairs']} pairs; {len(found['rows'])} of them are here."
        blocks.append(("heading", f"With {_title_scorers(report)[found['scorer']]}"))
        blocks.append(
            ("text", shown if found["num_pairs"] else "None: of every pair, both are right or both are wrong.")
        )
        for number, row in enumerate(found["rows"], start=1):
            title = (
                f"{number}. Only {who if row['is_right'] else 'the other'} is right: margin "
                f"{format_signed(row['margin'])}, the other’s {format_signed(row['other_margin'])}, confidence "
                f"{100 * row['confidence']:.0f}%"
            )
            preferences = [(who, row["margin"]), ("the other", row["other_margin"])]
            pair = {"row": row, "title": title, "place": f"disagreement {other}.{number}", "level": 4}
            blocks.append(("pair", {**pair, "preferences": preferences, "is_open": False}))
    return blocks


def _show_skipped(report: Report) -> list[Block]:
    titles, blocks = get_titles(report), list[Block]()
    if report["skipped"]:
        rows = [Row([row["pair_id"], titles[row["subset"]], row["reason"]]) for row in report["skipped"]]
        blocks.append(("text", f"{len(rows)} pairs were skipped and are not counted."))
        blocks.append(("table", Table("Skipped pairs", ["pair", "subset", "why"], rows, ("subset", "why"))))
    if cut := describe_cut(report["cut"]):
        blocks.append(("text", cut))
    if report["not_finite"]:
        scorers = _title_scorers(report)
        blocks.append(("text", "Rewards that are missing, NaN or infinite count as wrong and are part of no figure:"))
        blocks.append(("list", [f"{scorers[row['scorer']]}: pair {row['pair_id']}" for row in report["not_finite"]]))
    return blocks


def _show_provenance(report: Report) -> list[Block]:
    timing, blocks = report["timing"], list[Block]()
    if timing["real_time_factor"] is not None:
        scored = (
            f"{timing['num_pairs']} pairs with {timing['audio_s'] / 3600:.2f} hours of audio were scored in "
            f"{timing['scoring_s']:.0f} seconds: real-time factor {timing['real_time_factor']:.4f}."
        )
        blocks.append(("text", scored))
    for kind, fitted in report["baselines"].items():
        counts = ", ".join(f"{count} pairs of {criterion}" for criterion, count in fitted["num_train"].items())
        skipped = f"; {len(fitted['skipped_train'])} could not be read" if fitted["skipped_train"] else ""
        title = _title_scorers(report)[kind].capitalize()
        blocks.append(("text", f"{title}: fitted on the split {report['config']['train_split']}, {counts}{skipped}."))
    found = {
        **report["config"],
        **report["run"],
        "versions": {name: version for name, version in report["versions"].items() if version},
        **{"python": report["python"], "machine": report["machine"], "git": report["git_revision"]},
    }
    settings = [(name, _format_value(value)) for name, value in found.items()]
    blocks.append(("table", make_settings_table(settings)))
    blocks.append(("text", "Every number of this page is in report.json beside it, every figure in a PNG file."))
    return blocks


def make_settings_table(settings: Sequence[tuple[str, str]]) -> Table:
    return Table("Settings and versions", ["what", "value"], [Row(row) for row in settings if row[1]], ("value",))


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_format_value(item)}" for name, item in value.items() if item is not None)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
