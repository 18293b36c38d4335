"""References to recordings, `source:path`, the same on every machine; synthetic turns have `synthetic:ENGINE`."""

from __future__ import annotations

from pathlib import Path

from sdiareward.audio_sdiareward import find_file


SYNTHETIC = "synthetic"


def make_reference(source: str, path: str | Path) -> str:
    return f"{source}:{Path(path).as_posix()}"


def split_reference(reference: str) -> tuple[str, str]:
    source, _, path = reference.partition(":")
    if not (source and path):
        raise ValueError(f"reference {reference!r}: must read 'source:path'.")
    return source, path


def resolve_inside(root: Path, relative: str) -> Path:
    """Return `root / relative` for a path from a foreign file; raise `ValueError` if it leaves `root`."""
    path = find_file(root / relative) or root / relative
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"path {relative!r}: lies outside of {root}; paths must be relative and stay inside.")
    return path
