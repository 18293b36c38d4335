"""Draw the figures of pages as SVG in the colours of the page, light or dark, and `rewards.png` beside the results.

Sides, models and runs differ by hatch, marker or line style as well as by colour. Equal numbers give equal bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
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

# Beside the results, and on the card of a model.
FIGURE = "rewards.png"
# Large enough to be read where a phone shows the figure 360 pixels wide.
_INCHES = (5.4, 3.4)
_DPI = 150
# Text and lines; in SVG the text colour of the reader's scheme.
INK = "#01020a"
_SCHEME = ":root{color-scheme:light dark;color:light-dark(#1a1f26,#e8edf2)}"
# Any: matplotlib's stubs have the settings of one version.
_STYLE: dict[Any, Any] = {
    **{"font.size": 11, "axes.titlesize": 12, "hatch.linewidth": 0.7, "legend.framealpha": 0.0, "grid.alpha": 0.3},
    **{"axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False},
    **{"text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK},
    # Text stays text; identifiers do not change from run to run.
    **{"svg.fonttype": "none", "svg.hashsalt": "sdiareward"},
    # A name with dollar signs is not a formula.
    "text.parse_math": False,
}
SIDE_COLORS = ("#56b4e9", "#e69f00")
_SIDE_STYLES: dict[str, dict[str, Any]] = {
    side: {"facecolor": color, "hatch": hatch}
    for side, color, hatch in zip(SIDES, SIDE_COLORS, ("///", "..."), strict=True)
}
# Okabe and Ito's colours, which differ in lightness too.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", INK, "#e69f00")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":")
_MAX_TITLE_CHARACTERS = 34


def draw_figures(report: Mapping[str, Any], records: Records, folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Draw the named figures that the report has numbers for; return their SVG files."""
    training, columns = report["training"], list_columns(report["accuracies"]["model"]["num_pairs"])
    drawings: dict[str, tuple[Any, Draw]] = {
        # A figure of one point shows nothing.
        "accuracy": (len(columns) > 1, partial(_draw_accuracy, report, columns)),
        "rewards": (report["margins"], partial(_draw_rewards, records)),
        "reliability": (report["calibration"], partial(_draw_reliability, report["calibration"])),
        "accuracy_by_margin": (len(report["margins"]) > 1, partial(_draw_accuracy_by_margin, report["margins"])),
        "score_alignment": (training, partial(_draw_training, training, "chosen")),
        "margin_stability": (training, partial(_draw_training, training, "margin")),
    }
    return save_figures({name: drawings[name][1] for name in names if drawings[name][0]}, folder)


def save_figures(drawings: Mapping[str, Draw], folder: Path) -> dict[str, bytes]:
    """Draw figures as SVG files into a folder and remove all others; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.svg"):
        stale.unlink()
    return {name: save_figure(folder / f"{name}.svg", draw) for name, draw in drawings.items()}


def save_figure(path: Path, draw: Draw) -> bytes:
    """Save a figure in the style of all pages, as PNG or SVG; `draw` gets its axes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    is_svg, buffer = path.suffix == ".svg", io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.subplots())
        metadata = {"Date": None, "Creator": None} if is_svg else {"Software": None}
        figure.savefig(buffer, format=path.suffix[1:], dpi=_DPI, transparent=is_svg, metadata=metadata)
    content = buffer.getvalue()
    if is_svg:
        text = content.decode().replace(INK, "currentColor").replace("*{stroke-", f"{_SCHEME}*{{stroke-", 1)
        content = text.encode()
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content)
    return content


def plot_rewards(records: Records, path: Path) -> None:
    """Draw the rewards of both sides by subset as densities (Figure 4c of the paper)."""
    save_figure(path, partial(_draw_rewards, records))


