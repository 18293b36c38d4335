"""Draw the page's figures, and `rewards.png` beside the results.

Sides, models and runs differ by hatch, marker or line style as well as by colour; every number drawn is in
`report.json`. The same numbers give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from sdiareward.common.files import replace_atomically
from sdiareward.pairs.schema import SIDES

from ..summary import SUBSET_LABELS, TITLES, list_columns


Records = Sequence[Mapping[str, Any]]
Draw = Callable[[Any], None]

# Large enough to be read where a phone shows the figure 360 pixels wide.
_PANEL_INCHES = (5.4, 4.0)
_WIDE_INCHES = 8.6
_DPI = 150
# Any: matplotlib's stubs have the settings of one version.
_STYLE: dict[Any, Any] = {
    **{"font.size": 11, "axes.titlesize": 12, "hatch.linewidth": 0.7, "legend.framealpha": 0.9, "grid.alpha": 0.3},
    **{"axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False},
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


def draw_figures(report: Mapping[str, Any], records: Records, folder: Path) -> dict[str, bytes]:
    """Draw every figure the report has numbers for, as PNG files named after it; return their bytes."""
    drawings: dict[str, tuple[Any, Draw]] = {
        "accuracy": (True, partial(_draw_accuracy, report)),
        "densities": (report["rewards"], partial(_draw_densities, records)),
        "boxes": (report["rewards"], partial(_draw_boxes, records)),
        "score_alignment": (report["training"], partial(_draw_training, report["training"], "chosen")),
        "margin_stability": (report["training"], partial(_draw_training, report["training"], "margin")),
        "reliability": (report["calibration"], partial(_draw_reliability, report["calibration"])),
        "accuracy_by_margin": (bins := report["margins"]["bins"], partial(_draw_accuracy_by_margin, bins)),
        "comparison": (report["comparisons"], partial(_draw_comparisons, report)),
    }
    return save_figures({name: draw for name, (numbers, draw) in drawings.items() if numbers}, folder)


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
        _draw_densities(records, panels[0])
        _draw_boxes(records, panels[1])
        panels[1].set_ylabel("")

    save_figure(path, draw, 2 * _PANEL_INCHES[0])


def _draw_densities(records: Records, axes: Any) -> None:
    options: dict[str, Any] = {"widths": 0.8, "showextrema": False, "showmedians": True}
    for side, half in zip(SIDES, ("low", "high"), strict=True):
        # A density needs two different values.
        groups = enumerate(_group_rewards(records, side, axes))
        drawn = {place: values for place, values in groups if len(np.unique(values)) > 1}
        if drawn:
            violins = axes.violinplot(list(drawn.values()), list(drawn), side=half, **options)
            for body in violins["bodies"]:
                body.set(**_SIDE_STYLES[side], edgecolor="black", alpha=0.8)
            violins["cmedians"].set(color="black", linewidth=2)
    axes.set(title="Density of rewards")


def _draw_boxes(records: Records, axes: Any) -> None:
    """Draw the rewards by subset as boxes: median, quartiles, whiskers at 5 and 95%."""
    options: dict[str, Any] = {"widths": 0.3, "whis": (5, 95), "showfliers": False, "patch_artist": True}
    options["medianprops"] = {"color": "black", "linewidth": 2}
    for side, shift in zip(SIDES, (-0.2, 0.2), strict=True):
        groups = _group_rewards(records, side, axes)
        style = {**_SIDE_STYLES[side], "alpha": 0.8}
        axes.boxplot(groups, positions=np.arange(len(groups)) + shift, boxprops=style, manage_ticks=False, **options)
    axes.set(title="Quartiles of rewards, 5-95% range")


def _group_rewards(records: Records, side: str, axes: Any) -> list[np.ndarray]:
    """Return the finite rewards of a side by subset, and label the axes with the subsets."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    groups: dict[str, list[Any]] = {name: [] for name in SUBSET_LABELS}
    for record in records:
        groups[record["subset"]].append(record[side])
    present = {TITLES[name]: np.array(values, dtype=np.float64) for name, values in groups.items() if values}
    axes.set(ylabel="reward", xlim=(-0.6, len(present) - 0.4))
    axes.set_xticks(range(len(present)), list(present))
    axes.grid(axis="x", visible=False)
    handles: list[Any] = [Patch(**style, edgecolor="black", label=name) for name, style in _SIDE_STYLES.items()]
    axes.legend(handles=[*handles, Line2D([], [], color="black", linewidth=2, label="median")], loc="best")
    return [values[np.isfinite(values)] for values in present.values()]


