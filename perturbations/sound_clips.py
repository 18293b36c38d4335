"""Find recordings of sounds in folders of clips."""

from __future__ import annotations

from pathlib import Path


def find_clips(category: str, events_dir: str | Path | None) -> list[Path]:
    """Return the clips of a category in the order of their names."""
    if events_dir is None:
        return []
    folder = Path(events_dir, category)
    return sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith("."))
