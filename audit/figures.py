"""Draw the figures of an audit's page; the same numbers give the same bytes, and every number is in `audit.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.evaluation.report.figures import LINES, PANEL_INCHES, figure_file, marker_style, shorten
from sdiareward.perturbations.decoded_pairs import AuditPair
from sdiareward.perturbations.registry import PERTURBATIONS

from .occlusion import draw as draw_occlusion
from .statistics import PLACES
from .summary import PLACE_TITLES
from .verdicts import Limit, limit_of, read_limits


Audit = Mapping[str, Any]
_ROW_INCHES = 0.32


def draw_figures(audit: Audit, pairs: Mapping[str, AuditPair], folder: Path) -> list[str]:
    """Draw every figure that the audit has numbers for, as PNG files named after it.

    Args:
        audit (`Mapping`): What `auditing.Auditor.audit` gives.
        pairs (`Mapping[str, AuditPair]`): By id, the pairs whose occlusion is drawn.
        folder (`Path`): Where the files go; it is made.

    Returns:
        `list[str]`: Names of the figures, without suffix, in the order of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawings = _drawings(audit, pairs)
    for name, (draw, height_inches) in drawings.items():
        with figure_file(folder / f"{name}.png", (PANEL_INCHES[0], height_inches)) as figure:
            draw(figure)
    for stale in {path.stem for path in folder.glob("*.png")} - set(drawings):
        (folder / f"{stale}.png").unlink()
    return list(drawings)


def _drawings(audit: Audit, pairs: Mapping[str, AuditPair]) -> dict[str, tuple[Callable[[Any], None], float]]:
    """Return by name what draws each figure, and its height in inches."""
    found: dict[str, tuple[Callable[[Any], None], float]] = {}
    if audit["nuisances"]:
        measured = [row for row in audit["nuisances"]["by_nuisance"] if row["flip_rate"] is not None]
        if measured:
            found["nuisances"] = (lambda figure: draw_overview(figure, measured), 1.6 + _ROW_INCHES * len(measured))
        for row in measured:
            rows = [cell for cell in audit["nuisances"]["rows"] if cell["nuisance"] == row["nuisance"]]
            found[f"nuisance_{row['nuisance']}"] = (_perturbation(audit, rows), 5.2)
    tried = [row for row in audit["attacks"] or () if row.get("paid") is not None]
    if tried:
        found["attacks"] = (lambda figure: draw_attacks(figure, tried), 1.6 + 1.3 * _ROW_INCHES * len(tried))
    if audit["ties"] and audit["ties"].get("rows"):
        found["abstention"] = (lambda figure: draw_abstention(figure, audit["ties"]["rows"][0]["curve"]), 3.6)
    for number, dialogue in enumerate(audit["occlusion"]["dialogues"] if audit["occlusion"] else ()):
        if dialogue["pair_id"] in pairs:
            found[f"occlusion_{number}"] = (_occlusion(dialogue, pairs[dialogue["pair_id"]]), PANEL_INCHES[1])
    return found


def _perturbation(audit: Audit, rows: Sequence[Mapping[str, Any]]) -> Callable[[Any], None]:
    return lambda figure: draw_perturbation(figure, rows, audit["natural"]["all"])


def _occlusion(dialogue: dict[str, Any], pair: AuditPair) -> Callable[[Any], None]:
    return lambda figure: draw_occlusion(figure.subplots(), dialogue, getattr(pair, dialogue["side"]))


def draw_perturbation(figure: Any, rows: Sequence[Mapping[str, Any]], natural: Mapping[str, Any]) -> None:
    """Draw accuracy and mean shift of the reward against the severity of one perturbation, one line per place.

    Args:
        figure (`matplotlib.figure.Figure`): What to draw on.
        rows (`Sequence[Mapping]`): Of `statistics.measure_perturbations`, those of the perturbation.
        natural (`Mapping`): Of `statistics.describe_natural`, over all pairs.
    """
    severities = sorted({row["severity"] for row in rows})
    accuracy, shift = figure.subplots(2, 1, sharex=True)
    for number, place in enumerate(PLACES):
        found = sorted((row for row in rows if row["place"] == place and row["num_pairs"]), key=_severity)
        positions = [severities.index(row["severity"]) for row in found]
        style = {**marker_style(number), "linestyle": LINES[number]}
        accuracy.plot(positions, [100 * row["accuracy"] for row in found], label=PLACE_TITLES[place], **style)
        shift.plot(positions, [_ratio(row["mean_shift"], natural["natural_margin"]) for row in found], **style)
    accuracy.axhline(100 * natural["accuracy"], color="black", linestyle=":", linewidth=1.2, label="unchanged")
    perturbation = PERTURBATIONS[rows[0]["nuisance"]]
    accuracy.set(title=perturbation.title.format("…"), ylabel="accuracy, %")
    shift.axhline(0, color="black", linestyle=":", linewidth=1.2)
    shift.set(
        ylabel="mean shift over\nnatural margin", xlabel=f"severity, {perturbation.unit}" if perturbation.unit else ""
    )
    shift.set_xticks(range(len(severities)), [f"{severity:g}" if perturbation.unit else "" for severity in severities])
    shift.set_xlim(-0.3, len(severities) - 0.7)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)


