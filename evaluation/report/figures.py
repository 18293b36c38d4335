"""Draw the page's figures, and `rewards.png` beside the results.

Sides, models and runs differ by hatch, marker or line style as well as by colour; every number drawn is in
`report.json`. The same numbers give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.common.files import replace_atomically
from sdiareward.evaluation.columns import SUBSET_LABELS, TITLES, title_columns
from sdiareward.pairs.schema import SIDES


Records = Sequence[Mapping[str, Any]]

# Large enough to be read where a phone shows the figure 360 pixels wide.
PANEL_INCHES = (5.4, 4.0)
_DPI = 150
# Any: matplotlib's stubs have the settings of one version.
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.7,
    "legend.framealpha": 0.9,
    # A name with dollar signs is not a formula.
    "text.parse_math": False,
}
_SIDE_STYLES: dict[str, dict[str, Any]] = {
    "chosen": {"facecolor": "#56b4e9", "hatch": "///"},
    "rejected": {"facecolor": "#e69f00", "hatch": "..."},
}
# Okabe and Ito's colours, which differ in lightness too.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", "-.", ":")
_MAX_TITLE_CHARACTERS = 34
# For readers who do not see a figure; the table beside it has the numbers.
FIGURE_TITLES = {
    "accuracy": "Accuracy by subset",
    "densities": "Density of rewards by subset",
    "boxes": "Quartiles of rewards by subset",
    "score_alignment": "Mean reward of the chosen side over training steps",
    "margin_stability": "Mean margin over training steps",
    "reliability": "Accuracy against confidence",
    "accuracy_by_margin": "Accuracy by margin",
    "comparison": "Difference in accuracy from other scorers",
}


def draw_figures(report: Mapping[str, Any], records: Records, folder: Path) -> list[str]:
    """Draw every figure the report has numbers for, as PNG files named after it."""
    drawings: dict[str, Callable[[Any], None]] = {"accuracy": lambda axes: draw_accuracy(axes, report)}
    if report["rewards"]:
        drawings["densities"] = lambda axes: draw_densities(axes, records)
        drawings["boxes"] = lambda axes: draw_boxes(axes, records)
    if report["training"]:
        drawings["score_alignment"] = lambda axes: draw_training(axes, report["training"], "chosen")
        drawings["margin_stability"] = lambda axes: draw_training(axes, report["training"], "margin")
    if report["calibration"]:
        drawings["reliability"] = lambda axes: draw_reliability(axes, report["calibration"][0])
    if report["margins"]["bins"]:
        drawings["accuracy_by_margin"] = lambda axes: draw_accuracy_by_margin(axes, report["margins"]["bins"])
    if report["comparisons"]:
        drawings["comparison"] = lambda axes: draw_comparisons(axes, report)
    for name, draw in drawings.items():
        with figure_file(folder / f"{name}.png") as figure:
            draw(figure.subplots())
    return list(drawings)


@contextmanager
def figure_file(path: Path, size_inches: tuple[float, float] = PANEL_INCHES) -> Iterator[Any]:
    """Yield a figure in the style of all pages, and save it atomically."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size_inches, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        with replace_atomically(path) as temporary:
            figure.savefig(temporary, format="png", dpi=_DPI, metadata={"Software": None})


def plot_rewards(records: Records, path: Path) -> None:
    """Draw the rewards of both sides by subset, as densities and as boxes (Figure 4c and d of the paper)."""
    with figure_file(path, (2 * PANEL_INCHES[0], PANEL_INCHES[1])) as figure:
        densities, boxes = figure.subplots(1, 2, sharey=True)
        draw_densities(densities, records)
        draw_boxes(boxes, records)
        boxes.set_ylabel("")


def draw_densities(axes: Any, records: Records) -> None:
    present, values = _group_rewards(records)
    for side, half in zip(SIDES, ("low", "high"), strict=True):
        # A density needs two different values.
        drawn = {position: array for position, array in enumerate(values[side]) if len(np.unique(array)) > 1}
        if not drawn:
            continue
        violins = axes.violinplot(
            list(drawn.values()), list(drawn), widths=0.8, showextrema=False, showmedians=True, side=half
        )
        for body in violins["bodies"]:
            body.set(**_SIDE_STYLES[side], edgecolor="black", alpha=0.8)
        violins["cmedians"].set(color="black", linewidth=2)
    _label_subsets(axes, present, "Density of rewards")


