"""References to recordings: `source:path`, the same everywhere.

A synthetic turn's reference is `synthetic:ENGINE`.
"""

from __future__ import annotations

from pathlib import Path


SYNTHETIC = "synthetic"


def make_reference(source: str, path: str | Path) -> str:
    """Return the reference of a file of `source`."""
    return f"{source}:{Path(path).as_posix()}"


def split_reference(reference: str) -> tuple[str, str]:
    """Return `(source, path)` of a reference."""
    source, _, path = reference.partition(":")
    if not (source and path):
        raise ValueError(f"reference {reference!r}: must read 'source:path'.")
    return source, path


def resolve_inside(root: Path, relative: str) -> Path:
    """Return `root / relative`, where `relative` comes from a foreign file; raise `ValueError` if it leaves `root`."""
    path = root / relative
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"path {relative!r}: lies outside of {root}; paths must be relative and stay inside.")
    return path
