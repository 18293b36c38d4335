"""Tell checkpoints apart: a hash of the files that a reward depends on, or the commit of a repository."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sdiareward.common.files import hash_json
from sdiareward.common.hub import fetch_snapshot, split_commit

from .adapter_files import read_base
from .builtin import find_base, find_checkpoint
from .files import ADAPTER_CONFIG, read_json


# Cards, results and pictures do not count: they may change, or be written later.
_DESCRIPTIONS = {"audit.json", "results.json", "run.json", "training_pairs.json"}
_DESCRIBING_SUFFIXES = {".html", ".jsonl", ".log", ".md", ".png", ".svg"}
# Larger files count by size and time of change, so that a checkpoint of many gigabytes is not read twice.
_MAX_HASHED_BYTES = 64 * 2**20


def fingerprint_model(model: str) -> str:
    """Return a hash of a checkpoint folder, or the commit of a Hub name; of adapters a hash of them and their base."""
    folder = Path(model)
    is_here = folder.is_dir()
    if not is_here:
        folder = fetch_snapshot(model, ["config.json", ADAPTER_CONFIG])
    has_base = (folder / ADAPTER_CONFIG).is_file()
    if not is_here and not has_base:
        return folder.name
    found: dict[str, Any] = _fingerprint_files(folder) if is_here else {"commit": folder.name}
    if has_base and (base := find_base(folder, read_base(read_json(folder / ADAPTER_CONFIG)))):
        found["base model"] = _fingerprint_files(Path(base)) if Path(base).is_dir() else fingerprint_model(base)
    return hash_json(found)


def describe_model(name: str) -> str:
    """Return a name, without its commit, and the fingerprint of the model."""
    plain, commit = split_commit(name)
    return f"{plain} ({fingerprint_model(name if commit else find_checkpoint(name))})"


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
