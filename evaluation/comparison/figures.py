"""Draw the figures of a comparison, in the style of all pages; every number drawn is in `compare.parquet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..report.figures import choose_marker_style, figure_file, measure_errors, shorten
from .results import ScoredDialogues


# More curves cannot be told apart.
MAX_CURVES = 6


def draw_figures(report: Mapping[str, Any], scored: ScoredDialogues, folder: Path) -> dict[str, dict[str, str]]:
    """Draw the figures as PNG files; return `caption` and `alt` of each by its name."""
    described: dict[str, dict[str, str]] = {}
    for criterion in report["criteria"]:
        pairs = [pair for pair in report["pairs"] if pair["criterion"] == criterion]
        with figure_file(folder / f"margins_{_make_file_name(criterion)}.png") as figure:
            draw_margins(figure.subplots(), scored, pairs[:MAX_CURVES])
        described[f"margins_{_make_file_name(criterion)}"] = {
            "caption": f"{criterion}: the margin of each dialogue, sorted. Where a curve crosses zero is the share of "
            "dialogues that the second system wins.",
            "alt": "Sorted margins. " + " ".join(pair["verdict"] for pair in pairs),
        }
        with figure_file(folder / f"follows_{_make_file_name(criterion)}.png", (8.6, 4.0)) as figure:
            draw_follows(figure, scored, pairs[0])
        described[f"follows_{_make_file_name(criterion)}"] = {
            "caption": f"{criterion}: margin of {pairs[0]['first']} over {pairs[0]['second']} against the "
            "differences in seconds heard and in level of the answers. With a slope, the reward may follow these.",
            "alt": _describe_follows(pairs[0]),
        }
        ranked = [entry for entry in report["ranking"] if entry["criterion"] == criterion]
        if ranked:
            with figure_file(folder / f"ranking_{_make_file_name(criterion)}.png") as figure:
                draw_ranking(figure.subplots(), ranked)
            described[f"ranking_{_make_file_name(criterion)}"] = {
                "caption": f"{criterion}: strengths of a Bradley-Terry model with 95% intervals.",
                "alt": "Strengths. " + " ".join(f"{entry['system']}: {entry['strength']:+.2f}." for entry in ranked),
            }
    return described


def _make_file_name(criterion: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in criterion)


def _compute_margins(scored: ScoredDialogues, pair: Mapping[str, Any]) -> Any:
    rewards = scored.rewards[pair["criterion"]]
    one, other = (scored.systems.index(pair[side]) for side in ("first", "second"))
    return rewards[:, one] - rewards[:, other]


def draw_margins(axes: Any, scored: ScoredDialogues, pairs: Sequence[Mapping[str, Any]]) -> None:
    """Draw the sorted margins of each pair of systems."""
    for number, pair in enumerate(pairs):
        margins = np.sort(_compute_margins(scored, pair))
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


def draw_follows(figure: Any, scored: ScoredDialogues, pair: Mapping[str, Any]) -> None:
    """Draw margins against differences in seconds heard and in level."""
    one, other = (scored.systems.index(pair[side]) for side in ("first", "second"))
    panels = figure.subplots(1, 2, sharey=True)
    columns = (("heard_answer_s", "difference in seconds heard"), ("level_dbfs", "difference in level, dB"))
    for number, (axes, (name, title)) in enumerate(zip(panels, columns, strict=True)):
        values = scored.get_values(name)
        axes.plot(
            values[:, one] - values[:, other],
            _compute_margins(scored, pair),
            linestyle="",
            **choose_marker_style(number),
        )
        axes.axhline(0, color="black", linewidth=1)
        axes.axvline(0, color="black", linewidth=1)
        axes.set(xlabel=title)
    panels[0].set(ylabel="margin")
    figure.suptitle(f"{shorten(pair['first'])} − {shorten(pair['second'])}", fontsize=12)


def _describe_follows(pair: Mapping[str, Any]) -> str:
    parts = []
    for name, title in (("length_s", "seconds heard"), ("level_db", "level")):
        found = pair["follows"][name]["correlation"]
        parts.append(f"{title}: {'no correlation can be measured' if found is None else f'correlation {found:+.2f}'}.")
    return "Scatter plots of the margin. " + " ".join(parts)


def draw_ranking(axes: Any, ranked: Sequence[Mapping[str, Any]]) -> None:
    for position, entry in enumerate(ranked):
        errors = measure_errors([entry["strength"]], [entry["interval"]])
        axes.errorbar([entry["strength"]], [position], xerr=errors, capsize=3, linestyle="", **choose_marker_style(0))
    axes.set_yticks(range(len(ranked)), [shorten(entry["system"]) for entry in ranked])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linestyle=":", linewidth=1)
    axes.set(title="Strength and 95% interval; dots: mean", xlabel="log-odds of a win")
