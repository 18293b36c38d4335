"""Distinguish paths from names of repositories on the Hub, which must not be asked about a misspelt path."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path


_SUFFIXES = (".csv", ".flac", ".json", ".jsonl", ".mp3", ".npz", ".ogg", ".parquet", ".safetensors", ".wav", ".yaml")
# A name on the Hub, `ORG/NAME`, has one separator.
_MAX_SEPARATORS = 1
_REVISION = re.compile(r"[\w.-]+/[\w.-]+@(.+)")


def require_local(name: str) -> None:
    """Raise `FileNotFoundError` if a name that is not a file or folder here looks like a path, not like `ORG/NAME`."""
    path = Path(name)
    if path.exists() or "://" in name:
        return
    if found := _REVISION.fullmatch(name):
        raise FileNotFoundError(f"{name}: no such file or folder; give a revision as --revision {found[1]}.")
    near = _find_near(path)
    is_path = name.startswith((".", "~", "/")) or name.count("/") > _MAX_SEPARATORS or name.endswith("/")
    if is_path or name.endswith(_SUFFIXES) or near or ("/" in name and Path(path.parts[0]).is_dir()):
        hint = f"did you mean {near}?" if near else "correct the path, or give the name of a repository on the Hub."
        raise FileNotFoundError(f"{name}: no such file or folder; {hint}")


def _find_near(path: Path) -> str | None:
    """Return an existing path with similar names; None if a part has no similar one."""
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
