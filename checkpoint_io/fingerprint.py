"""Tell checkpoints apart: a hash of the files of a folder, or the commit of a repository."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sdiareward.common.files import hash_json

from .hub_files import fetch_snapshot


# Larger files count by size and time of change, so that a checkpoint of many gigabytes is not read twice.
_MAX_HASHED_BYTES = 64 * 2**20


def fingerprint_model(model: str) -> str:
    """Return a hash of a checkpoint folder, or the commit that a Hub name stands for.

    Args:
        model (`str`): Folder, or name of a repository on the Hub.

    Raises:
        ModelNotFoundError: See `fetch_snapshot`.
    """
    folder = Path(model)
    if not folder.is_dir():
        return fetch_snapshot(model, ["config.json"]).name
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return hash_json({path.name: _fingerprint_file(path) for path in files})


def _fingerprint_file(path: Path) -> str:
    status = path.stat()
    if status.st_size > _MAX_HASHED_BYTES:
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()
