"""Render the results and the turns as HTML; the templates escape everything that came from outside."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from sdiareward.common.html import html_environment
from sdiareward.common.package_files import DEMO
from sdiareward.scoring.calibration import sigmoid

from .growth_plot import draw_growth
from .results import NAMES, Result
from .shortcut_checks import BOTH, FIRST, SECOND, write_verdict
from .turns import RecordedTurn, role_of


if TYPE_CHECKING:
    import jinja2

_MINUS = "\N{MINUS SIGN}"


def render_panel(name: str, turns: Sequence[RecordedTurn], message: str = "") -> str:
    """Return the turns of a dialogue, each with a player.

    Args:
        name (`str`): `"A"` or `"B"`.
        turns (`tuple[RecordedTurn, ...]`): Its turns.
        message (`str`, *optional*): Why the last upload or recording was rejected.
    """
    shown = [
        {
            "role": role_of(index),
            "duration_s": turn.duration_s,
            "uri": f"data:audio/flac;base64,{base64.b64encode(turn.flac).decode()}",
        }
        for index, turn in enumerate(turns)
    ]
    return _render("panel.html", name=name, turns=shown, message=message, next_role=role_of(len(turns)))


def render_result(found: Result) -> str:
    """Return the results as headings, tables and a figure."""
    return _render(
        "result.html",
        message="",
        found=found,
        names=NAMES,
        roles=(role_of(0), role_of(1)),
        trained_probability=None if found.margin is None else sigmoid(found.margin),
        plot=draw_growth(found.growth),
        steps=list(zip_longest(*found.growth)),
        places=(BOTH, FIRST, SECOND),
        verdict=write_verdict(found.rewards, found.checks) if found.checks else "",
    )


def render_error(message: str) -> str:
    """Return why nothing was scored."""
    return _render("result.html", message=message)


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> jinja2.Environment:
    environment = html_environment(DEMO)
    environment.filters |= {"signed": _signed, "with_minus": _with_minus, "percent": _percent}
    return environment


def _signed(value: float) -> str:
    return _with_minus(f"{value:+.2f}")


def _percent(share: float) -> str:
    # No estimate is shown as certain.
    if share < 0.005:
        return "<1%"
    return ">99%" if share > 0.995 else f"{100 * share:.0f}%"


def _with_minus(text: str) -> str:
    """Return text whose negative numbers have a minus sign instead of a hyphen."""
    return re.sub(r"(?<![\w.])-(?=\d)", _MINUS, text)
