"""The sections of an evaluation, once: `render_markdown` makes `results.md` of them, `write_page` the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common import tables
from sdiareward.common.files import write_file
from sdiareward.common.tables import Cell, Row, Table, escape_markdown, format_percent, format_range, make_share
from sdiareward.pairs.loading import name_data
from sdiareward.pairs.schema import SIDES

from .. import summary
from ..scores import Evaluation
from ..summary import ALL_LEFT_OUT, ALL_SEEN, BASELINES, Labels, Record, Scores, is_all_ties
from .content import MIN_GROUPS, MIN_PAIRS, TAXONOMY, build_report, find_wrong, list_scorers
from .figures import draw_figures
from .page import Block, Collector, Dialogue, EmbedAudio, Section, Side, render_page


if TYPE_CHECKING:
    import datasets

Report = Mapping[str, Any]
Blocks = Iterator[Block]
_TITLES = {
    **{"accuracy": "Accuracy", "judge": "Answers of the judge", "synthesizers": "By synthesizer"},
    **{"categories": "By source and category", "margins": "Margin and confidence"},
    **{"comparison": "Other scorers on the same pairs", "examples": "Wrong pairs"},
    **{"disagreements": "Disagreements", "training": "Rewards during training", "skipped": "Skipped pairs"},
}
# Of fewer pairs than this a page has the result, its table, the wrong pairs, and what was asked for by a flag.
_MIN_PAIRS = 50
_OF_FEW = ("accuracy", "judge", "examples", "disagreements", "training")
_FIGURES = ("accuracy", "rewards", "reliability", "accuracy_by_margin")
_OF_TRAINING = ("score_alignment", "margin_stability")
_LABELS = ("criterion", "subset", "source", "primary", "secondary", "synthesizer", "language", "license")
_IN_MARKDOWN = ("accuracy", "judge", "synthesizers", "disagreements")
_BOTH_ORDERS = (
    "The judge heard every pair in both orders. Where both answers prefer one side, it wins; else the side with the "
    "higher mean score; else the pair is a tie. A pair without a usable answer is wrong."
)
_POSITION_BIAS = "Position bias is the share of answers for the version heard first, minus one half, in points."
# Result files keep the older name of the row.
_SHOWN_NAMES = {ALL_LEFT_OUT: "all held out of training"}


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
    own, collector, target = by_scorer["model"], Collector(embed_audio), Path(folder) / "report"
    report = build_report(results, records, by_scorer, others, training)
    report["examples"] = add_dialogues(find_wrong(records, own), pairs, records, collector)
    for found in report.get("disagreements", ()):
        found["rows"] = add_dialogues(found["rows"], pairs, records, collector)
    report["private_licenses"] = sorted(collector.private_licenses)
    view, is_small = View(report), len(records) < _MIN_PAIRS
    rewards = [{**record, **own[record["pair_id"]]} for record in records]
    figures = draw_figures(report, rewards, target, (*(() if is_small else _FIGURES), *_OF_TRAINING))
    report["notes"] = summary.list_notes(report, view.titles | {"model": view.kind})
    write_file(target / "report.json", json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    config, name = report["config"], view.titles["model"]
    split = f", split {config['split']}" if config["split"] else ""
    page = render_page(
        title=f"Evaluation of {name}",
        kind="Evaluation on preference pairs of spoken dialogue",
        subject=name,
        subtitle=f"{report['num_pairs']} pairs from {report['num_groups']} recordings, {config['dataset']}{split}",
        headline=" ".join(summary.list_findings(report, name)),
        tiles=view.list_tiles(),
        notes=report["notes"],
        sections=view.build_sections(_OF_FEW if is_small else _TITLES),
        figures={name: (name.replace("_", " ").capitalize(), data) for name, data in figures.items()},
        clips=collector.clips,
        foot=f"{view.describe_timing()} Numbers and settings are in report.json beside this page.".strip(),
    )
    write_file(target / "index.html", page)
    return target / "index.html"


def add_dialogues(
    rows: Sequence[Record], pairs: datasets.Dataset, records: Labels, collector: Collector
) -> list[Record]:
    """Add labels, words and recordings to rows with a `pair_id`."""
    from tqdm import tqdm

    found = []
    positions = {record["pair_id"]: position for position, record in enumerate(records)}
    for row in tqdm(rows, "recordings of the page", unit="pair", disable=None):
        position = positions[row["pair_id"]]
        record, pair = records[position], pairs[position]
        sides = {side: collector.describe_side(pair[side], record.get("license")) for side in SIDES}
        found.append({**row, **{name: record.get(name) for name in _LABELS}, **sides})
    return found


def render_markdown(results: Report) -> str:
    """Render results as Markdown that also reads well in a terminal."""
    view = View(results)
    name, data = view.titles["model"], name_data(results["config"]["dataset"], results["config"]["split"])
    view.titles["model"] = view.kind
    findings = escape_markdown(" ".join(summary.list_findings(results, name)))
    notes = "\n".join(f"- {note}" for note in summary.list_notes(results, view.titles))
    (_, _, accuracies), *sections = view.build_sections(_IN_MARKDOWN)
    parts = [f"# {escape_markdown(name)} on {escape_markdown(data)}", findings, *map(_render_block, accuracies), notes]
    for _, title, blocks in sections:
        parts += [f"## {title}", *map(_render_block, blocks)]
    return "\n\n".join(filter(None, [*parts, view.describe_timing()])) + "\n"


def _render_block(block: Block) -> str:
    kind, found = block
    if kind == "figures":
        return ""
    if kind == "table":
        has_groups = any(row.style == "group" for row in found.rows)
        return str(found.to_markdown("criterion" if has_groups else ""))
    # The title of a dialogue begins with its number.
    text = escape_markdown(f"{found.title}. {found.foot}" if kind == "dialogue" else found)
    return f"### {text}" if kind == "heading" else text


def _read(row: Any, path: str) -> Any:
    """Return a value of a record: `before.error:.3f` is `row["before"]["error"]` with three digits."""
    path, _, form = path.partition(":")
    for key in filter(None, path.split(".")):
        # A subset has no loss of its own.
        row = None if row is None else row.get(key, "")
    if not form or row == "":
        return row
    if form == "share":
        return make_share(row[form], row["interval"])
    if form in ("bias", "difference"):
        return Cell(tables.format_points(row[form]), format_range(row["interval"], tables.format_points))
    return tables.ABSENT if row is None else format(row, form)


def _show_cell(row: Mapping[str, Any], scorer: str) -> Cell:
    """Return the accuracy of a scorer on the pairs of a row."""
    found = row[scorer]
    is_tied = found["num_ties"] == row["num_pairs"]
    return Cell("all tie") if is_tied else make_share(found["accuracy"], found["interval"])


def _tabulate(
    title: str,
    rows: Iterable[Any],
    columns: Mapping[str, str | Callable[[Any], Any]],
    group: Callable[[Any], str] | None = None,
    words: Sequence[str] = (),
) -> Table:
    """Return a table of records, which may have a `style`; a column is a function or what `_read` takes."""
    made = []
    for name, members in groupby(rows, group or (lambda row: "")):
        made += [Row([name], "group")] if group else []
        for row in members:
            cells = [_read(row, find) if isinstance(find, str) else find(row) for find in columns.values()]
            made.append(Row(cells, row.get("style", "")))
    return Table(title, list(columns), made, words)


class View:
    """The sections, the first sentence and the large numbers of results, or of a page's report."""

    def __init__(self, report: Report):
        self.report, self.own = report, report["accuracies"]["model"]
        self.kind = "judge" if report.get("judge") else "model"
        self.scorers = report.get("scorers") or list_scorers(report)
        self.titles = {scorer["name"]: scorer["title"] for scorer in self.scorers}
        self.columns = summary.list_columns(self.own["num_pairs"])
        # The column of all pairs has that title if it stands alone.
        alone = {"overall_micro": "all"} if self.columns == ["overall_micro"] else {}
        self.subsets = {**summary.TITLES, "colloquialness": "colloquialness", **alone}

    def build_sections(self, keys: Iterable[str]) -> list[Section]:
        """Return the sections that have something to show."""
        found = [(key, _TITLES[key], list(getattr(self, f"show_{key}")())) for key in keys]
        return [section for section in found if section[2]]

    def list_tiles(self) -> list[tuple[str, str, str, str]]:
        """Return name, value, unit and note of the accuracies that are shown large: overall, and of each criterion."""
        criteria = summary.list_criteria(self.own["num_pairs"])
        tiles = []
        for title, column in ({"overall": "overall_micro"} | criteria).items() if len(criteria) > 1 else ():
            rivals = [name for name in BASELINES if name in self.titles and column != "overall_micro"]
            beside = [f"{self.titles[name]} {self.show_share(name, column).value}" for name in rivals]
            note = ", ".join(beside) or tables.format_interval(self.own["interval"][column])
            tiles.append((title, format_percent(self.own[column]), "%", note))
        return tiles

    def show_share(self, scorer: str, column: str) -> Cell:
        """Return an accuracy above its interval and ties."""
        result = self.report["accuracies"][scorer]
        if is_all_ties(result, column):
            return Cell("all tie")
        share, ties = make_share(result[column], result["interval"][column]), result["num_ties"][column]
        return share._replace(note=share.note + (f"\n{ties} ties" if ties else ""))

    def describe_timing(self) -> str:
        timing = self.report["timing"]
        if timing["real_time_factor"] is None:
            return ""
        spent = f"{timing['scoring_s']:.1f} s: real-time factor {timing['real_time_factor']:.4f}"
        return f"Scored {timing['num_pairs']} pairs, {timing['audio_s'] / 3600:.2f} h of audio, in {spent}."

    def show_accuracy(self) -> Blocks:
        yield "text", "Pairwise accuracy in percent with 95% intervals over recordings. A tie is wrong."
        rows = [
            Row([title, *(self.show_share(name, column) for column in self.columns)], "own" if name == "model" else "")
            for name, title in self.titles.items()
        ]
        counts = {"pairs": self.own["num_pairs"], "recordings": self.own["num_groups"]}
        counts |= {"skipped": self.report["num_skipped"]} if self.report["skipped"] else {}
        rows += [Row([title, *(count[name] for name in self.columns)], "foot") for title, count in counts.items()]
        head = ["scorer", *(self.subsets[name] for name in self.columns)]
        yield "table", Table("Accuracy by subset", head, rows, style="stacked")
        if len(self.columns) > 1:
            yield "figures", ["accuracy", "rewards"]

    def show_judge(self) -> Blocks:
        if not (judge := self.report.get("judge")):
            return
        columns: dict[str, Any] = {"pairs of": "criterion", "pairs": "num_pairs", "recordings": "ties.num_groups"}
        columns |= {"decided by scores": "decided_by.scores"}
        columns |= {"ties": lambda row: Cell(row["decided_by"]["tie"], "%, ".join(_read(row, "ties:share")[:2]))}
        columns |= {"no usable answer": "decided_by.failed"}
        if judge["kind"] == "pairwise":
            yield "text", _BOTH_ORDERS
            yield "text", _POSITION_BIAS
            columns |= {"decided by verdict": "decided_by.verdict", "position bias": "position_bias:bias"}
            columns |= {"orders agree": "order_agreement:share"}
            for name in ("chosen_first", "rejected_first"):
                columns[f"accuracy, {name.replace('_', ' ')} only"] = f"one_order.{name}:share"
        else:
            yield "text", "The judge scored each side by itself, from 1 to 5; the side with the higher score wins."
        yield "table", _tabulate("How the judge decided", judge["groups"], columns)
        usable = ", ".join(f"{count} {name}" for name, count in judge["answers"].items())
        spent = f"{judge['prompt_tokens']} tokens in, {judge['completion_tokens']} out"
        cost = "" if judge["usd"] is None else f", {judge['usd']:.2f} US dollars"
        answers = f"{judge['num_answers']} answers ({usable}) in {judge['num_replies']} replies: {spent}{cost}."
        sessions = [f"{name.capitalize()}: {count}." for name, count in (judge["sessions"] or {}).items()]
        yield "text", " ".join([answers, *sessions]).replace("_", " ")
        if rows := [{**row, "order": row["order"].replace("_", " ")} for row in judge["problems"]]:
            columns = {"pair": "pair_id", "order": "order", "what": "status", "why": "problem"}
            yield "table", _tabulate("Unusable answers", rows, columns, words=["order", "what", "why"])

    def show_synthesizers(self) -> Blocks:
        report, left_out = self.report, self.report["left_out_synthesizers"]
        if not report["by_synthesizer"]:
            return
        trained_on = "the model's training"
        if report.get("heard_from") == "split":
            trained_on = f"the split {report['config']['train_split']}, as the model's training is not known"
        text = "What the model heard in training is not known, so none is marked as held out."
        yield "text", text if left_out is None else f"Held out of {trained_on}: {', '.join(left_out) or 'none'}."
        rows = []
        for row in report["by_synthesizer"]:
            name, style = row["synthesizer"], "sum" if row["synthesizer"] in (ALL_SEEN, ALL_LEFT_OUT) else ""
            rows.append({**row, "name": Cell(_SHOWN_NAMES.get(name, name), mark=self._mark(name)), "style": style})
        columns = {"synthesizer": "name", "pairs": "num_pairs", "recordings": "model.num_groups"}
        columns |= self._list_scorer_columns()
        yield "table", _tabulate("Accuracy by synthesizer", rows, columns, itemgetter("criterion"))
        found = report.get("by_held_out") or ()
        # With one held-out synthesizer the table repeats the rows above.
        if len({row["synthesizer"] for row in found} - {ALL_LEFT_OUT}) > 1:
            yield "heading", "Held-out synthesizers by source"
            yield "table", self._tabulate_held_out(found)

    def _list_scorer_columns(self) -> dict[str, Any]:
        return {title: partial(_show_cell, scorer=name) for name, title in self.titles.items()}

    def _mark(self, synthesizer: str | None) -> str:
        return "held out" if synthesizer in (self.report["left_out_synthesizers"] or ()) else ""

    def _tabulate_held_out(self, found: Sequence[Mapping[str, Any]]) -> Table:
        names = sorted({row["source"] for row in found}, key=lambda name: (name == ALL_LEFT_OUT, name))
        held_out, rows = self.report.get("left_out_sources") or (), []
        for (criterion, name), members in groupby(found, itemgetter("criterion", "synthesizer")):
            by_source = {row["source"]: row for row in members}
            for scorer, title in self.titles.items():
                row: Record = {"criterion": criterion, "name": Cell(_SHOWN_NAMES.get(name, name), title)}
                row |= dict.fromkeys(names, Cell(""))
                for source, cell in by_source.items():
                    share = _show_cell(cell, scorer)
                    counts = f"{cell['num_pairs']} pairs, {cell['model']['num_groups']} recordings"
                    row[source] = share._replace(note=f"{share.note}\n{counts}")
                rows.append(row)
        columns: dict[str, Any] = {"held-out synthesizer": "name"}
        titles = {name: f"{name} (held out)" if name in held_out else name for name in names} | _SHOWN_NAMES
        columns |= {titles[name]: itemgetter(name) for name in names}
        return _tabulate("Accuracy by held-out synthesizer and source", rows, columns, itemgetter("criterion"))

    def show_categories(self) -> Blocks:
        # One cell repeats the table of subsets.
        if len(self.report["by_taxonomy"]) < 2:
            return
        rows = []
        for row in self.report["by_taxonomy"]:
            categories = ", ".join(filter(None, [row["primary"], row["secondary"]]))
            mark, style = ("few", "small") if row["is_small"] else ("", "")
            rows.append({**row, "name": Cell(row["source"] or "unknown source", categories, mark), "style": style})
        columns = {"source: primary, secondary": "name"}
        columns |= {**self._list_scorer_columns(), "pairs": "num_pairs", "recordings": "num_groups"}
        title = "Accuracy by source, primary and secondary category"
        few = f"“few”: fewer than {MIN_PAIRS} pairs or {MIN_GROUPS} recordings."
        table = _tabulate(title, rows, columns, lambda row: self.subsets[row["subset"]])
        yield "details", (title, [("text", few), ("table", table)])

    def show_training(self) -> Blocks:
        if self.report["training"]:
            yield "text", "Figures 4a and 4b of the paper. Markers are the validation split."
            yield "figures", _OF_TRAINING

    def show_margins(self) -> Blocks:
        if not self.report["margins"]:
            return
        for found in self.report["calibration"]:
            name, few = self.titles[found["scorer"]], f"{found['num_wrong']} of {found['num_pairs']} pairs are wrong"
            text = f"{name}: the calibration error of sigmoid(|margin|) is {_read(found, 'before.error:.3f')}"
            if found["after"]:
                text += f", {_read(found, 'after.error:.3f')} with a temperature of {found['temperature']:.2f}"
                text += " fitted on other recordings"
            yield "text", f"{text}; {few}."
        yield "figures", [*([] if len(self.columns) > 1 else ["rewards"]), "reliability", "accuracy_by_margin"]

    def show_comparison(self) -> Blocks:
        found, accuracies = self.report["comparisons"], self.report["accuracies"]
        rows = [row for row in found if not is_all_ties(accuracies[row["scorer"]], row["column"])]
        if not rows:
            return
        yield "text", "Differences in percentage points; intervals and McNemar’s exact test are over recordings."
        alone = self.columns[0] if len(self.columns) == 1 else None
        columns: dict[str, Any] = {"other scorer, pairs of": lambda row: self.subsets[alone or row["column"]]}
        columns |= {"difference": ":difference", "McNemar’s p": lambda row: tables.format_p_value(row["p_value"])}
        columns |= {f"only this {self.kind} right": "num_only_first", "only the other right": "num_only_second"}
        columns |= {"both right": "num_both", "both wrong": "num_neither"}
        yield "table", _tabulate("Other scorers", rows, columns, lambda row: self.titles[row["scorer"]])

    def show_examples(self) -> Blocks:
        examples, licenses = self.report["examples"], ", ".join(self.report["private_licenses"])
        if not examples:
            return
        num_wrong = self.own["num_pairs"]["overall_micro"] - self.own["num_correct"]["overall_micro"]
        shown = "" if len(examples) == num_wrong else f"; the {len(examples)} lowest margins are here"
        yield "text", f"{num_wrong} of {self.report['num_pairs']} pairs are wrong{shown}."
        if licenses:
            unknown = f"local recordings that are not known to allow redistribution (licence: {licenses})"
            remedy = "Do not publish it; --embed_audio open writes a page without them."
            yield "caution", f"This page plays {unknown}. {remedy}"
        else:
            yield "text", "Share a recording only as its licence allows."
        for number, row in enumerate(examples, start=1):
            title = f"{number}. Margin {row['margin']:+.2f}"
            found = self._make_dialogue(row, title, f"pair {number}", {f"the {self.kind}": row["margin"]})
            yield "dialogue", found._replace(is_open=number == 1)

    def _make_dialogue(self, row: Report, title: str, place: str, margins: Mapping[str, float | None]) -> Dialogue:
        """Return both sides of a pair, with the scorers of `margins` that prefer each."""
        sides = []
        for side, sign in zip(SIDES, (1, -1), strict=True):
            marks = [f"{who} prefers this" for who, margin in margins.items() if sign * (margin or 0) > 0]
            sides.append(Side(side, row.get(side, ()), row.get(f"{side}_reward"), side, marks))
        labels = (row["criterion"], row["source"], self.subsets[row["subset"]], row["synthesizer"])
        about = " · ".join(dict.fromkeys(filter(None, labels)))
        categories = [f"Pair {row['pair_id']}", row.get("primary"), row.get("primary") and row.get("secondary")]
        foot = ", ".join(filter(None, categories)) + "."
        if "license" in row:
            foot += f" Licence: {row['license'] or 'not given'}."
        mark, language = self._mark(row["synthesizer"]), row.get("language")
        return Dialogue(title, place, sides, about, mark, foot, language)

    def show_disagreements(self) -> Blocks:
        if not (disagreements := self.report.get("disagreements")):
            return
        who, num_pairs = f"this {self.kind}", self.own["num_pairs"]["overall_micro"]
        what = "Pairs that only one of two has right, the most confident first. A scorer’s confidence in a pair is the"
        yield "text", f"{what} share of the pairs on which its |margin| is smaller."
        for other, found in enumerate(disagreements, start=1):
            title = self.titles.get(f"compared_{other}", f"{found['title']} ({found['folder']})")
            yield "heading", f"With {title}"
            shown = f"{found['num_pairs']} of {num_pairs} pairs; {len(found['rows'])} of them are here."
            yield "text", shown if found["num_pairs"] else "None: of every pair, both are right or both are wrong."
            for number, row in enumerate(found["rows"], start=1):
                right, confidence = who if row["is_right"] else "the other", f"{100 * row['confidence']:.0f}%"
                margins = f"margin {_read(row, 'margin:+.2f')}, the other’s {_read(row, 'other_margin:+.2f')}"
                title = f"{number}. Only {right} is right: {margins}, confidence {confidence}"
                preferences = {who: row["margin"], "the other": row["other_margin"]}
                pair = self._make_dialogue(row, title, f"disagreement {other}.{number}", preferences)
                yield "dialogue", pair._replace(level=4)

    def show_skipped(self) -> Blocks:
        if skipped := self.report["skipped"]:
            yield "text", f"{len(skipped)} pairs were skipped and are not counted."
            rows = [{**row, "subset": self.subsets[row["subset"]]} for row in skipped]
            columns = {"pair": "pair_id", "subset": "subset", "why": "reason"}
            yield "table", _tabulate("Skipped pairs", rows, columns, words=("subset", "why"))
        if broken := self.report["not_finite"]:
            yield "text", "Rewards that are missing, NaN or infinite count as wrong and are part of no figure:"
            yield "list", [f"{self.titles[row['scorer']]}: pair {row['pair_id']}" for row in broken]
