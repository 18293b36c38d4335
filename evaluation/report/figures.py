"""Draw the page's figures, and `rewards.png` beside the results.

Sides, models and runs differ by hatch, marker or line style as well as by colour; every number drawn is in
`report.json`. The same numbers give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.common.files import replace_atomically
from sdiareward.pairs.schema import SIDES

from ..summary import SUBSET_LABELS, TITLES, title_columns


Records = Sequence[Mapping[str, Any]]
Draw = Callable[[Any], None]

# Large enough to be read where a phone shows the figure 360 pixels wide.
_PANEL_INCHES = (5.4, 4.0)
_WIDE_INCHES = 8.6
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
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":")
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


def draw_figures(report: Mapping[str, Any], records: Records, folder: Path) -> dict[str, bytes]:
    """Draw every figure the report has numbers for, as PNG files named after it; return their bytes."""
    drawings: dict[str, Draw] = {"accuracy": lambda axes: _draw_accuracy(axes, report)}
    if report["rewards"]:
        drawings["densities"] = lambda axes: _draw_densities(axes, records)
        drawings["boxes"] = lambda axes: _draw_boxes(axes, records)
    if report["training"]:
        drawings["score_alignment"] = lambda axes: _draw_training(axes, report["training"], "chosen")
        drawings["margin_stability"] = lambda axes: _draw_training(axes, report["training"], "margin")
    if report["calibration"]:
        drawings["reliability"] = lambda axes: _draw_reliability(axes, report["calibration"][0])
    if report["margins"]["bins"]:
        drawings["accuracy_by_margin"] = lambda axes: _draw_accuracy_by_margin(axes, report["margins"]["bins"])
    if report["comparisons"]:
        drawings["comparison"] = lambda axes: _draw_comparisons(axes, report)
    return save_figures(drawings, folder)


def save_figures(drawings: Mapping[str, Draw], folder: Path, wide: Collection[str] = ()) -> dict[str, bytes]:
    """Draw figures into a folder, those in `wide` of two panels, and remove all others; return their bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in {path.stem for path in folder.glob("*.png")} - set(drawings):
        (folder / f"{stale}.png").unlink()
    return {
        name: save_figure(folder / f"{name}.png", draw, _WIDE_INCHES if name in wide else 0)
        for name, draw in drawings.items()
    }


