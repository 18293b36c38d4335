"""Put words that others wrote where characters mean something: Markdown, a table's cell, a terminal.

A transcript, a name in a data set or in a checkpoint is text to be shown, and nothing else: it must not become a link
or an image of a card, a second row of a table, or a command to a terminal.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from typing import Any


# Marks that change in which order neighbouring text is shown, so that it reads as something else.
_OVERRIDES = "\u202a-\u202e\u2066-\u2069"
_DIRECTION = f"\u061c\u200e\u200f{_OVERRIDES}"
_LINE_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MARKUP = re.compile(r"([\\`\[\]<|])")
_UNSHOWN = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_DIRECTION}]")
_DIRECTIONS = re.compile(f"[{_DIRECTION}]")
_TURNS = re.compile(f"[{_OVERRIDES}]")


def escape_markdown(value: Any) -> str:
    r"""Return a value as text of one line in Markdown, also within a table: no link, image, code, HTML or new cell.

    An address that is written out stays one, and so a link to where it says.

    Args:
        value: Shown as `str` shows it.

    Example:
        >>> escape_markdown("a | b")
        'a \\| b'
    """
    return _MARKUP.sub(r"\\\1", _join_lines(value))


def escape_code(value: Any) -> str:
    """Return a value between backticks of Markdown, also within a table.

    Args:
        value: Shown as `str` shows it, but backticks as apostrophes.
    """
    text = _join_lines(value).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"


def _join_lines(value: Any) -> str:
    return _LINE_BREAKS.sub(" ", _DIRECTIONS.sub("", str(value))).strip()


def remove_overrides(text: str) -> str:
    """Return a text without the marks that embed or override directions; letters keep the direction they have.

    Args:
        text (`str`): For a page, where markup is escaped elsewhere.
    """
    return _TURNS.sub("", text)


def escape_terminal(text: str) -> str:
    r"""Return a text for a terminal: what is no character to be seen, line breaks and tabs aside, as an escape.

    Args:
        text (`str`): May hold names and words from data.

    Example:
        >>> escape_terminal("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    shown = _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    # Half of a pair, as broken names of files have it, cannot be written out.
    return "".join(
        letter if unicodedata.category(letter) != "Cs" else letter.encode("unicode_escape").decode()
        for letter in shown
    )


class PrintableFormatter(logging.Formatter):
    """Write log records as `escape_terminal` text: warnings name files and rows."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text for a terminal."""
        return escape_terminal(super().format(record))


def log_printable() -> None:
    """Let warnings that no handler of the program takes reach the terminal as printable text."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PrintableFormatter())
