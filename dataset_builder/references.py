"""References to recordings, `source:path`, the same on every machine; synthetic turns have `synthetic:ENGINE`."""

from __future__ import annotations

from pathlib import Path


SYNTHETIC = "synthetic"


def make_reference(source: str, path: str | Path) -> str:
    return f"{source}:{Path(path).as_posix()}"


def split_reference(reference: str) -> tuple[str, str]:
    source, _, path = reference.partition(":")
    if not (source and path):
        raise ValueError(f"reference {reference!r}: must read 'source:path'.")
    return source, path
