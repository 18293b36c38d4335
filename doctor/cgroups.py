"""What a container or a batch system lets this process have, where Linux says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")
# Version 1 says "no limit" with the largest multiple of a page.
_NO_LIMIT_BYTES = 2**62


def memory_limit_bytes(mount: Path = _MOUNT, own: Path = _OWN) -> int | None:
    """Return the smallest limit of memory of this process's control groups, or None if there is none.

    Args:
        mount (`Path`): Where the control groups are mounted.
        own (`Path`): The file that lists those of the process.
    """
    folders = _folders(mount, own, "memory")
    texts = [_read(folder / name) for folder in folders for name in _MEMORY_FILES]
    limits = [int(text) for text in texts if text.isdigit() and int(text) < _NO_LIMIT_BYTES]
    return min(limits, default=None)


def cpu_limit(mount: Path = _MOUNT, own: Path = _OWN) -> float | None:
    """Return how many CPUs' time this process may use, or None if it is not limited.

    Args:
        mount (`Path`): As in `memory_limit_bytes`.
        own (`Path`): As in `memory_limit_bytes`.
    """
    limits = []
    for folder in _folders(mount, own, "cpu"):
        limits.append(_read(folder / "cpu.max").split())
        limits.append([_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")])
    # Without a limit the quota is "max" or negative.
    shares = [int(limit[0]) / int(limit[1]) for limit in limits if len(limit) == 2 and all(map(str.isdigit, limit))]
    return min(shares, default=None)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _folders(mount: Path, own: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's groups of a controller, each before those that hold it."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 has one tree; of version 1 each controller has its own.
        root = mount / controller if controllers else mount
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder == root or root in folder.parents)
