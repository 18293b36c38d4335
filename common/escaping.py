"""Escape text from data or users for Markdown."""

from __future__ import annotations

import re
from typing import Any


_LINE_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_MARKUP = re.compile(r"([\\`\[\]<|])")


def escape_markdown(value: Any) -> str:
    """Return a value as one line of plain text in Markdown, also within a table."""
    return _MARKUP.sub(r"\\\1", _join_lines(value))


def escape_code(value: Any) -> str:
    """Return a value between backticks of Markdown; its own backticks become apostrophes."""
    text = _join_lines(value).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"


def _join_lines(value: Any) -> str:
    return _LINE_BREAKS.sub(" ", str(value)).strip()
