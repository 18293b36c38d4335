"""Draw the figures of an audit's page, each with a caption and a text alternative.

The same numbers give the same bytes, and every number is in `audit.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.evaluation.report.figures import LINES, PANEL_INCHES, choose_marker_style, figure_file, shorten
from sdiareward.perturbations.decoded_pairs import AuditPair
from sdiareward.perturbations.registry import PERTURBATIONS

from .checks import describe_worst
from .occlusion import draw as draw_dialogue
from .statistics import PLACES
from .summary import PLACE_TITLES, describe_perturbation
from .verdicts import Limit, find_limit, read_limits


Audit = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
_ROW_INCHES = 0.32
_LEGEND: dict[str, Any] = {"loc": "outside lower center", "ncols": 2, "fontsize": 9, "frameon": False}


@dataclass(frozen=True)
class AuditFigure:
    """One figure of the page.

    Args:
        caption (`str`): Text below the figure.
        alt (`str`): Message and numbers of the figure, for readers who do not see it.
        height_inches (`float`): Height of the figure.
        draw (`Callable`): Draws on a matplotlib figure; the second argument holds the decoded pairs by id.
    """

    caption: str
    alt: str
    height_inches: float
    draw: Callable[[Any, Mapping[str, AuditPair]], None]


def draw_figures(audit: Audit, pairs: Mapping[str, AuditPair], folder: Path) -> list[str]:
    """Draw every figure that the audit has numbers for, as PNG files named after it.

    Args:
        audit (`Mapping`): Content of `audit.json`.
        pairs (`Mapping[str, AuditPair]`): Pairs whose occlusion is drawn over their waveform, by id; the others are
            drawn without it.
        folder (`Path`): Folder of the files; created if it does not exist.

    Returns:
        `list[str]`: Names of the figures, without suffix, in the order of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = list_figures(audit)
    for name, described in figures.items():
        with figure_file(folder / f"{name}.png", (PANEL_INCHES[0], described.height_inches)) as figure:
            described.draw(figure, pairs)
    for stale in {path.stem for path in folder.glob("*.png")} - set(figures):
        (folder / f"{stale}.png").unlink()
    return list(figures)


def list_figures(audit: Audit) -> dict[str, AuditFigure]:
    """Return the figures that the audit has numbers for, by name, in the order of the page."""
    found: dict[str, AuditFigure] = {}
    if audit["nuisances"]:
        measured = [row for row in audit["nuisances"]["by_nuisance"] if row["flip_rate"] is not None]
        if measured:
            found["nuisances"] = _make_overview(measured)
        found |= {f"nuisance_{row['nuisance']}": _make_perturbation(audit, row) for row in measured}
    tried = [row for row in audit["attacks"] or () if row.get("paid") is not None]
    if tried:
        found["attacks"] = _make_attacks(tried)
    if audit["ties"] and audit["ties"].get("rows"):
        found["abstention"] = _make_abstention(audit["ties"]["rows"][0])
    for number, dialogue in enumerate(audit["occlusion"]["dialogues"] if audit["occlusion"] else ()):
        found[f"occlusion_{number}"] = _make_occlusion(dialogue)
    return found


def _format_percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _make_overview(rows: Rows) -> AuditFigure:
    flips = [f"{row['nuisance'].replace('_', ' ')}: {_format_percent(row['flip_rate'])} on average." for row in rows]
    return AuditFigure(
        "Pairs that flip under each perturbation: mean over severities and sides, and the worst of them.",
        " ".join(["Dot plot of flipped pairs.", *flips]),
        1.6 + _ROW_INCHES * len(rows),
        lambda figure, _: _draw_overview(figure, rows),
    )


def _draw_overview(figure: Any, rows: Rows) -> None:
    axes = figure.subplots()
    positions = range(len(rows))
    worst = [100 * row["worst"]["flip_rate"] for row in rows]
    mean = [100 * row["flip_rate"] for row in rows]
    axes.hlines(positions, mean, worst, color="0.6", linewidth=1.5)
    axes.plot(mean, positions, linestyle="", label="mean over severities and sides", **choose_marker_style(0))
    axes.plot(worst, positions, linestyle="", label="worst severity and side", **choose_marker_style(1))
    _draw_limit(axes, find_limit(f"nuisance.{rows[0]['nuisance']}", read_limits()))
    axes.set_yticks(positions, [row["nuisance"].replace("_", " ") for row in rows])
    axes.invert_yaxis()
    axes.set(title="Pairs that flip, by perturbation", xlabel="% of the pairs")
    axes.set_xlim(left=-1)
    figure.legend(**_LEGEND)


def _make_perturbation(audit: Audit, row: Mapping[str, Any]) -> AuditFigure:
    title, worst = describe_perturbation(row["nuisance"]), describe_worst(row["worst"])
    cells = [cell for cell in audit["nuisances"]["rows"] if cell["nuisance"] == row["nuisance"]]
    return AuditFigure(
        f"{title}: accuracy, and mean shift of the reward over the natural margin, by severity.",
        f"Lines by severity. {_format_percent(row['flip_rate'])} of the pairs flip on average, at worst "
        f"{': '.join(filter(None, [_format_percent(row['worst']['flip_rate']), worst]))}.",
        5.2,
        lambda figure, _: _draw_perturbation(figure, cells, audit["natural"]["all"]),
    )