def _draw_rewards(records: Records, axes: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    options: dict[str, Any] = {"widths": 0.8, "showextrema": False, "showmedians": True}
    for side, half in zip(SIDES, ("low", "high"), strict=True):
        # A density needs two different values.
        groups = enumerate(_group_rewards(records, side, axes))
        drawn = {place: values for place, values in groups if len(np.unique(values)) > 1}
        if drawn:
            violins = axes.violinplot(list(drawn.values()), list(drawn), side=half, **options)
            for body in violins["bodies"]:
                body.set(**_SIDE_STYLES[side], edgecolor=INK, alpha=0.8)
            violins["cmedians"].set(color=INK, linewidth=2)
    handles: list[Any] = [Patch(**style, edgecolor=INK, label=name) for name, style in _SIDE_STYLES.items()]
    handles.append(Line2D([], [], color=INK, linewidth=2, label="median"))
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    axes.set(title="Rewards of both sides")


def _group_rewards(records: Records, side: str, axes: Any) -> list[np.ndarray]:
    """Return the finite rewards of a side by subset, and label the axes with the subsets."""
    groups: dict[str, list[Any]] = {name: [] for name in SUBSET_LABELS}
    for record in records:
        groups[record["subset"]].append(record[side])
    present = {TITLES[name]: np.array(values, dtype=np.float64) for name, values in groups.items() if values}
    axes.set(ylabel="reward", xlim=(-0.6, len(present) - 0.4))
    axes.set_xticks(range(len(present)), list(present))
    axes.grid(axis="x", visible=False)
    return [values[np.isfinite(values)] for values in present.values()]


def _draw_accuracy(report: Mapping[str, Any], columns: Sequence[str], axes: Any) -> None:
    """Draw Table 2: one row per column, one marker per scorer, bars for the intervals; no marker if all pairs tie."""
    for number, scorer in enumerate(report["scorers"]):
        result = report["accuracies"][scorer["name"]]
        shown = [name for name in columns if result["num_ties"][name] < result["num_pairs"][name]]
        shares = np.array([result[name] for name in shown], dtype=np.float64)
        errors = 100 * measure_errors(shares, [result["interval"][name] for name in shown])
        shift = 0.7 * ((number + 0.5) / len(report["scorers"]) - 0.5)
        places = [columns.index(name) + shift for name in shown]
        style = {"linestyle": "", "capsize": 3, "elinewidth": 1.2, **choose_marker_style(number)}
        axes.errorbar(100 * shares, places, xerr=errors, **style, label=shorten(scorer["title"]))
    axes.set_yticks(range(len(columns)), [fill(TITLES[name], 18) for name in columns])
    axes.invert_yaxis()
    axes.axvline(50, color=INK, linestyle=":", linewidth=1)
    axes.figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    axes.set(title="Accuracy with 95% intervals", xlabel="percent")


def _draw_reliability(calibration: Records, axes: Any) -> None:
    axes.plot([0.5, 1], [0.5, 1], color=INK, linestyle=":", label="perfect")
    for number, (name, when) in enumerate((("before", "as it is"), ("after", "with temperature"))):
        if found := calibration[0][name]:
            confidences = [row["mean"] for row in found["bins"]]
            _draw_bins(axes, found["bins"], confidences, number, f"{when}: error {found['error']:.3f}")
    axes.set(title="Reliability in equal-mass bins", xlabel="confidence, sigmoid(|margin|)", ylabel="accuracy")
    axes.legend(loc="lower right")


def _draw_accuracy_by_margin(bins: Records, axes: Any) -> None:
    _draw_bins(axes, bins, [(row["low"] + row["high"]) / 2 for row in bins], 0, "bin, 95% interval")
    axes.axhline(0.5, color=INK, linestyle=":", linewidth=1, label="chance")
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
    axes.axhline(0, color=INK, linewidth=1)
    title, label = {"chosen": ("(a) Mean reward of chosen", "reward"), "margin": ("(b) Mean margin", "margin")}[value]
    axes.set(title=title, xlabel="step", ylabel=label)
    axes.legend(loc="best", fontsize=9)


def choose_marker_style(number: int) -> dict[str, Any]:
    """Return the marker style of a series, by its number: series differ by form as well as by colour."""
    return {"color": _COLORS[number % len(_COLORS)], "marker": _MARKERS[number % len(_MARKERS)], "markersize": 5.5}


def shorten(title: str) -> str:
    """Return a title that fits in a legend: the end of a long one, where folders differ."""
    return title if len(title) <= _MAX_TITLE_CHARACTERS else f"...{title[3 - _MAX_TITLE_CHARACTERS :]}"
