"""Folders that are written to: caches and temporary files; whether that works, and how much room there is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .findings import FAILED, PASSED, WARNING, Check, Outcome, Settings, reason_of
from .packages import import_of


# A checkpoint of 3 billion parameters in half precision has 6 GB, one of 7 billion 15 GB.
_LEAST_CACHE_BYTES = 8 * 10**9
_LEAST_TEMPORARY_BYTES = 10**9


def folder_checks() -> list[Check]:
    """Return the checks of folders."""
    hub, datasets = import_of("huggingface_hub"), import_of("datasets")
    return [
        Check("folders", "cache of the Hub", partial(_cache, _hub_cache, "HF_HOME"), needs=(hub,)),
        Check("folders", "cache of datasets", partial(_cache, _datasets_cache, "HF_DATASETS_CACHE"), (datasets,)),
        Check("folders", "temporary files", _temporary),
    ]


def _hub_cache() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _datasets_cache() -> Path:
    from datasets.config import HF_DATASETS_CACHE

    return Path(HF_DATASETS_CACHE)


def _cache(folder: Callable[[], Path], variable: str, _: Settings) -> Outcome:
    path = folder()
    refusal = refusal_of(path)
    if refusal is not None:
        remedy = f"let {variable} name a folder that can be written to; what is in a cache already can be read"
        return Outcome(WARNING, f"{path}: cannot be written to ({refusal})", remedy, details={"path": str(path)})
    return _room(path, _LEAST_CACHE_BYTES, "a checkpoint of 3 billion parameters would not fit")


def _temporary(_: Settings) -> Outcome:
    try:
        path = Path(tempfile.gettempdir())
    except OSError as error:
        return Outcome(FAILED, reason_of(error), "let TMPDIR name a folder that can be written to, with room")
    return _room(path, _LEAST_TEMPORARY_BYTES, "saving a checkpoint on the way needs its size")


def _room(path: Path, least_bytes: int, consequence: str) -> Outcome:
    """Say how much room there is, and warn if it is little."""
    found = shutil.disk_usage(_existing(path))
    details = {"path": str(path), "total_bytes": found.total, "free_bytes": found.free}
    text = f"{path}: {found.free / 1e9:.1f} GB free of {found.total / 1e9:.1f}"
    if found.free < least_bytes:
        return Outcome(WARNING, f"{text}; {consequence}", "make room, or choose another folder", details=details)
    return Outcome(PASSED, text, details=details)


def refusal_of(path: Path) -> str | None:
    """Return why no file can be written into a folder, or, where there is none yet, beside it; None if one can.

    Args:
        path (`Path`): Folder; nothing is left in it.
    """
    try:
        with tempfile.TemporaryFile(dir=_existing(path)) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


def _existing(path: Path) -> Path:
    """Return a folder, or what exists of the path to it."""
    return next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
