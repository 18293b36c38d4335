"""Format numbers and tables, and escape data for Markdown; pages render the same tables as HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple


if TYPE_CHECKING:
    import jinja2

ABSENT = "-"
_LINE_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_MARKUP = re.compile(r"([\\`\[\]<|])")


class Results(dict[str, Any]):
    """What a run has measured, as in its JSON file; it prints as Markdown, and a notebook shows its tables."""

    def __init__(self, content: Mapping[str, Any], text: str):
        super().__init__(content)
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return render_html(self.text)


def render_html(markdown: str) -> str:
    """Return Markdown with tables as HTML; HTML inside of it is escaped."""
    from markdown_it import MarkdownIt

    return str(MarkdownIt("js-default").render(markdown))


class Cell(NamedTuple):
    """A value, a note below it such as its interval, a mark beside it, and the style of a check."""

    value: Any
    note: str = ""
    mark: str = ""
    style: str = ""


class Row(NamedTuple):
    """The cells of a row, its name first; `style` is `own`, `sum`, `small`, `foot`, or `group` for a heading."""

    cells: Sequence[Any]
    style: str = ""


class Table(NamedTuple):
    """A table; the columns in `words` have text, the others numbers. `evaluation.report.page` has the styles."""

    title: str
    head: Sequence[str]
    rows: Sequence[Row]
    words: Sequence[str] = ()
    has_caption: bool = False
    style: str = ""

    def list_cells(self, row: Row) -> list[Cell]:
        return [cell if isinstance(cell, Cell) else Cell(cell) for cell in row.cells]

    def to_markdown(self, group: str = "") -> str:
        """Return the table as Markdown, notes and marks in brackets; group rows become a column called `group`.

        In the style `stacked`, notes are rows below their values, so that the table stays narrow.
        """
        heading, rows = "", []
        for row in self.rows:
            found = self.list_cells(row)
            notes = [cell.note.splitlines() for cell in found] if self.style == "stacked" else []
            cells = [
                " ".join([str(cell.value) or ABSENT, *_bracket("" if notes else cell.note), *_bracket(cell.mark)])
                for cell in found
            ]
            if row.style == "group":
                heading = cells[0]
            else:
                rows.append([heading, *cells] if group else cells)
                rows += map(list, zip_longest(*notes, fillvalue=""))
        head = [group, *self.head] if group else self.head
        return "\n".join(render_table(head, rows, 1 + bool(group), pad=True))


def _bracket(text: str) -> list[str]:
    return [f"({', '.join(text.splitlines())})"] if text else []


def render_markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], num_left: int = 1, *, pad: bool = False
) -> list[str]:
    """Render a table like `render_table`; the cells are Markdown already."""
    rule = ["---" if index < num_left else "--:" for index in range(len(head))]
    table = [list(map(str, row)) for row in (head, rule, *rows)]
    if pad:
        columns = [_pad(column, index < num_left) for index, column in enumerate(zip(*table, strict=True))]
        table = list(map(list, zip(*columns, strict=True)))
    return ["| " + " | ".join(row) + " |" for row in table]


def _pad(column: Sequence[str], is_left: bool) -> list[str]:
    width = max(map(len, column))
    return [cell.ljust(width) if is_left else cell.rjust(width) for cell in column]


def render_table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], num_left: int = 1, *, pad: bool = False
) -> list[str]:
    """Render a Markdown table with `num_left` text columns before the numbers; cells are escaped."""
    escaped_head, *escaped_rows = ([escape_markdown(cell) for cell in row] for row in (head, *rows))
    return render_markdown_table(escaped_head, escaped_rows, num_left, pad=pad)


def format_percent(value: float | None, digits: int = 2) -> str:
    return ABSENT if value is None else f"{100 * value:.{digits}f}"


def format_interval(bounds: Sequence[float] | None) -> str:
    """Return the bounds in percent; a single recording has no interval."""
    return "no interval" if bounds is None else f"{100 * bounds[0]:.1f}-{100 * bounds[1]:.1f}"


def format_number(value: float | None, digits: int = 2) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"


def format_signed(value: float | None) -> str:
    return ABSENT if value is None else f"{value:+.2f}"


def format_points(value: float | None) -> str:
    """Return a difference of shares in percentage points."""
    return ABSENT if value is None else f"{100 * value:+.1f}"


def format_range(bounds: Sequence[float] | None, form: Callable[[float], str] = format_signed) -> str:
    return "no interval" if bounds is None else f"{form(bounds[0])} to {form(bounds[1])}"


def format_p_value(value: float) -> str:
    return "<\N{NO-BREAK SPACE}0.001" if value < 0.001 else f"{value:.3f}"


def make_share(value: float | None, bounds: Sequence[float] | None, mark: str = "") -> Cell:
    """Return a share in percent above its interval."""
    return Cell(format_percent(value), "" if value is None else format_interval(bounds), mark)


def escape_markdown(value: Any) -> str:
    """Return a value as one line of plain text in Markdown, also within a table."""
    return _MARKUP.sub(r"\\\1", _join_lines(value))


def escape_code(value: Any) -> str:
    """Return a value between backticks of Markdown; its own backticks become apostrophes."""
    text = _join_lines(value).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"


def _join_lines(value: Any) -> str:
    return _LINE_BREAKS.sub(" ", str(value)).strip()


def make_html_environment(*folders: Path) -> jinja2.Environment:
    """Return an environment of templates; if two have one name, the earlier folder wins."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
