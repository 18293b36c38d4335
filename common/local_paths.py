"""Tell paths from names of repositories on the Hub, which is not asked about a misspelt path."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path


_SUFFIXES = (".csv", ".flac", ".json", ".jsonl", ".mp3", ".npz", ".ogg", ".parquet", ".safetensors", ".wav", ".yaml")
# As `ORG/NAME`, a name on the Hub has one separator.
_MAX_SEPARATORS = 1


def require_local(name: str) -> None:
    """Raise if a name that is no file or folder here looks like a path; others may be repositories on the Hub.

    A path begins with `.`, `~` or `/`, has more than one separator, ends like a file of data, lies in a folder that
    exists, or differs by a letter or two from a path that exists.
    """
    path = Path(name)
    if path.exists() or "://" in name:
        return
    near = _find_near(path)
    is_path = name.startswith((".", "~", "/")) or name.count("/") > _MAX_SEPARATORS or name.endswith("/")
    if is_path or name.endswith(_SUFFIXES) or near or ("/" in name and Path(path.parts[0]).is_dir()):
        hint = f"did you mean {near}?" if near else "correct the path, or give the name of a repository on the Hub."
        raise FileNotFoundError(f"{name}: no such file or folder; {hint}")


def _find_near(path: Path) -> str | None:
    """Return the path that exists in whose parts the names are the nearest; None if a part has no near one."""
    found = Path(path.anchor)
    for part in path.parts[len(found.parts) :]:
        try:
            names = [entry.name for entry in found.iterdir() if not entry.name.startswith(".")]
        except OSError:
            return None
        near = [part] if (found / part).exists() else get_close_matches(part, names, n=1, cutoff=0.8)
        if not near:
            return None
        found /= near[0]
    return str(found)
