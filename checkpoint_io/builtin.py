"""Find the checkpoint of the package that a name stands for."""

from __future__ import annotations

from pathlib import Path

from sdiareward.common.package_files import NANO


def find_checkpoint(name: str | Path) -> str:
    """Return the folder of the package's checkpoint for `"nano"`; any other name, and any path that exists, as it is.

    Args:
        name (`str` or `Path`): Folder, Hub id or `"nano"`.
    """
    return str(NANO) if str(name) == "nano" and not Path(name).exists() else str(name)
