"""Corpora, one file each; the docstring of the file is the corpus' card. All yield episodes (or pairs of scripts)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from sdiareward.dataset_builder.schema import Episode, ScriptPair


# Every module has `episodes(path) -> Iterator[Episode]`, or `script_pairs(path) -> Iterator[ScriptPair]`.
SOURCES = ("amazon_queen", "asterisk", "colloquial_scripts", "sample")


def read_source(name: str, path: str | Path | None = None) -> Iterator[Episode | ScriptPair]:
    """Yield what source `name` holds, in the same order on every machine.

    Args:
        name (`str`): One of `SOURCES`.
        path (`str` or `Path`, *optional*): Where the corpus lies; each source says what it expects and its default.

    Raises:
        ValueError: There is no source of that name, or the corpus is not what it should be.
        FileNotFoundError: The corpus is not there; the message says how to get it.
    """
    if name not in SOURCES:
        raise ValueError(f"there is no source {name!r}; choose from {list(SOURCES)}.")
    module = import_module(f"{__name__}.{name}")
    read: Callable[[Path | None], Iterator[Episode | ScriptPair]]
    read = getattr(module, "episodes", None) or module.script_pairs
    return read(Path(path) if path is not None else None)
