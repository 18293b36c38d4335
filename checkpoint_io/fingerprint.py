"""Tell checkpoints apart: a hash of the files that a reward depends on, or the commit of a repository."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sdiareward.common.files import hash_json

from .builtin import find_base
from .files import ADAPTER_CONFIG, read_json
from .hub_files import fetch_snapshot


# Cards, results and pictures do not count: they may change, or be written later.
_DESCRIPTIONS = {"audit.json", "results.json", "run.json", "training_pairs.json"}
_DESCRIBING_SUFFIXES = {".html", ".jsonl", ".log", ".md", ".png", ".svg"}
# Larger files count by size and time of change, so that a checkpoint of many gigabytes is not read twice.
_MAX_HASHED_BYTES = 64 * 2**20


def fingerprint_model(model: str) -> str:
    """Return a hash of a checkpoint folder and the base of its adapters, or the commit of a Hub name."""
    folder = Path(model)
    if not folder.is_dir():
        return fetch_snapshot(model, ["config.json"]).name
    found: dict[str, Any] = _fingerprint_files(folder)
    base = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path") if ADAPTER_CONFIG in found else None
    if isinstance(base, str) and Path(base := str(find_base(folder, base))).is_dir():
        found["base model"] = _fingerprint_files(Path(base))
    return hash_json(found)


def _fingerprint_files(folder: Path) -> dict[str, str]:
    return {path.name: _fingerprint_file(path) for path in folder.iterdir() if _is_counted(path)}


def _is_counted(path: Path) -> bool:
    is_hidden = path.name.startswith(".")
    is_description = path.name in _DESCRIPTIONS or path.suffix in _DESCRIBING_SUFFIXES
    return path.is_file() and not is_hidden and not is_description


def _fingerprint_file(path: Path) -> str:
    status = path.stat()
    if status.st_size > _MAX_HASHED_BYTES:
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()
