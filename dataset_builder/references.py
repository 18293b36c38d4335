"""References to recordings: `source:path`, the same everywhere.

A synthetic turn's reference is `synthetic:ENGINE`.
"""

from __future__ import annotations

import re
from pathlib import Path


SYNTHETIC = "synthetic"
# Paths that leave the folder, or name a device, on some system: refused on all.
_FOREIGN = (
    (re.compile(r"[\x00-\x1f\x7f]"), "holds control characters"),
    (re.compile(r"/|~(/|$)"), "is absolute"),
    (re.compile(r"[A-Za-z]:"), "begins with a drive"),
    (re.compile(r"\\"), "holds backslashes"),
    (
        re.compile(r"(?i)(.*/)?(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])[ ]*([.:][^/]*)?(/|$)"),
        "is a device",
    ),
)


def make_reference(source: str, path: str | Path) -> str:
    """Return the reference of a file of `source`.

    Args:
        source (`str`): Name of the corpus.
        path (`str` or `Path`): Relative to the corpus' root; written with forward slashes.
    """
    return f"{source}:{Path(path).as_posix()}"


def split_reference(reference: str) -> tuple[str, str]:
    """Return `(source, path)` of a reference.

    Raises:
        ValueError: It does not have the form `source:path`.
    """
    source, _, path = reference.partition(":")
    if not (source and path):
        raise ValueError(f"reference {reference!r}: must read 'source:path'.")
    return source, path


def resolve_inside(root: Path, relative: str) -> Path:
    """Return `root / relative`, where `relative` comes from a foreign file.

    The same paths are refused on every system.

    Raises:
        ValueError: The path is absolute, leaves `root` (links followed), or would do so or name a device on Windows.
    """
    if problem := find_foreign_form(relative):
        raise ValueError(
            f"path {relative!r}: {problem}, so it lies outside of {root}; paths must be relative, with forward "
            "slashes, and stay inside."
        )
    path = root / relative
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"path {relative!r}: lies outside of {root}; paths must be relative and stay inside.")
    return path


def find_foreign_form(relative: str) -> str | None:
    """Return why a text is not a relative path on every system, None if it is one."""
    for pattern, problem in _FOREIGN:
        # A backslash or a control character counts anywhere, the other forms from the beginning.
        found = pattern.search(relative) if problem.startswith("holds") else pattern.match(relative)
        if found:
            return problem
    return None
