"""Find the checkpoints of the package that a name stands for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sdiareward.common.hub import find_snapshot
from sdiareward.common.package_files import NANO, SMALL

from .files import SMALL_PROJECTION


def find_checkpoint(name: str | Path) -> str:
    """Return the folder of `"nano"`, `"small"` or a model at a commit; any other name, and any path, as it is.

    The package has only the trained tensors of the small model. They are put on its base once, and the result is kept
    in the cache of the Hub's library. The folder of these tensors, or a copy, stands for the same.
    """
    if (Path(name) / SMALL_PROJECTION).is_file():
        return str(_find_small(Path(name)))
    if str(name) not in ("nano", "small") or Path(name).exists():
        return find_snapshot(name)
    return str(NANO) if str(name) == "nano" else str(_find_small(SMALL))


def find_base(adapters: str | Path, named: str | None) -> str | None:
    """Return the base model that adapters name: a path in or beside their folder, or what `find_checkpoint` takes."""
    if named is None or (Path(adapters) / named).is_dir():
        return named and str(Path(adapters) / named)
    return find_checkpoint(named)


def _find_small(trained: Path) -> Path:
    from filelock import FileLock
    from huggingface_hub import cached_assets_path

    contents = [path.read_bytes() for path in sorted(trained.iterdir()) if path.is_file()]
    name = f"small-{hashlib.sha256(b''.join(contents)).hexdigest()[:16]}"
    folder = cached_assets_path("sdiareward", "models") / name
    # Processes that start together build it once.
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            _assemble(trained, folder)
    return folder


def _assemble(trained: Path, folder: Path) -> None:
    from sdiareward.common.files import replace_atomically

    from .small import assemble_small

    with replace_atomically(folder) as temporary:
        assemble_small(temporary, trained)