def _severity(row: Mapping[str, Any]) -> float:
    return float(row["severity"])


def _ratio(value: float, scale: float) -> float:
    return value / scale if scale else np.nan


def draw_overview(figure: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw how many pairs flip under each perturbation, on average and at worst.

    Args:
        figure (`matplotlib.figure.Figure`): What to draw on.
        rows (`Sequence[Mapping]`): `by_nuisance` of `statistics.measure_perturbations`.
    """
    axes = figure.subplots()
    positions = range(len(rows))
    worst = [100 * row["worst"]["flip_rate"] for row in rows]
    mean = [100 * row["flip_rate"] for row in rows]
    axes.hlines(positions, mean, worst, color="0.6", linewidth=1.5)
    axes.plot(mean, positions, linestyle="", label="mean over severities and sides", **marker_style(0))
    axes.plot(worst, positions, linestyle="", label="worst severity and side", **marker_style(1))
    _draw_limit(axes, limit_of(f"nuisance.{rows[0]['nuisance']}", read_limits()))
    axes.set_yticks(positions, [row["nuisance"].replace("_", " ") for row in rows])
    axes.invert_yaxis()
    axes.set(title="Pairs that flip, by perturbation", xlabel="% of the pairs")
    axes.set_xlim(left=-1)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)


def draw_attacks(figure: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw how often each attack pays, with its interval.

    Args:
        figure (`matplotlib.figure.Figure`): What to draw on.
        rows (`Sequence[Mapping]`): Of `statistics.measure_attacks`, those that could have paid.
    """
    axes = figure.subplots()
    positions = range(len(rows))
    paid = 100 * np.array([row["paid"] for row in rows])
    bounds = 100 * np.array([row["interval"] for row in rows]).T
    errors = np.maximum(0.0, [paid - bounds[0], bounds[1] - paid])
    axes.errorbar(paid, positions, xerr=errors, linestyle="", capsize=3, label="pays", **marker_style(0))
    before = [(100 * row["paid_before"], place) for place, row in enumerate(rows) if row["paid_before"] is not None]
    if before:
        style = {**marker_style(1), "markerfacecolor": "white"}
        axes.plot(*zip(*before, strict=True), linestyle="", label="ahead without any attack", **style)
    _draw_limit(axes, limit_of(f"attack.{rows[0]['attack']}", read_limits()))
    axes.set_yticks(positions, [shorten(row["attack"].replace("_", " ")) for row in rows])
    axes.invert_yaxis()
    axes.set(title="Pairs in which an attack pays, 95% interval", xlabel="% of the pairs", xlim=(-3, 103))
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)


def _draw_limit(axes: Any, limit: Limit) -> None:
    if limit.at_most is not None:
        axes.axvline(100 * limit.at_most, color="black", linestyle=":", linewidth=1.2, label="limit")


def draw_abstention(figure: Any, curve: Sequence[Mapping[str, Any]]) -> None:
    """Draw the effect of abstaining below a margin: pairs still decided, accuracy on them, codec copies undecided.

    Args:
        figure (`matplotlib.figure.Figure`): What to draw on.
        curve (`Sequence[Mapping]`): Of `ties.describe_ties`, for rising thresholds; the first point has none.
    """
    axes = figure.subplots()
    points = [point for point in curve if point["threshold"] is not None]
    thresholds = [point["threshold"] for point in points]
    series = {
        "pairs still decided": "coverage",
        "accuracy on these": "accuracy",
        "twins left undecided": "abstained_twins",
    }
    for number, (title, name) in enumerate(series.items()):
        values = [np.nan if point[name] is None else 100 * point[name] for point in points]
        axes.plot(thresholds, values, label=title, linestyle=LINES[number], **marker_style(number))
    axes.set_xscale("symlog", linthresh=max(min((t for t in thresholds if t), default=1.0), 1e-6))
    axes.set(title="Abstaining below a margin", xlabel="threshold on |margin|", ylabel="%", ylim=(-3, 103))
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
