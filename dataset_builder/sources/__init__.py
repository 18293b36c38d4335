"""Corpora, one file each; the docstring of the file is the corpus' card.

A source yields `Episode` (recorded dialogues), `ScriptPair` (text only), `Recording` (long recordings, for the
pipeline), and `Skipped` for every item that cannot be used. It raises only if the whole corpus is missing or
malformed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Recording, ScriptPair

from .reading import require_file


SOURCES = ("colloquial_scripts", "dailytalk", "folder", "meld", "sample", "youtube")
# A module has one of these: `function(path, **options)`.
_READERS = ("read_items", "read_episodes", "read_recordings", "read_pairs")

Item = Episode | ScriptPair | Recording | Skipped


def read_source(name: str, path: str | Path | None = None, options: Mapping[str, Any] | None = None) -> Iterator[Item]:
    """Yield the items of a source, in the same order on every machine."""
    module = _load(name)
    read: Callable[..., Iterator[Item]]
    read = next(getattr(module, reader) for reader in _READERS if hasattr(module, reader))
    known = [option for option in inspect.signature(read).parameters if option != "path"]
    if unknown := sorted(set(options or ()) - set(known)):
        raise ValueError(f"source {name!r} has no options {unknown}; it has {known}.")
    return read(Path(path) if path is not None else None, **(options or {}))


def locate(source: str, root: str | Path, path: str) -> Path:
    """Find the recording of a reference in the user's own copy of the corpus."""
    module = _load(source)
    try:
        find: Callable[[Path, str], Path] = getattr(module, "locate", require_file)
        return find(Path(root), path)
    except FileNotFoundError:
        raise
    # A name that is too long for any file.
    except OSError as error:
        raise FileNotFoundError(f"{source}:{path:.80}: {error.strerror}; no file can have this name.") from error


def _load(name: str) -> ModuleType:
    if name not in SOURCES:
        raise ValueError(f"there is no source {name!r}; choose from {list(SOURCES)}.")
    return import_module(f"{__name__}.{name}")