def save_figure(path: Path, draw: Draw, wide_inches: float = 0) -> bytes:
    """Save a figure in the style of all pages; `draw` gets its axes, of a wide one two in an array."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(wide_inches or _PANEL_INCHES[0], _PANEL_INCHES[1]), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.subplots(1, 1 + bool(wide_inches), sharey=True))
        with replace_atomically(path) as temporary:
            figure.savefig(temporary, format="png", dpi=_DPI, metadata={"Software": None})
    return path.read_bytes()


def plot_rewards(records: Records, path: Path) -> None:
    """Draw the rewards of both sides by subset, as densities and as boxes (Figure 4c and d of the paper)."""

    def draw(panels: Any) -> None:
        _draw_densities(panels[0], records)
        _draw_boxes(panels[1], records)
        panels[1].set_ylabel("")

    save_figure(path, draw, 2 * _PANEL_INCHES[0])


def _draw_densities(axes: Any, records: Records) -> None:
    present, values = _group_rewards(records)
    for side, half in zip(SIDES, ("low", "high"), strict=True):
        # A density needs two different values.
        drawn = {position: array for position, array in enumerate(values[side]) if len(np.unique(array)) > 1}
        if not drawn:
            continue
        options = {"widths": 0.8, "showextrema": False, "showmedians": True, "side": half}
        violins = axes.violinplot(list(drawn.values()), list(drawn), **options)
        for body in violins["bodies"]:
            body.set(**_SIDE_STYLES[side], edgecolor="black", alpha=0.8)
        violins["cmedians"].set(color="black", linewidth=2)
    _label_subsets(axes, present, "Density of rewards")


def _draw_boxes(axes: Any, records: Records) -> None:
    """Draw the rewards by subset as boxes: median, quartiles, whiskers at 5 and 95%."""
    present, values = _group_rewards(records)
    options = {"widths": 0.3, "whis": (5, 95), "showfliers": False, "patch_artist": True}
    for side, shift in zip(SIDES, (-0.2, 0.2), strict=True):
        boxes = axes.boxplot(values[side], positions=np.arange(len(present)) + shift, **options)
        for box in boxes["boxes"]:
            box.set(**_SIDE_STYLES[side], alpha=0.8)
        for median in boxes["medians"]:
            median.set(color="black", linewidth=2)
    _label_subsets(axes, present, "Quartiles of rewards, 5-95% range")


def _group_rewards(records: Records) -> tuple[list[str], dict[str, list[np.ndarray]]]:
    """Return the subsets with pairs, and the finite rewards of each side in each."""
    present = [name for name in SUBSET_LABELS if any(record["subset"] == name for record in records)]
    values: dict[str, list[np.ndarray]] = {}
    for side in SIDES:
        of_subset = ([record[side] for record in records if record["subset"] == name] for name in present)
        arrays = (np.array(found, dtype=np.float64) for found in of_subset)
        values[side] = [array[np.isfinite(array)] for array in arrays]
    return present, values


def _label_subsets(axes: Any, present: Sequence[str], title: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axes.set(title=title, ylabel="reward", xlim=(-0.6, len(present) - 0.4))
    axes.set_xticks(range(len(present)), [TITLES[name] for name in present])
    axes.grid(axis="x", visible=False)
    handles: list[Any] = [Patch(**style, edgecolor="black", label=side) for side, style in _SIDE_STYLES.items()]
    axes.legend(handles=[*handles, Line2D([], [], color="black", linewidth=2, label="median")], loc="best")


def _draw_accuracy(axes: Any, report: Mapping[str, Any]) -> None:
    """Draw Table 2: one row per column, one marker per scorer, bars for the intervals."""
    columns, scorers = report["columns"], report["scorers"]
    for number, scorer in enumerate(scorers):
        result = report["accuracies"][scorer["name"]]
        found = [(result[name], result["interval"][name]) for name in columns]
        positions = np.arange(len(columns)) + 0.7 * ((number + 0.5) / len(scorers) - 0.5)
        _draw_shares(axes, found, positions, number, shorten(scorer["title"]))
    titles = title_columns(columns)
    axes.set_yticks(range(len(columns)), [titles[name] for name in columns])
    axes.invert_yaxis()
    axes.axvline(50, color="black", linestyle=":", linewidth=1, label="chance")
    axes.set(title="Accuracy with 95% intervals", xlabel="percent")
    _add_legend(axes)


def _draw_comparisons(axes: Any, report: Mapping[str, Any]) -> None:
    titles = {scorer["name"]: shorten(scorer["title"]) for scorer in report["scorers"]}
    columns, names = (list(dict.fromkeys(row[key] for row in report["comparisons"])) for key in ("column", "scorer"))
    for number, column in enumerate(columns):
        rows = [row for row in report["comparisons"] if row["column"] == column]
        shift = 0.6 * ((number + 0.5) / len(columns) - 0.5)
        found = [(row["difference"], row["interval"]) for row in rows]
        _draw_shares(axes, found, [names.index(row["scorer"]) + shift for row in rows], number, TITLES[column])
    # Names above their rows: beside them they would leave no room for the axis.
    place = {"transform": axes.get_yaxis_transform(), "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
    for position, name in enumerate(names):
        axes.text(0.01, position - 0.36, f"minus {titles[name]}", fontweight="bold", **place)
    axes.set_yticks([])
    axes.set_ylim(len(names) - 0.6, -0.6)
    axes.axvline(0, color="black", linewidth=1)
    axes.set(title="Difference in accuracy, 95% interval", xlabel="percentage points")
    _add_legend(axes)


def _draw_shares(axes: Any, found: Sequence[tuple[Any, Any]], positions: Any, number: int, label: str) -> None:
    """Draw shares of 0-1 and their intervals in percent along the x axis; a missing value or interval is omitted."""
    shares = [math.nan if value is None else value for value, _ in found]
    errors = 100 * measure_errors(shares, [bounds for _, bounds in found])
    style = {"linestyle": "", "capsize": 3, "elinewidth": 1.2, **choose_marker_style(number)}
    axes.errorbar(100 * np.array(shares), positions, xerr=errors, **style, label=label)


def _draw_reliability(axes: Any, calibration: Mapping[str, Any]) -> None:
    axes.plot([0.5, 1], [0.5, 1], color="black", linestyle=":", label="perfect")
    for number, (name, when) in enumerate((("before", "as it is"), ("after", "with temperature"))):
        if found := calibration[name]:
            confidences = [row["confidence"] for row in found["bins"]]
            _draw_bins(axes, found["bins"], confidences, number, f"{when}: error {found['error']:.3f}")
    axes.set(title="Reliability in equal-mass bins", xlabel="confidence, sigmoid(|margin|)", ylabel="accuracy")
    axes.legend(loc="lower right")


def _draw_accuracy_by_margin(axes: Any, bins: Records) -> None:
    _draw_bins(axes, bins, [(row["low"] + row["high"]) / 2 for row in bins], 0, "bin, 95% interval")
    axes.axhline(0.5, color="black", linestyle=":", linewidth=1, label="chance")
    axes.set(title="Accuracy by margin", xlabel="|margin|, middle of the bin", ylabel="accuracy")
    axes.legend(loc="best")


def _draw_bins(axes: Any, bins: Records, x: Sequence[float], number: int, label: str) -> None:
    values = [row["accuracy"] for row in bins]
    errors = measure_errors(values, [row["interval"] for row in bins])
    # No lines: a few bins are not a trend.
    axes.errorbar(x, values, yerr=errors, linestyle="", capsize=3, **choose_marker_style(number), label=label)


def measure_errors(values: Sequence[float], intervals: Sequence[Sequence[float] | None]) -> np.ndarray:
    """Return the distances to the bounds, shape `(2, num_values)`; NaN, which is not drawn, without an interval."""
    bounds = np.array([interval or (math.nan, math.nan) for interval in intervals], dtype=np.float64).reshape(-1, 2)
    return np.maximum(0.0, (bounds.T - np.asarray(values)) * [[-1], [1]])


def _draw_training(axes: Any, runs: Records, value: str) -> None:
    """Draw the mean chosen reward, or the margin, of training runs over steps (Figures 4 and 8, a and b)."""
    for number, run in enumerate(runs):
        title, color = shorten(run["title"]), _COLORS[number % len(_COLORS)]
        validation = {"linestyle": "", "marker": _MARKERS[number % len(_MARKERS)], "label": f"{title}, validation"}
        train = {"linestyle": _LINES[number % len(_LINES)], "linewidth": 1.2, "label": title}
        for name, style in (("train", train), ("validation", validation)):
            if run[name]:
                steps, values = ([point[key] for point in run[name]] for key in ("step", value))
                axes.plot(steps, values, color=color, **style)
    axes.axhline(0, color="black", linewidth=1)
    title, label = {"chosen": ("(a) Mean reward of chosen", "reward"), "margin": ("(b) Mean margin", "margin")}[value]
    axes.set(title=title, xlabel="step", ylabel=label)
    axes.legend(loc="best", fontsize=9)


def choose_marker_style(number: int) -> dict[str, Any]:
    """Return the marker style of a series, by its number: series differ by form as well as by colour."""
    return {"color": _COLORS[number % len(_COLORS)], "marker": _MARKERS[number % len(_MARKERS)], "markersize": 5.5}


def _add_legend(axes: Any) -> None:
    axes.figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)


def shorten(title: str) -> str:
    """Return a title that fits in a legend: the end of a long one, where folders differ."""
    return title if len(title) <= _MAX_TITLE_CHARACTERS else f"...{title[3 - _MAX_TITLE_CHARACTERS :]}"
