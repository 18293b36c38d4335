"""Pieces of pages: embedded pictures, numbers in words, and what a page may run.

`parts.html` has the templates' side of it, `page.css` the look.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..summary import phrase_interval


if TYPE_CHECKING:
    from markupsafe import Markup

_MINUS = "−"
_NO_BREAK = "\N{NO-BREAK SPACE}"
_ABSENT = "n/a"


def make_picture(data: bytes) -> dict[str, Any]:
    """Return a PNG's data URI, and the width and height in its header."""
    width, height = struct.unpack(">II", data[16:24])
    return {"uri": f"data:image/png;base64,{base64.b64encode(data).decode()}", "width": width, "height": height}


def hash_content(text: str) -> str:
    """Return the hash by which a content security policy allows a style or a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def format_percent(value: float | None) -> str:
    return _ABSENT if value is None else f"{100 * value:.2f}"


def format_interval(bounds: Sequence[float] | None) -> str:
    return "no interval" if bounds is None else f"{100 * bounds[0]:.1f}–{100 * bounds[1]:.1f}"


def format_number(value: float | None, digits: int = 2) -> str:
    return _ABSENT if value is None else f"{value:.{digits}f}".replace("-", _MINUS)


def format_signed(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:+.2f}".replace("-", _MINUS)


def format_points(value: float | None) -> str:
    return _ABSENT if value is None else f"{100 * value:+.1f}".replace("-", _MINUS)


def format_range(low: float, high: float, digits: int = 2) -> str:
    return f"{format_number(low, digits)} to {format_number(high, digits)}"


def make_breakable(text: str) -> Markup:
    """Let a long name break where its parts end."""
    from markupsafe import Markup

    return Markup("<wbr>").join(re.split(r"(?<=[/_-])", text))


def format_p_value(value: float) -> str:
    return f"<{_NO_BREAK}0.001" if value < 0.001 else f"{value:.3f}"


# By the names that templates use.
FILTERS = {
    "percent": format_percent,
    "interval": format_interval,
    "phrase_interval": phrase_interval,
    "number": format_number,
    "signed": format_signed,
    "points": format_points,
    "p_value": format_p_value,
    "breakable": make_breakable,
}
