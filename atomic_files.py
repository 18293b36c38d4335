"""Write files so that a reader sees all of one or none; imports nothing but the standard library."""

from __future__ import annotations

from pathlib import Path


def write_file(path: Path, text: str) -> None:
    """Write a text file so that a reader sees all of it or none."""
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
