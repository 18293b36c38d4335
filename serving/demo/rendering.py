"""Render turns and results as HTML; the templates escape all input."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from sdiareward.common.html import make_html_environment
from sdiareward.common.package_files import DEMO
from sdiareward.scoring.calibration import sigmoid

from .results import NAMES, Result
from .shortcut_checks import BOTH, FIRST, SECOND, write_verdict
from .turns import RecordedTurn, find_role


if TYPE_CHECKING:
    import jinja2

_MINUS = "\N{MINUS SIGN}"
# Readable on a phone that shows the figure 360 pixels wide.
_INCHES = (5.4, 3.4)
_STYLE: dict[Any, Any] = {
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    # The same numbers give the same file.
    "svg.hashsalt": "growth",
}
_KINDS = {
    "wild": "recorded outside of a studio (wild)",
    "semi_wild": "acted or half spontaneous (semi-wild)",
    "scripted": "read from a script (scripted)",
    "colloquialness": "spoken against written wording",
}
# Lines differ by dashes and marks, not by colour alone.
_LINES: tuple[dict[str, Any], ...] = (
    {"color": "#0b4f8a", "linestyle": "-", "marker": "o"},
    {"color": "#a3470b", "linestyle": "--", "marker": "s"},
)


def render_panel(name: str, turns: Sequence[RecordedTurn], message: str = "") -> str:
    shown = [
        {
            "role": find_role(index),
            "duration_s": turn.duration_s,
            "uri": f"data:audio/flac;base64,{base64.b64encode(turn.flac).decode()}",
        }
        for index, turn in enumerate(turns)
    ]
    return _render("panel.html", name=name, turns=shown, message=message, next_role=find_role(len(turns)))


def render_verdict(found: Result) -> str:
    chances = [_format_percent(share) for share in sorted(found.probabilities.values())]
    ends = list(dict.fromkeys([chances[0], chances[-1]])) if chances else []
    return _render("verdict.html", message="", found=found, names=NAMES, chances=ends)


def render_details(found: Result) -> str:
    return _render(
        "details.html",
        found=found,
        kinds=_KINDS,
        names=NAMES,
        roles=(find_role(0), find_role(1)),
        trained_probability=None if found.margin is None else sigmoid(found.margin),
        plot=draw_growth(found.growth),
        steps=list(zip_longest(*found.growth)),
        places=(BOTH, FIRST, SECOND),
        verdict=write_verdict(found.rewards, found.checks) if found.checks else "",
    )


def render_error(message: str) -> str:
    return _render("verdict.html", message=message)


def draw_growth(growth: Sequence[Sequence[float]]) -> str:
    """Draw the reward after each turn, one line per dialogue, and return an SVG as a data URI."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        for name, rewards, style in zip(NAMES, growth, _LINES, strict=False):
            _draw_line(axes, name, rewards, style)
        axes.set(xlabel="turns so far", ylabel="reward")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(x=0.1, y=0.15)
        axes.legend(loc="best", handlelength=3)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _draw_line(axes: Any, name: str, rewards: Sequence[float], style: dict[str, Any]) -> None:
    numbers = range(1, len(rewards) + 1)
    axes.plot(numbers, rewards, label=f"Dialogue {name}", linewidth=2, markersize=8, **style)
    # Hollow after a turn of the user: the model was trained on dialogues that end with an answer.
    hollow = {**style, "linestyle": "none", "markerfacecolor": "white"}
    axes.plot(numbers[::2], rewards[::2], markersize=8, markeredgewidth=2, **hollow)
    offset = {"textcoords": "offset points", "xytext": (10, -4)}
    axes.annotate(name, (numbers[-1], rewards[-1]), fontweight="bold", color=style["color"], **offset)


def _render(template: str, **values: Any) -> str:
    return _make_environment().get_template(template).render(**values)


@cache
def _make_environment() -> jinja2.Environment:
    environment = make_html_environment(DEMO)
    environment.filters |= {"signed": _format_signed, "with_minus": _with_minus, "percent": _format_percent}
    return environment


def _format_signed(value: float) -> str:
    return _with_minus(f"{value:+.2f}")


def _format_percent(share: float) -> str:
    # No estimate is shown as certain.
    if share < 0.005:
        return "<1%"
    return ">99%" if share > 0.995 else f"{100 * share:.0f}%"


def _with_minus(text: str) -> str:
    """Return text whose negative numbers have a minus sign instead of a hyphen."""
    return re.sub(r"(?<![\w.])-(?=\d)", _MINUS, text)