def _draw_accuracy(report: Mapping[str, Any], axes: Any) -> None:
    """Draw Table 2: one row per column, one marker per scorer, bars for the intervals."""
    columns = list_columns(report["accuracies"]["model"]["num_pairs"])
    series = {}
    for scorer in report["scorers"]:
        result = report["accuracies"][scorer["name"]]
        series[shorten(scorer["title"])] = [(result[name], result["interval"][name]) for name in columns]
    names = ["all"] if columns == ["overall_micro"] else [TITLES[name] for name in columns]
    _draw_rows(axes, names, series, 50)
    axes.set(title="Accuracy with 95% intervals", xlabel="percent")


def _draw_comparisons(report: Mapping[str, Any], axes: Any) -> None:
    titles = {scorer["name"]: shorten(scorer["title"]) for scorer in report["scorers"]}
    series: dict[str, list[tuple[Any, Any]]] = {}
    for row in report["comparisons"]:
        series.setdefault(TITLES[row["column"]], []).append((row["difference"], row["interval"]))
    names = dict.fromkeys(row["scorer"] for row in report["comparisons"])
    _draw_rows(axes, [f"minus {titles[name]}" for name in names], series, 0)
    axes.set(title="Difference in accuracy, 95% interval", xlabel="percentage points")


def _draw_rows(axes: Any, names: Sequence[str], series: Mapping[str, list[tuple[Any, Any]]], middle: float) -> None:
    """Draw rows of shares with their intervals in percent, a marker per series; a missing one is omitted."""
    for number, (label, found) in enumerate(series.items()):
        shares = np.array([value for value, _ in found], dtype=np.float64)
        errors = 100 * measure_errors(shares, [bounds for _, bounds in found])
        places = np.arange(len(names)) + 0.7 * ((number + 0.5) / len(series) - 0.5)
        style = {"linestyle": "", "capsize": 3, "elinewidth": 1.2, **choose_marker_style(number)}
        axes.errorbar(100 * shares, places, xerr=errors, **style, label=label)
    axes.set_yticks(range(len(names)), [fill(name, 18) for name in names])
    axes.invert_yaxis()
    axes.axvline(middle, color="black", linestyle=":", linewidth=1)
    axes.figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)


def _draw_reliability(calibration: Records, axes: Any) -> None:
    axes.plot([0.5, 1], [0.5, 1], color="black", linestyle=":", label="perfect")
    for number, (name, when) in enumerate((("before", "as it is"), ("after", "with temperature"))):
        if found := calibration[0][name]:
            confidences = [row["confidence"] for row in found["bins"]]
            _draw_bins(axes, found["bins"], confidences, number, f"{when}: error {found['error']:.3f}")
    axes.set(title="Reliability in equal-mass bins", xlabel="confidence, sigmoid(|margin|)", ylabel="accuracy")
    axes.legend(loc="lower right")


def _draw_accuracy_by_margin(bins: Records, axes: Any) -> None:
    _draw_bins(axes, bins, [(row["low"] + row["high"]) / 2 for row in bins], 0, "bin, 95% interval")
    axes.axhline(0.5, color="black", linestyle=":", linewidth=1, label="chance")
    axes.set(title="Accuracy by margin", xlabel="|margin|, middle of the bin", ylabel="accuracy")
    axes.legend(loc="best")


def _draw_bins(axes: Any, bins: Records, x: Sequence[float], number: int, label: str) -> None:
    values = [row["accuracy"] for row in bins]
    errors = measure_errors(values, [row["interval"] for row in bins])
    # No lines: a few bins are not a trend.
    axes.errorbar(x, values, yerr=errors, linestyle="", capsize=3, **choose_marker_style(number), label=label)


def measure_errors(values: Any, intervals: Sequence[Sequence[float] | None]) -> np.ndarray:
    """Return the distances to the bounds, shape `(2, num_values)`; NaN, which is not drawn, without an interval."""
    bounds = np.array([interval or (math.nan, math.nan) for interval in intervals], dtype=np.float64).reshape(-1, 2)
    return np.maximum(0.0, (bounds.T - np.asarray(values)) * [[-1], [1]])


def _draw_training(runs: Records, value: str, axes: Any) -> None:
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


def shorten(title: str) -> str:
    """Return a title that fits in a legend: the end of a long one, where folders differ."""
    return title if len(title) <= _MAX_TITLE_CHARACTERS else f"...{title[3 - _MAX_TITLE_CHARACTERS :]}"