def draw_boxes(axes: Any, records: Records) -> None:
    """Draw the rewards by subset as boxes: median, quartiles, whiskers at 5 and 95%."""
    present, values = _group_rewards(records)
    for number, side in enumerate(SIDES):
        positions = [position + 0.4 * (number - 0.5) for position in range(len(present))]
        boxes = axes.boxplot(
            values[side], positions=positions, widths=0.3, whis=(5, 95), showfliers=False, patch_artist=True
        )
        for box in boxes["boxes"]:
            box.set(**_SIDE_STYLES[side], alpha=0.8)
        for median in boxes["medians"]:
            median.set(color="black", linewidth=2)
    _label_subsets(axes, present, "Quartiles of rewards, 5-95% range")


def _group_rewards(records: Records) -> tuple[list[str], dict[str, list[np.ndarray]]]:
    present = [name for name in SUBSET_LABELS if any(record["subset"] == name for record in records)]
    values = {
        side: [_select_finite(record[side] for record in records if record["subset"] == name) for name in present]
        for side in SIDES
    }
    return present, values


def _select_finite(values: Any) -> np.ndarray:
    array = np.array(list(values), dtype=np.float64)
    return array[np.isfinite(array)]


def _label_subsets(axes: Any, present: Sequence[str], title: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axes.set_title(title)
    axes.set_xticks(range(len(present)), [TITLES[name] for name in present])
    axes.set_xlim(-0.6, len(present) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("reward")
    handles: list[Any] = [Patch(**style, edgecolor="black", label=side) for side, style in _SIDE_STYLES.items()]
    handles.append(Line2D([], [], color="black", linewidth=2, label="median"))
    axes.legend(handles=handles, loc="best")


def draw_accuracy(axes: Any, report: Mapping[str, Any]) -> None:
    """Draw Table 2: one row per column, one marker per scorer, bars for the intervals."""
    columns = report["columns"]
    scorers = report["scorers"]
    for number, scorer in enumerate(scorers):
        result = report["accuracies"][scorer["name"]]
        shift = 0.7 * ((number + 0.5) / len(scorers) - 0.5)
        _draw_intervals(
            axes,
            [result[name] for name in columns],
            [result["interval"][name] for name in columns],
            [position + shift for position in range(len(columns))],
            **choose_marker_style(number),
            label=shorten(scorer["title"]),
        )
    titles = title_columns(columns)
    axes.set_yticks(range(len(columns)), [titles[name] for name in columns])
    axes.invert_yaxis()
    axes.axvline(50, color="black", linestyle=":", linewidth=1, label="chance")
    axes.set(title="Accuracy with 95% intervals", xlabel="percent")
    _add_legend(axes)


def draw_comparisons(axes: Any, report: Mapping[str, Any]) -> None:
    titles = {scorer["name"]: shorten(scorer["title"]) for scorer in report["scorers"]}
    columns = list(dict.fromkeys(row["column"] for row in report["comparisons"]))
    names = list(dict.fromkeys(row["scorer"] for row in report["comparisons"]))
    for number, column in enumerate(columns):
        rows = [row for row in report["comparisons"] if row["column"] == column]
        shift = 0.6 * ((number + 0.5) / len(columns) - 0.5)
        _draw_intervals(
            axes,
            [row["difference"] for row in rows],
            [row["interval"] for row in rows],
            [names.index(row["scorer"]) + shift for row in rows],
            **choose_marker_style(number),
            label=TITLES[column],
        )
    # Names above their rows: beside them they would leave no room for the axis.
    for position, name in enumerate(names):
        place = {
            "transform": axes.get_yaxis_transform(),
            "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1},
        }
        axes.text(0.01, position - 0.36, f"minus {titles[name]}", fontweight="bold", **place)
    axes.set_yticks([])
    axes.set_ylim(len(names) - 0.6, -0.6)
    axes.axvline(0, color="black", linewidth=1)
    axes.set(title="Difference in accuracy, 95% interval", xlabel="percentage points")
    _add_legend(axes)


def _draw_intervals(
    axes: Any, values: Sequence[float | None], intervals: Sequence[Any], positions: Sequence[float], **style: Any
) -> None:
    """Draw shares of 0-1 in percent along the x axis; a missing value or interval is omitted."""
    shares = [math.nan if value is None else value for value in values]
    axes.errorbar(
        100 * np.array(shares),
        positions,
        xerr=100 * measure_errors(shares, intervals),
        linestyle="",
        capsize=3,
        elinewidth=1.2,
        **style,
    )


def draw_reliability(axes: Any, calibration: Mapping[str, Any]) -> None:
    axes.plot([0.5, 1], [0.5, 1], color="black", linestyle=":", label="perfect")
    for number, (name, when) in enumerate((("before", "as it is"), ("after", "with temperature"))):
        if calibration[name] is None:
            continue
        bins = calibration[name]["bins"]
        x, y, errors = _make_points(bins, "confidence")
        title = f"{when}: error {calibration[name]['error']:.3f}"
        # No lines: a few bins are not a trend.
        axes.errorbar(x, y, yerr=errors, linestyle="", capsize=3, **choose_marker_style(number), label=title)
    axes.set(title="Reliability in equal-mass bins", xlabel="confidence, sigmoid(|margin|)", ylabel="accuracy")
    axes.legend(loc="lower right")


def draw_accuracy_by_margin(axes: Any, bins: Records) -> None:
    x, y, errors = _make_points([{**row, "middle": (row["low"] + row["high"]) / 2} for row in bins], "middle")
    axes.errorbar(x, y, yerr=errors, linestyle="", capsize=3, **choose_marker_style(0), label="bin, 95% interval")
    axes.axhline(0.5, color="black", linestyle=":", linewidth=1, label="chance")
    axes.set(title="Accuracy by margin", xlabel="|margin|, middle of the bin", ylabel="accuracy")
    axes.legend(loc="best")


def _make_points(bins: Records, x: str) -> tuple[list[float], list[float], np.ndarray]:
    """Return x, accuracy, and the distances to its interval's bounds, shape `(2, num_bins)`."""
    values = [row["accuracy"] for row in bins]
    return [row[x] for row in bins], values, measure_errors(values, [row["interval"] for row in bins])


def measure_errors(values: Sequence[float], intervals: Sequence[Sequence[float] | None]) -> np.ndarray:
    """Return the distances to the bounds, shape `(2, num_values)`; NaN, which is not drawn, without an interval."""
    bounds = np.array([interval or (math.nan, math.nan) for interval in intervals], dtype=np.float64).reshape(-1, 2)
    return np.maximum(0.0, (bounds.T - np.asarray(values)) * [[-1], [1]])


def draw_training(axes: Any, runs: Records, value: str) -> None:
    """Draw the mean chosen reward, or the margin, of training runs over steps (Figures 4 and 8, a and b)."""
    for number, run in enumerate(runs):
        style = {"color": COLORS[number % len(COLORS)], "linestyle": LINES[number % len(LINES)]}
        marker = MARKERS[number % len(MARKERS)]
        title = shorten(run["title"])
        steps = {name: [point["step"] for point in run[name]] for name in ("train", "validation")}
        values = {name: [point[value] for point in run[name]] for name in ("train", "validation")}
        label = title if run["train"] else None
        axes.plot(steps["train"], values["train"], **style, linewidth=1.2, label=label)
        if run["validation"]:
            axes.plot(
                steps["validation"], values["validation"], **{**style, "linestyle": ""}, marker=marker,
                label=f"{title}, validation",
            )  # fmt: skip
    axes.axhline(0, color="black", linewidth=1)
    what = {"chosen": ("(a) Mean reward of chosen", "reward"), "margin": ("(b) Mean margin", "margin")}[value]
    axes.set(title=what[0], xlabel="step", ylabel=what[1])
    axes.legend(loc="best", fontsize=9)


def choose_marker_style(number: int) -> dict[str, Any]:
    """Return the marker style of a series, by its number: series differ by form as well as by colour."""
    return {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 5.5}


def _add_legend(axes: Any) -> None:
    axes.figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)


def shorten(title: str) -> str:
    """Return a title that fits in a legend: the end of a long one, where folders differ."""
    return title if len(title) <= _MAX_TITLE_CHARACTERS else f"...{title[3 - _MAX_TITLE_CHARACTERS :]}"
