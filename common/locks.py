"""Let one process at a time write to a folder."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .user_errors import _NOT_ALLOWED, UserError


LOCK_FILE = ".lock"


@contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Hold a folder's lock until the process ends, even if killed; of a run's processes only the main one does."""
    from filelock import FileLock, Timeout

    path = Path(folder) / LOCK_FILE
    is_new = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        reason = "another process is writing to this folder; wait until it ends, stop it, or name another output."
        raise UserError(f"{folder}: {reason}") from None
    except OSError as error:
        if error.errno not in (errno.EROFS, *_NOT_ALLOWED):
            raise
        # Nothing can be written here, so no lock is needed; the results of a finished run can still be read.
    try:
        yield
    finally:
        if lock.is_locked:
            path.unlink(missing_ok=True)
            lock.release()
        if is_new:
            # A run that ended before it wrote anything leaves no folder.
            with suppress(OSError):
                path.parent.rmdir()
