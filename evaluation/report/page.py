"""The page whose sections are those of an evaluation, a comparison or an audit: one HTML file that requests nothing.

A section is `(key, title, blocks)`, a block `(kind, content)`. Text is escaped, unless it is `Markup`.

- `text`, `caution`, `rule` (small and soft), `bounds` (small): a paragraph. `heading`: within the section.
- `list`: of texts. `details`: `(title, blocks)`, folded. `beside`: blocks in columns, where there is room.
- `verdict`, `verdict clear`: blocks in a box, with large text.
- `table`: a `common.tables.Table`. The note of a row's first cell, also of a `group` row, describes the row; other
  notes stand below their values. Columns in `words` hold text; a `Cell.style` of `pass`, `fail`, `none` or `note` is
  that of a check. On a phone the rows of a table of style `checks` are blocks.
- `figures`: names of the figures that are given to `render_page`, by name a title and the bytes of the PNG file.
- `dialogue`: a `Dialogue` with the turns of each side; `Collector.describe_side` makes them, and their clips.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sdiareward.common.html import make_html_environment
from sdiareward.common.package_files import EVALUATION_PAGE


if TYPE_CHECKING:
    from markupsafe import Markup

Block = tuple[str, Any]
Section = tuple[str, str, list[Block]]


class Side(NamedTuple):
    """One version of a dialogue; `style` is `chosen`, `rejected` or `best`."""

    name: str
    turns: Sequence[Mapping[str, Any]]
    reward: float | None = None
    style: str = ""
    marks: Sequence[str] = ()


class Dialogue(NamedTuple):
    """The sides of a dialogue, folded below a title; `place` begins the labels of its players."""

    title: str
    place: str
    sides: Sequence[Side]
    about: str = ""
    mark: str = ""
    foot: str = ""
    language: str | None = None
    level: int = 3
    is_open: bool = False


def render_page(
    *,
    sections: Sequence[Section],
    headline: str | Markup = "",
    tiles: Sequence[tuple[str, Any, str, str]] = (),
    notes: Sequence[str] = (),
    figures: Mapping[str, tuple[str, bytes]] | None = None,
    clips: Mapping[str, str] | None = None,
    **names: str,
) -> str:
    """Render a page; `names` are its `title`, `kind`, `subject` and `subtitle`.

    `tiles` are name, value, unit and note of the numbers that are shown large.
    """
    from markupsafe import Markup

    environment = make_html_environment(EVALUATION_PAGE)
    environment.filters |= {"typeset": _typeset, "breakable": make_breakable, "hash": _hash}
    style, script = (Markup((EVALUATION_PAGE / f"page.{name}").read_text(encoding="utf-8")) for name in ("css", "js"))
    pictures = {
        name: (alternative, f"data:image/png;base64,{base64.b64encode(data).decode()}")
        for name, (alternative, data) in (figures or {}).items()
    }
    content = {"sections": sections, "headline": headline, "tiles": tiles, "notes": notes, "clips": clips or {}}
    files = {"figures": pictures, "style": style, "script": script}
    return environment.get_template("page.html").render(**names, **content, **files) + "\n"


def _hash(text: str) -> str:
    """Return the hash by which a content security policy allows a style or a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def make_breakable(text: str) -> str:
    """Let a long name break where its parts end."""
    from markupsafe import Markup

    return text if isinstance(text, Markup) else Markup("<wbr>").join(re.split(r"(?<=[/_-])", text))


def _typeset(value: Any) -> Any:
    """Put the signs of typography into formatted numbers: minus, and the dash of intervals."""
    if not isinstance(value, str):
        return value
    if value == "-":
        return "n/a"
    return re.sub(r"(?<![\w.-])-(?=\d)", "−", re.sub(r"(?<=\.\d)-(?=\d+\.\d)", "–", value))