def _draw_perturbation(figure: Any, rows: Rows, natural: Mapping[str, Any]) -> None:
    """Draw accuracy and mean shift of the reward against the severity of one perturbation, one line per place."""
    severities = sorted({row["severity"] for row in rows})
    scale = natural["natural_margin"] or np.nan
    accuracy, shift = figure.subplots(2, 1, sharex=True)
    for number, place in enumerate(PLACES):
        of_place = [row for row in rows if row["place"] == place and row["num_pairs"]]
        found = sorted(of_place, key=lambda row: float(row["severity"]))
        positions = [severities.index(row["severity"]) for row in found]
        style = {**choose_marker_style(number), "linestyle": LINES[number]}
        accuracy.plot(positions, [100 * row["accuracy"] for row in found], label=PLACE_TITLES[place], **style)
        shift.plot(positions, [row["mean_shift"] / scale for row in found], **style)
    accuracy.axhline(100 * natural["accuracy"], color="black", linestyle=":", linewidth=1.2, label="unchanged")
    perturbation = PERTURBATIONS[rows[0]["nuisance"]]
    accuracy.set(title=describe_perturbation(rows[0]["nuisance"]), ylabel="accuracy, %")
    shift.axhline(0, color="black", linestyle=":", linewidth=1.2)
    unit = perturbation.unit
    shift.set(ylabel="mean shift over\nnatural margin", xlabel=f"severity, {unit}" if unit else "")
    shift.set_xticks(range(len(severities)), [f"{severity:g}" if unit else "" for severity in severities])
    shift.set_xlim(-0.3, len(severities) - 0.7)
    figure.legend(**_LEGEND)


def _make_attacks(rows: Rows) -> AuditFigure:
    return AuditFigure(
        "How often each attack succeeds, with 95% intervals; hollow: sides that were ahead without it.",
        " ".join(["Dot plot.", *(f"{row['title']}: succeeds in {_format_percent(row['paid'])}." for row in rows)]),
        1.6 + 1.3 * _ROW_INCHES * len(rows),
        lambda figure, _: _draw_attacks(figure, rows),
    )


def _draw_attacks(figure: Any, rows: Rows) -> None:
    axes = figure.subplots()
    positions = range(len(rows))
    paid = 100 * np.array([row["paid"] for row in rows])
    bounds = 100 * np.array([row["interval"] for row in rows]).T
    errors = np.maximum(0.0, [paid - bounds[0], bounds[1] - paid])
    axes.errorbar(paid, positions, xerr=errors, linestyle="", capsize=3, label="succeeds", **choose_marker_style(0))
    before = [(100 * row["paid_before"], place) for place, row in enumerate(rows) if row["paid_before"] is not None]
    if before:
        style = {**choose_marker_style(1), "markerfacecolor": "white"}
        axes.plot(*zip(*before, strict=True), linestyle="", label="ahead without any attack", **style)
    _draw_limit(axes, find_limit(f"attack.{rows[0]['attack']}", read_limits()))
    axes.set_yticks(positions, [shorten(row["attack"].replace("_", " ")) for row in rows])
    axes.invert_yaxis()
    axes.set(title="Pairs in which an attack succeeds, 95% interval", xlabel="% of the pairs", xlim=(-3, 103))
    figure.legend(**_LEGEND)


def _draw_limit(axes: Any, limit: Limit) -> None:
    if limit.at_most is not None:
        axes.axvline(100 * limit.at_most, color="black", linestyle=":", linewidth=1.2, label="limit")


def _make_abstention(row: Mapping[str, Any]) -> AuditFigure:
    at_95 = row["at_95"]
    return AuditFigure(
        "Cost of abstaining below a margin: pairs still decided, accuracy on them, codec copies undecided.",
        "Lines over the threshold. Where 95% of the codec copies are left undecided, at "
        f"{at_95['threshold']:.3g}, {_format_percent(at_95['coverage'])} of the pairs are still decided.",
        3.6,
        lambda figure, _: _draw_abstention(figure, row["curve"]),
    )


def _draw_abstention(figure: Any, curve: Rows) -> None:
    axes = figure.subplots()
    # The first point has no threshold.
    points = [point for point in curve if point["threshold"] is not None]
    thresholds = [point["threshold"] for point in points]
    series = {
        "pairs still decided": "coverage",
        "accuracy on these": "accuracy",
        "codec copies undecided": "abstained_twins",
    }
    for number, (title, name) in enumerate(series.items()):
        values = [np.nan if point[name] is None else 100 * point[name] for point in points]
        axes.plot(thresholds, values, label=title, linestyle=LINES[number], **choose_marker_style(number))
    axes.set_xscale("symlog", linthresh=max(min((t for t in thresholds if t), default=1.0), 1e-6))
    axes.set(title="Abstaining below a margin", xlabel="threshold on |margin|", ylabel="%", ylim=(-3, 103))
    figure.legend(**_LEGEND)


def _make_occlusion(dialogue: dict[str, Any]) -> AuditFigure:
    sizes = [abs(turn["audio"]["contribution"]) for turn in dialogue["turns"]]
    largest = sizes.index(max(sizes)) + 1
    side = f"{dialogue['side'].capitalize()} side of pair {dialogue['pair_id']}"
    return AuditFigure(
        f"{side}: bars are the contributions of segments of sound, triangles those of the words of a turn.",
        f"{side}, reward {dialogue['reward']:+.2f}. The sound of turn {largest} of {len(sizes)} contributes most.",
        PANEL_INCHES[1],
        partial(_draw_occlusion, dialogue),
    )


def _draw_occlusion(dialogue: dict[str, Any], figure: Any, pairs: Mapping[str, AuditPair]) -> None:
    pair = pairs.get(dialogue["pair_id"])
    draw_dialogue(figure.subplots(), dialogue, None if pair is None else getattr(pair, dialogue["side"]))
