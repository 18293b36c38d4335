"""The page of a comparison: its sections, with the verdict first, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdiareward.common.files import write_file
from sdiareward.common.tables import (
    Cell,
    Row,
    Table,
    format_number,
    format_p_value,
    format_percent,
    format_range,
    format_signed,
    make_share,
)
from sdiareward.pairs.systems import System

from .report.examples import Collector, EmbedAudio
from .report.figures import choose_marker_style, measure_errors, save_figures, shorten
from .report.page import Block, Dialogue, Section, Side, render_page
from .report.sections import make_settings_table
from .summary import name_model
from .verdicts import COVARIATES


_NUM_EXAMPLES = 10
# More curves cannot be told apart.
_MAX_CURVES = 6
Report = Mapping[str, Any]


def write_page(
    folder: Path, report: Report, scored: Any, systems: Sequence[System], embed_audio: EmbedAudio = "all"
) -> None:
    """Write `index.html` and its figures; the same comparison gives the same bytes."""
    figures = _draw_figures(report, scored, folder)
    collector, criterion = Collector(embed_audio), report["criteria"][0]
    examples = [
        [_make_dialogue(scored, systems, row, criterion, collector) for row in rows]
        for rows in choose_examples(scored.rewards[criterion])
    ]
    groups = f" of {report['num_groups']} groups" if report["num_groups"] != report["num_dialogues"] else ""
    subject = " or ".join(report["systems"])
    page = render_page(
        title=subject,
        kind="Comparison of spoken dialogue systems",
        subject=subject,
        subtitle=f"{report['num_dialogues']} dialogues{groups}, scored by {name_model(report['model'])}",
        sections=_build_sections(report, list(figures), examples, bool(collector.clips)),
        figures=figures,
        clips=collector.clips,
    )
    write_file(folder / "index.html", page)


def choose_examples(rewards: NDArray[np.float64], num_examples: int = _NUM_EXAMPLES) -> tuple[list[int], list[int]]:
    """Return the dialogues in which systems differ most, and those in which they differ least; none is in both."""
    order = np.argsort(-np.ptp(rewards, axis=1), kind="stable").tolist()
    num_clearest = min(num_examples, (len(order) + 1) // 2)
    num_closest = min(num_examples, len(order) - num_clearest)
    return order[:num_clearest], order[len(order) - num_closest :][::-1]


def _make_dialogue(scored: Any, systems: Sequence[System], row: int, criterion: str, collector: Collector) -> Dialogue:
    """Return a dialogue with words and recordings of every system, the best first."""
    name, rewards = scored.names[row], scored.rewards[criterion][row]
    margin = float(np.ptp(rewards))
    sides: list[Side] = []
    for column in np.argsort(-rewards, kind="stable"):
        turns = collector.describe_side(systems[column].read(name), None)
        style = "best" if not sides and margin > 0 else ""
        sides.append(Side(systems[column].name, turns, float(rewards[column]), style))
    tied = f"{sides[0].name} and {sides[1].name} are tied" if margin == 0 else f"{sides[0].name} first"
    return Dialogue(name, name, sides, about=f"margin {format_number(margin)}; {tied}")


def _build_sections(
    report: Report, figures: Sequence[str], examples: Sequence[Sequence[Dialogue]], has_clips: bool
) -> list[Section]:
    what = "groups" if report["num_groups"] != report["num_dialogues"] else "dialogues"
    over = f"over {report['num_groups']} {what}"
    is_clear = any(pair["is_clear"] for pair in report["pairs"])
    lines: list[Block] = [("text", line) for line in report["verdict"].split("\n")]
    verdict: list[Block] = [("verdict clear" if is_clear else "verdict", [*lines, ("rule", report["rule"])])]
    verdict += [("text", f"{criterion}: {report['about'][criterion]}") for criterion in report["criteria"]]
    wins = (
        "A win is a strictly higher reward. A tie is no win of either; in the win rate it is half a win of each. "
        f"Intervals and the sign test are {over}. The test omits ties."
    )
    strengths = (
        "Strengths of a Bradley-Terry model: the log-odds of a win against a system of mean strength. Half a win of "
        "each system over each other one is added, so that a system that always wins has a finite strength. Intervals "
        f"are {over}."
    )

    def draw(kind: str) -> Block:
        return "figures", [name for name in figures if name.startswith(f"{kind}_")]

    ranking: list[Block] = [("text", strengths), ("table", _tabulate_ranking(report)), draw("ranking")]
    settings = {f"system {name}": path for name, path in report["systems"].items()}
    settings |= {name: report["identity"][name] for name in ("model", "dtype")}
    settings |= {"match_level": report["match_level"] or None}
    settings |= {name: report[name] for name in ("num_bootstrap", "seed", "python")} | {"git": report["git_revision"]}
    found: list[Section] = [
        ("verdict", "Verdict", verdict),
        ("pairs", "Wins", [("text", wins), ("table", _tabulate_wins(report)), draw("margins")]),
        ("ranking", "Ranking", ranking if report["ranking"] else []),
        ("limits", "What limits it", [("list", report["limits"]), draw("follows")]),
    ]
    under = f", under {report['criteria'][0]}" if len(report["criteria"]) > 1 else ""
    pass_on = " The recordings are in this page; pass it on only if they may be." if has_clips else ""
    for key, dialogues, which in zip(("clearest", "closest"), examples, ("most", "least"), strict=True):
        whose = "the systems’ rewards" if which == "most" else "they"
        text = (
            f"The {len(dialogues)} dialogues in which {whose} differ {which}{under}. The higher reward stands first."
        )
        blocks: list[Block] = [("dialogue", each._replace(is_open=each is dialogues[0])) for each in dialogues]
        found.append((key, f"{key.capitalize()} dialogues", [("text", text + pass_on), *blocks] if blocks else []))
    found.append(("skipped", "Skipped", _show_skipped(report)))
    made = make_settings_table({**settings, **report["versions"]})
    return [section for section in [*found, ("provenance", "How this was made", [("table", made)])] if section[2]]


def _tabulate_wins(report: Report) -> Table:
    rows = []
    for pair in report["pairs"]:
        cells: list[Any] = [f"{pair['first']}, {pair['second']}", pair["criterion"]]
        cells += [pair["num_first"], pair["num_second"], pair["num_ties"]]
        cells += [make_share(pair["win_rate"], pair["interval"]), format_p_value(pair["p_value"])]
        bounds = pair["mean_margin_interval"]
        cells.append(Cell(format_signed(pair["mean_margin"]), format_range(bounds) if bounds else ""))
        for name in COVARIATES:
            follows = pair["follows"][name]
            marks = {"suspect": follows["is_suspect"], "differs": follows["is_systematic"]}
            mark = ", ".join(mark for mark, is_so in marks.items() if is_so)
            cells.append(Cell(format_signed(follows["correlation"]), mark=mark))
        rows.append(Row([*cells, "yes" if pair["is_clear"] else "no"], "own" if pair["is_clear"] else ""))
    head = ["first, second", "criterion", "first wins", "second wins", "ties", "win rate of the first, %"]
    head += [
        "sign test, p",
        "mean margin",
        *(f"correlation with {each.title}" for each in COVARIATES.values()),
        "clear",
    ]
    return _drop_criterion(report, Table("Wins of each pair of systems", head, rows, ("criterion", "clear")))


def _tabulate_ranking(report: Report) -> Table:
    rows = []
    for entry in report["ranking"]:
        strength = Cell(format_signed(entry["strength"]), format_range(entry["interval"]) if entry["interval"] else "")
        rows.append(Row([entry["system"], entry["criterion"], strength, format_percent(entry["win_rate"])]))
    head = ["system", "criterion", "strength", "comparisons won, %"]
    return _drop_criterion(report, Table("Ranking", head, rows, ("criterion",)))


def _drop_criterion(report: Report, table: Table) -> Table:
    """Return a table without its second column if there is one criterion."""
    if len(report["criteria"]) > 1:
        return table
    rows = [Row([row.cells[0], *row.cells[2:]], row.style) for row in table.rows]
    return table._replace(head=[table.head[0], *table.head[2:]], rows=rows)


def _show_skipped(report: Report) -> list[Block]:
    blocks: list[Block] = []
    if report["unmatched"]:
        rows = [Row([row["dialogue"], ", ".join(row["missing_in"])]) for row in report["unmatched"]]
        head = ["dialogue", "missing in"]
        blocks.append(("table", Table("Dialogues that a system lacks", head, rows, head)))
    if report["skipped"]:
        head = ["dialogue", "system", "reason"]
        rows = [Row([row[name] for name in head]) for row in report["skipped"]]
        blocks.append(("table", Table("Dialogues that could not be used", head, rows, head)))
    return blocks


def _draw_figures(report: Report, scored: Any, folder: Path) -> dict[str, tuple[str, bytes]]:
    """Draw the figures as PNG files; return title and bytes of each by its name."""
    drawings: dict[str, Any] = {}
    titles: dict[str, str] = {}
    for criterion in report["criteria"]:
        pairs = [pair for pair in report["pairs"] if pair["criterion"] == criterion]
        ranked = [entry for entry in report["ranking"] if entry["criterion"] == criterion]
        end = "".join(character if character.isalnum() else "_" for character in criterion)
        drawings[f"margins_{end}"] = partial(_draw_margins, scored, pairs[:_MAX_CURVES])
        drawings[f"follows_{end}"] = partial(_draw_follows, scored, pairs[0])
        titles[f"margins_{end}"] = f"{criterion}: sorted margins of the dialogues"
        titles[f"follows_{end}"] = f"{criterion}: margin against differences in seconds heard and in level"
        if ranked:
            drawings[f"ranking_{end}"] = partial(_draw_ranking, ranked)
            titles[f"ranking_{end}"] = f"{criterion}: strengths and their intervals"
    wide = [name for name in drawings if name.startswith("follows_")]
    return {name: (titles[name], data) for name, data in save_figures(drawings, folder, wide).items()}


def _compute_margins(values: NDArray[np.float64], scored: Any, pair: Report) -> NDArray[np.float64]:
    one, other = (scored.systems.index(pair[side]) for side in ("first", "second"))
    return values[:, one] - values[:, other]


def _draw_margins(scored: Any, pairs: Sequence[Report], axes: Any) -> None:
    """Draw the sorted margins of each pair of systems."""
    for number, pair in enumerate(pairs):
        margins = np.sort(_compute_margins(scored.rewards[pair["criterion"]], scored, pair))
        shares = 100 * (np.arange(len(margins)) + 0.5) / len(margins)
        label = f"{shorten(pair['first'])} − {shorten(pair['second'])}"
        axes.plot(shares, margins, linestyle="-", linewidth=0.8, **choose_marker_style(number), label=label)
    axes.axhline(0, color="black", linewidth=1)
    axes.set(xlabel="percent of dialogues", ylabel="margin", xlim=(0, 100))
    if len(pairs) > 1:
        axes.set_title("Margins of the dialogues, sorted")
        axes.legend(loc="best", fontsize=9)
    else:
        first, second = shorten(pairs[0]["first"]), shorten(pairs[0]["second"])
        axes.set_title(f"above 0: {first} is better\nbelow 0: {second} is better", fontsize=10)


def _draw_follows(scored: Any, pair: Report, panels: Any) -> None:
    """Draw margins against differences in seconds heard and in level."""
    columns = (("heard_answer_s", "difference in seconds heard"), ("level_dbfs", "difference in level, dB"))
    margins = _compute_margins(scored.rewards[pair["criterion"]], scored, pair)
    for number, (axes, (name, title)) in enumerate(zip(panels, columns, strict=True)):
        differences = _compute_margins(scored.get_values(name), scored, pair)
        axes.plot(differences, margins, linestyle="", **choose_marker_style(number))
        axes.axhline(0, color="black", linewidth=1)
        axes.axvline(0, color="black", linewidth=1)
        axes.set(xlabel=title)
    panels[0].set(ylabel="margin")
    panels[0].figure.suptitle(f"{shorten(pair['first'])} − {shorten(pair['second'])}", fontsize=12)


def _draw_ranking(ranked: Sequence[Report], axes: Any) -> None:
    for position, entry in enumerate(ranked):
        errors = measure_errors([entry["strength"]], [entry["interval"]])
        axes.errorbar([entry["strength"]], [position], xerr=errors, capsize=3, linestyle="", **choose_marker_style(0))
    axes.set_yticks(range(len(ranked)), [shorten(entry["system"]) for entry in ranked])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linestyle=":", linewidth=1)
    axes.set(title="Strength and 95% interval; dots: mean", xlabel="log-odds of a win")
