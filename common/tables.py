"""Tables of plain values: rendered as Markdown here, as HTML by `evaluation/report/page.html`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sdiareward.common.escaping import escape_markdown


class Cell(NamedTuple):
    """A value of a page's table with what stands below it, such as its interval, and a mark beside it."""

    value: Any
    note: str = ""
    mark: str = ""


class Row(NamedTuple):
    """The cells of a row, its name first; `style` is `own`, `sum`, `small`, `foot`, or `group` for a heading."""

    cells: Sequence[Any]
    style: str = ""


class Table(NamedTuple):
    """A table of a page; the columns in `words` hold text, the others numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Row]
    words: Sequence[str] = ()
    has_caption: bool = False

    def list_cells(self, row: Row) -> list[Cell]:
        return [cell if isinstance(cell, Cell) else Cell(cell) for cell in row.cells]


def render_markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], num_left: int = 1, *, pad: bool = False
) -> list[str]:
    """Render a table like `render_table`, of cells that are Markdown already."""
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
    """Render a Markdown table, `num_left` text columns before numbers; cells, which come from data, are escaped."""
    escaped_head, *escaped_rows = ([escape_markdown(cell) for cell in row] for row in (head, *rows))
    return render_markdown_table(escaped_head, escaped_rows, num_left, pad=pad)
