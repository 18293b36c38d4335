"""Draw the reward as a dialogue grows: lines that differ by dashes and marks, not by colour alone."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from .results import NAMES


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
_LINES: tuple[dict[str, Any], ...] = (
    {"color": "#0b4f8a", "linestyle": "-", "marker": "o"},
    {"color": "#a3470b", "linestyle": "--", "marker": "s"},
)


def draw_growth(growth: Sequence[Sequence[float]]) -> str:
    """Draw the reward of one dialogue or two after each turn.

    Marks are filled after a turn of the assistant and hollow after a turn of the user, since the model was trained on
    dialogues that end with an answer.

    Args:
        growth (`list[list[float]]`): Reward after each turn, per dialogue.

    Returns:
        `str`: An SVG as a data URI.
    """
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
    hollow = {**style, "linestyle": "none", "markerfacecolor": "white"}
    axes.plot(numbers[::2], rewards[::2], markersize=8, markeredgewidth=2, **hollow)
    offset = {"textcoords": "offset points", "xytext": (10, -4)}
    axes.annotate(name, (numbers[-1], rewards[-1]), fontweight="bold", color=style["color"], **offset)
