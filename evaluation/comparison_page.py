"""The page of a comparison: its sections, with the verdict first, and its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdiareward.calls.reading import Call
from sdiareward.common import tables
from sdiareward.common.files import write_file
from sdiareward.common.tables import Cell, Row, Table, format_signed

from .report.calls import show_call, tabulate_timing
from .report.figures import INK, SIDE_COLORS, choose_marker_style, save_figures, shorten
from .report.page import Block, Collector, Dialogue, EmbedAudio, Section, Side, render_page
from .summary import name_model
from .verdicts import COVARIATES, Covariate, count_by, spread


if TYPE_CHECKING:
    import pandas as pd

_NUM_EXAMPLES, _NUM_CALLS = 10, 4
# Pairs of systems under one criterion whose margins are drawn.
_MAX_FIGURES = 3
Report = Mapping[str, Any]
# Of each system: returns the messages of a dialogue.
Readers = Mapping[str, Callable[[str], Any]]
# Of each system that was recorded in calls, by name.
Calls = Mapping[str, Mapping[str, Call]]


def write_page(
    folder: Path, report: Report, table: pd.DataFrame, readers: Readers, calls: Calls, embed_audio: EmbedAudio = "all"
) -> Path:
    """Write `index.html` and its figures; the same comparison gives the same bytes."""
    figures, collector, subject = _draw_figures(report, table, folder), Collector(embed_audio), " or ".join(readers)
    over = f"{report['num_groups']} {count_by(report)}"
    groups = f" of {over}" if count_by(report) == "groups" else ""
    rewards = spread(table, report["criteria"][0])
    examples = [_show_examples(rewards.iloc[rows], readers, collector) for rows in choose_examples(rewards.to_numpy())]
    pass_on = " The page contains the recordings; share it only if their licences allow it." if collector.clips else ""
    text = f"Largest margins first, under {report['criteria'][0]}; the winner is on the left.{pass_on}"

    lines: list[Block] = [("text", line) for line in report["verdict"].split("\n")]
    is_clear = any(pair["is_clear"] for pair in report["pairs"])
    verdict: list[Block] = [("verdict clear" if is_clear else "verdict", [*lines, ("rule", report["rule"])])]
    wins = f"A win is a strictly higher reward; in the win rate a tie counts half for each. Intervals are over {over}."
    strengths = "Strength is the log-odds of a win against a system of mean strength, by a Bradley-Terry model."
    sections: list[Section] = [
        ("verdict", "Verdict", verdict + [("text", f"{name}: {what}") for name, what in report["about"].items()]),
        ("limits", "Limits", [("list", report["limits"])]),
        ("pairs", "Wins", [tabulate_wins(report["pairs"]), ("figures", list(figures)), ("text", wins)]),
        ("ranking", "Ranking", [("text", strengths), _tabulate_ranking(report["ranking"])]),
        ("timing", "Timing", _show_timing(report, rewards, calls, collector)),
        ("clearest", "Clearest dialogues", [("text", text), *examples[0]]),
        ("closest", "Closest dialogues", examples[1]),
        ("skipped", "Skipped", _show_skipped(report)),
    ]
    page = render_page(
        title=subject,
        kind="Comparison of spoken dialogue systems",
        subject=subject,
        subtitle=f"{report['num_dialogues']} dialogues{groups}, scored by {name_model(report['model'])}",
        sections=[section for section in sections if section[2] and (section[0] != "ranking" or report["ranking"])],
        figures=figures,
        clips=collector.clips,
        foot="Numbers and settings are in compare.json, every reward in compare.parquet.",
    )
    write_file(folder / "index.html", page)
    return folder / "index.html"


def _show_timing(report: Report, rewards: pd.DataFrame, calls: Calls, collector: Collector) -> list[Block]:
    if not calls:
        return []
    blocks: list[Block] = [("table", tabulate_timing(report["timing"]))]
    names = dict.fromkeys(name.rpartition("#")[0] for name in rewards.index)
    for name in list(names)[:_NUM_CALLS]:
        for system, found in calls.items():
            shown = [rewards[system].get(window) for window in found[name].list_windows()] if name in found else []
            if shown:
                blocks.append(("details", (f"{name}, {system}", list(show_call(found[name], shown, collector)))))
    return blocks


def tabulate_wins(pairs: Sequence[Report]) -> Block:
    # What is the same in all dialogues has no correlation.
    shown = [name for name in COVARIATES if any(pair["follows"][name]["correlation"] is not None for pair in pairs)]
    rows = []
    for pair in pairs:
        cells: list[Any] = [f"{pair['first']} over {pair['second']}", pair["criterion"]]
        cells += [pair["num_first"], pair["num_second"], pair["num_ties"]]
        cells += [tables.make_share(pair["win_rate"], pair["interval"]), tables.format_p_value(pair["p_value"])]
        cells.append(_sign(pair["mean_margin"], pair["mean_margin_interval"]))
        for name in shown:
            found = pair["follows"][name]
            marks = {"follows": found["is_suspect"], "differs": found["is_systematic"]}
            mark = ", ".join(mark for mark, is_so in marks.items() if is_so)
            cells.append(Cell(format_signed(found["correlation"]), mark=mark))
        rows.append(Row([*cells, "yes" if pair["is_clear"] else "no"], "own" if pair["is_clear"] else ""))
    head = ["systems", "criterion", "wins", "losses", "ties", "win rate, %", "sign test, p", "mean margin"]
    head += [*(f"correlation with {COVARIATES[name].title}" for name in shown), "clear"]
    return "table", Table("Wins of each pair of systems", head, rows, ("criterion", "clear"))


def _tabulate_ranking(ranking: Sequence[Report]) -> Block:
    rows = []
    for entry in ranking:
        strength = _sign(entry["strength"], entry["interval"])
        rows.append(Row([entry["system"], entry["criterion"], strength, tables.format_percent(entry["win_rate"])]))
    return "table", Table("Ranking", ["system", "criterion", "strength", "comparisons won, %"], rows, ("criterion",))


def _sign(value: float, interval: Sequence[float] | None) -> Cell:
    return Cell(format_signed(value), tables.format_range(interval) if interval else "")


def choose_examples(rewards: NDArray[np.float64], num_examples: int = _NUM_EXAMPLES) -> tuple[list[int], list[int]]:
    """Return the dialogues in which systems differ most, and those in which they differ least; none is in both."""
    order = np.argsort(-np.ptp(rewards, axis=1), kind="stable").tolist()
    num_clearest = min(num_examples, (len(order) + 1) // 2)
    num_closest = min(num_examples, len(order) - num_clearest)
    return order[:num_clearest], order[len(order) - num_closest :][::-1]


def _show_examples(rewards: pd.DataFrame, readers: Readers, collector: Collector) -> list[Block]:
    """Return words and recordings of every system, the best first."""
    blocks: list[Block] = []
    for name, row in zip(map(str, rewards.index), rewards.to_dict("records"), strict=True):
        order = sorted(row, key=lambda system: -row[system])
        margin = row[order[0]] - row[order[-1]]
        sides = [Side(each, collector.describe_side(readers[each](name), None), row[each]) for each in order]
        sides[0] = sides[0]._replace(style="best" if margin else "")
        about = f"margin {tables.format_number(margin)}: {f'{order[0]} is higher' if margin else 'a tie'}"
        blocks.append(("dialogue", Dialogue(name, name, sides, about=about, is_open=not blocks)))
    return blocks


def _show_skipped(report: Report) -> list[Block]:
    unmatched = [Row([row["dialogue"], ", ".join(row["missing_in"])]) for row in report["unmatched"]]
    skipped = [Row([row["dialogue"], row["system"], row["reason"]]) for row in report["skipped"]]
    found = (
        Table("Dialogues that a system lacks", head := ["dialogue", "missing in"], unmatched, head),
        Table("Dialogues that could not be used", head := ["dialogue", "system", "reason"], skipped, head),
    )
    return [("table", table) for table in found if table.rows]


def _draw_figures(report: Report, table: pd.DataFrame, folder: Path) -> dict[str, tuple[str, bytes]]:
    """Draw margins, and what they may follow, as SVG files; return title and content of each by its name."""
    found: dict[str, tuple[str, Any]] = {}
    for criterion in report["criteria"]:
        pairs = [each for each in report["pairs"] if each["criterion"] == criterion]
        end = "".join(sign if sign.isalnum() else "_" for sign in criterion)
        for number, pair in enumerate(pairs[:_MAX_FIGURES], start=1):
            title = f"{criterion}: margin of each dialogue, {pair['first']} minus {pair['second']}"
            found[f"margins_{end}_{number}"] = title, partial(_draw_margins, table, pair)
        for name in ("length_s", "level_db"):
            if pairs[0]["follows"][name]["correlation"] is not None:
                title = f"{criterion}: margin against the difference in {COVARIATES[name].title}"
                found[f"{name}_{end}"] = title, partial(_draw_follows, table, pairs[0], COVARIATES[name])
    images = save_figures({name: draw for name, (_, draw) in found.items()}, folder)
    return {name: (found[name][0], image) for name, image in images.items()}


def _subtract(table: pd.DataFrame, pair: Report, column: str = "reward") -> NDArray[np.float64]:
    values = spread(table, pair["criterion"], column)
    return (values[pair["first"]] - values[pair["second"]]).to_numpy()


def _draw_margins(table: pd.DataFrame, pair: Report, axes: Any) -> None:
    margins = np.sort(_subtract(table, pair))[::-1]
    colors = [SIDE_COLORS[int(margin < 0)] for margin in margins]
    axes.bar(range(1, len(margins) + 1), margins, color=colors, width=0.8)
    axes.axhline(0, color=INK, linewidth=1)
    axes.grid(axis="x", visible=False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(title=_name_pair(pair), xlabel="dialogues, largest margin first", ylabel="margin")


def _draw_follows(table: pd.DataFrame, pair: Report, covariate: Covariate, axes: Any) -> None:
    axes.plot(
        _subtract(table, pair, covariate.measure), _subtract(table, pair), linestyle="", **choose_marker_style(0)
    )
    axes.axhline(0, color=INK, linewidth=1)
    axes.axvline(0, color=INK, linewidth=1)
    label = f"difference in {covariate.title},{covariate.unit}"
    axes.set(title=_name_pair(pair), xlabel=label, ylabel="margin")


def _name_pair(pair: Report) -> str:
    return f"{shorten(pair['first'])} − {shorten(pair['second'])}"
