"""The figures of an ablation, readable without colour: curves differ in line and marker too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


Rows = Sequence[Mapping[str, Any]]
_STYLES = ({"linestyle": "-", "marker": "o"}, {"linestyle": "--", "marker": "s"}, {"linestyle": ":", "marker": "^"})
_COLORS = ("#0072b2", "#d55e00", "#009e73")


def draw_figures(result: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw the curves of a result: drift in training, the lambda sweep, the layer sweep.

    Args:
        result (`Mapping`): Result of `benchmarks.ablations`.
        path (`Path`): Path of the result; `_drift.png`, `_lambda.png` and `_layers.png` take the place of its suffix.

    Returns:
        `list[Path]`: The figures.
    """
    drawn = []
    figures = {"drift": (result["drift"], _draw_drift), **_sweeps(result["rows"])}
    for name, (rows, draw) in figures.items():
        if rows:
            drawn.append(path.with_name(f"{path.stem}_{name}.png"))
            _save(draw(rows), drawn[-1])
    return drawn


def _sweeps(rows: Mapping[str, Rows]) -> dict[str, Any]:
    return {"lambda": (rows.get("lambda"), _draw_lambda), "layers": (rows.get("layers"), _draw_layers)}


def _figure(num_rows: int, num_columns: int) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * num_columns, 3.4 * num_rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def _save(figure: Any, path: Path) -> None:
    unfinished = path.with_name(f".{path.name}.tmp")
    figure.savefig(unfinished, format="png", dpi=120, metadata={"Software": None})
    unfinished.replace(path)


def _draw_drift(curves: Rows) -> Any:
    """Draw Figure 4a and 4b: one row of panels per backbone, one curve with and one without centering."""
    backbones = list(dict.fromkeys(curve["backbone"] for curve in curves))
    figure, panels = _figure(len(backbones), 2)
    for row, backbone in zip(panels, backbones, strict=True):
        own = [curve for curve in curves if curve["backbone"] == backbone]
        for axes, name, label in ((row[0], "chosen", "mean chosen reward"), (row[1], "margin", "mean margin")):
            for number, curve in enumerate(own):
                band, color = curve[name], _COLORS[number]
                axes.plot(curve["step"], band["mean"], color=color, label=_name_centering(curve), **_STYLES[number])
                axes.fill_between(curve["step"], band["least"], band["most"], color=color, alpha=0.2)
            axes.set(title=f"{backbone}", xlabel="step", ylabel=label)
            axes.axhline(0, color="black", linewidth=0.5)
            axes.grid(alpha=0.3)
            axes.legend()
    return figure


def _name_centering(row: Mapping[str, Any]) -> str:
    return f"lambda {row['lambda']:g}" if row["lambda"] else "no centering"


def _draw_lambda(rows: Rows) -> Any:
    values = sorted({row["lambda"] for row in rows})
    figure, ((accuracy, chosen, margin),) = _figure(1, 3)
    _draw_by_backbone(accuracy, rows, lambda row: values.index(row["lambda"]), _overall, "overall micro, %")
    for axes, name, label in ((chosen, "chosen", "mean chosen reward"), (margin, "margin", "mean margin")):
        _draw_by_backbone(axes, rows, lambda row: values.index(row["lambda"]), _plain(name), label)
    for axes in (accuracy, chosen, margin):
        axes.set(xlabel="lambda")
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    return figure


def _draw_layers(rows: Rows) -> Any:
    layers = list(dict.fromkeys(row["features"] for row in rows))
    figure, ((axes,),) = _figure(1, 1)
    _draw_by_backbone(axes, rows, lambda row: layers.index(row["features"]), _overall, "overall micro, %")
    axes.set(xlabel="mean of text layer")
    axes.set_xticks(range(len(layers)), ["last" if name == "mean" else name.removeprefix("layer_") for name in layers])
    return figure


def _draw_by_backbone(axes: Any, rows: Rows, place: Any, value: Any, label: str) -> None:
    for number, backbone in enumerate(dict.fromkeys(row["backbone"] for row in rows)):
        own = [row for row in rows if row["backbone"] == backbone]
        means, halves = zip(*map(value, own), strict=True)
        places = list(map(place, own))
        axes.errorbar(places, means, halves, color=_COLORS[number], capsize=3, label=backbone, **_STYLES[number])
    axes.set(ylabel=label)
    axes.grid(alpha=0.3)
    axes.legend()


def _overall(row: Mapping[str, Any]) -> tuple[float, float]:
    found = row["accuracy"]["overall_micro"]
    return 100 * found["mean"], 100 * (found["half_width"] or 0.0)


def _plain(name: str) -> Any:
    return lambda row: (row[name]["mean"], row[name]["half_width"] or 0.0)
