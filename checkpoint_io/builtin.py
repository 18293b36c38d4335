"""Find the checkpoints that the package names: `nano` lies in it, `small` is put together once and kept."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock

from sdiareward.common.files import replace_atomically
from sdiareward.common.package_files import NANO, SMALL

from .fingerprint import fingerprint_model


CACHE_VARIABLE = "SDIAREWARD_CACHE"


def find_checkpoint(name: str | Path) -> str:
    """Return the folder that a name of the package stands for; any other name, and any path that exists, as it is.

    Args:
        name (`str` or `Path`): Folder, Hub id, `"nano"` or `"small"`. `small` is built at its first use, from the
            packages that hold its towers, into `SDIAREWARD_CACHE` (by default `~/.cache/sdiareward`).

    Raises:
        UserError: What `small` is built from is not installed.
    """
    if Path(name).exists() or str(name) not in ("nano", "small"):
        return str(name)
    return str(NANO if name == "nano" else _find_small())


def _find_small() -> Path:
    """Return the cached folder of the small model; build it if the package holds newer weights, or none is there."""
    cache = Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "sdiareward")
    folder = cache / f"small-{fingerprint_model(str(SMALL))[:16]}"
    if folder.is_dir():
        return folder
    from .small import assemble_small

    cache.mkdir(parents=True, exist_ok=True)
    # Other processes wait for the one that builds it.
    with FileLock(cache / f"{folder.name}.lock"):
        if not folder.is_dir():
            with replace_atomically(folder) as temporary:
                assemble_small(temporary)
    return folder
