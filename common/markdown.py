"""Render tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sdiareward.common.escaping import escape_markdown


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
