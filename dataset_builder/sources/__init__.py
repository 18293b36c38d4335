"""Corpora, one function each; its docstring is the card of the corpus.

A source yields `Episode` (recorded dialogues), `ScriptPair` (text only), `Recording` (long recordings for the
pipeline), and `Skipped` for each unusable item. It raises only if the whole corpus is missing or malformed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.errors import Skipped
from sdiareward.common.package import SAMPLE

from ..episodes import Episode, Recording, ScriptPair
from .corpora import locate_meld, locate_youtube, read_dailytalk, read_meld, read_sample, read_scripts, read_youtube
from .folder import read_folder
from .reading import require_file


Item = Episode | ScriptPair | Recording | Skipped
# Called as `function(path, **options)`.
_READERS: dict[str, Callable[..., Iterator[Item]]] = {
    "colloquial_scripts": read_scripts,
    "dailytalk": read_dailytalk,
    "folder": read_folder,
    "meld": read_meld,
    "sample": read_sample,
    "youtube": read_youtube,
}
SOURCES = tuple(_READERS)
# For sources whose files are not simply below their root.
_LOCATORS = {"meld": locate_meld, "youtube": locate_youtube}
DEFAULT_PATHS = {"sample": SAMPLE}


def read_source(name: str, path: str | Path | None = None, options: Mapping[str, Any] | None = None) -> Iterator[Item]:
    """Yield the items of a source, in the same order on every machine."""
    if name not in SOURCES:
        raise ValueError(f"unknown source {name!r}; choose from {list(SOURCES)}.")
    known = [option for option in inspect.signature(_READERS[name]).parameters if option != "path"]
    if unknown := sorted(set(options or ()) - set(known)):
        raise ValueError(f"source {name!r} has no options {unknown}; choose from {known}.")
    return _READERS[name](Path(path) if path is not None else None, **(options or {}))


def locate(source: str, root: str | Path, path: str) -> Path:
    """Find the recording of a reference in the user's copy of the corpus."""
    return _LOCATORS.get(source, require_file)(Path(root), path)
