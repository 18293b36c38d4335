"""Let one process at a time write to a folder."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from os import environ
from pathlib import Path

from .user_errors import UserError


LOCK_FILE = ".lock"
# A reader holds the lock for a moment, to find out whether the folder is complete.
_WAIT_S = 0.2


@contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Hold a folder's lock until the process ends, even if killed; of a run's processes only the main one does."""
    if environ.get("RANK", "0") != "0":
        yield
        return
    place = Path(folder).resolve()
    new = [each for each in (place, *place.parents) if not each.exists()]
    place.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as held:
            # Some commands write to an empty folder only. Beside one that is a volume, nothing may be written.
            if not _acquire(place.with_name(f".{place.name}{LOCK_FILE}"), folder, held):
                _acquire(place / LOCK_FILE, folder, held)
            yield
    finally:
        # A run that ended before it wrote anything leaves no folder.
        with suppress(OSError):
            for each in new:
                each.rmdir()


def require_unlocked(folder: str | Path) -> None:
    """Raise `UserError` if another process is writing to a folder."""
    if Path(folder).is_dir():
        with lock_folder(folder):
            pass


def _acquire(path: Path, folder: str | Path, held: ExitStack) -> bool:
    """Return whether a lock file could be written; where none can, no lock is needed."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=_WAIT_S)
    try:
        lock.acquire()
    except Timeout:
        reason = "another process is writing to this folder; wait until it ends, stop it, or name another output."
        raise UserError(f"{folder}: {reason}") from None
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            # The file system has no locks.
            path.unlink(missing_ok=True)
        elif error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        return False
    held.callback(lock.release)
    held.callback(path.unlink, missing_ok=True)
    return True
