"""Render tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sdiareward.common.escaping import escape_markdown


def render_markdown_table(head: Sequence[str], rows: Iterable[Sequence[Any]], num_left: int = 1) -> list[str]:
    """Render a table like `render_table`, of cells that are Markdown already."""
    rule = ["---" if index < num_left else "--:" for index in range(len(head))]
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, rule, *rows)]


def render_table(head: Sequence[str], rows: Iterable[Sequence[Any]], num_left: int = 1) -> list[str]:
    """Render the lines of a Markdown table whose first `num_left` columns are text and whose others are numbers.

    Cells are escaped, because names come from data.
    """
    return render_markdown_table(head, ([escape_markdown(cell) for cell in row] for row in rows), num_left)
