"""Find a model by its name, and identify it: a hash of the files that a reward depends on, or a commit on the Hub."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sdiareward.common.files import hash_json, replace_atomically
from sdiareward.common.hub import fetch_snapshot, find_snapshot, split_commit
from sdiareward.common.package import NANO, SMALL

from .adapter_files import read_base
from .files import ADAPTER_CONFIG, FOLDS, SMALL_PROJECTION, read_json


# Cards, results and pictures are no part of a fingerprint: they may change, or be written later.
_DESCRIPTIONS = {"audit.json", FOLDS, "results.json", "run.json", "training_pairs.json"}
_DESCRIBING_SUFFIXES = {".html", ".jsonl", ".log", ".md", ".png", ".svg"}
# Larger files count by size and time of change, so that a checkpoint of many gigabytes is not read twice.
_MAX_HASHED_BYTES = 64 * 2**20


def find_checkpoint(name: str | Path) -> str:
    """Return the folder of `"nano"`, `"small"` or a model at a commit; any other name, and any path, as it is.

    The package has only the trained tensors of the small model. They are put on its base once, and the result is kept
    in the cache of the Hub's library. The folder of these tensors, or a copy, stands for the same.
    """
    if (Path(name) / SMALL_PROJECTION).is_file():
        return _find_small(Path(name))
    if str(name) not in ("nano", "small") or Path(name).exists():
        return find_snapshot(name)
    return str(NANO) if str(name) == "nano" else _find_small(SMALL)


def _find_small(trained: Path) -> str:
    from filelock import FileLock
    from huggingface_hub import cached_assets_path

    contents = [path.read_bytes() for path in sorted(trained.iterdir()) if path.is_file()]
    name = f"small-{hashlib.sha256(b''.join(contents)).hexdigest()[:16]}"
    folder = cached_assets_path("sdiareward", "models") / name
    # Processes that start together build it once.
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            from .small import assemble_small

            with replace_atomically(folder) as temporary:
                assemble_small(temporary, trained)
    return str(folder)


def find_base(adapters: str | Path, named: str | None) -> str | None:
    """Return the base model that adapters name: a path in or beside their folder, or what `find_checkpoint` takes."""
    if named is None or (Path(adapters) / named).is_dir():
        return named and str(Path(adapters) / named)
    return find_checkpoint(named)


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
    found = {}
    for path in folder.iterdir():
        is_description = path.name in _DESCRIPTIONS or path.suffix in _DESCRIBING_SUFFIXES
        if path.is_file() and path.name[0] != "." and not is_description:
            status = path.stat()
            is_large = status.st_size > _MAX_HASHED_BYTES
            size_and_time = f"{status.st_size} bytes of {status.st_mtime_ns}"
            found[path.name] = size_and_time if is_large else hashlib.sha256(path.read_bytes()).hexdigest()
    return found
