"""Let one process at a time write to a folder."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .user_errors import _NOT_ALLOWED, RunBlockedError


LOCK_FILE = ".lock"


@contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Make a folder and keep other processes that ask from writing to it meanwhile.

    The system lets go of the lock with the process, however that ends. Processes that share the work of one run let
    only their main one ask.

    Args:
        folder (`str` or `Path`): A run's output.

    Raises:
        RunBlockedError: Another process writes to it.
    """
    from filelock import FileLock, Timeout

    path = Path(folder) / LOCK_FILE
    is_new = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        reason = "another process is writing to this folder; wait until it ends, stop it, or name another output."
        raise RunBlockedError(f"{folder}: {reason}") from None
    except OSError as error:
        if error.errno not in (errno.EROFS, *_NOT_ALLOWED):
            raise
        # Where nothing can be written nobody is disturbed; what a finished run left there may still be read.
    try:
        yield
    finally:
        if lock.is_locked:
            path.unlink(missing_ok=True)
            lock.release()
        if is_new:
            # Of a run that ended before it wrote anything nothing stays.
            with suppress(OSError):
                path.parent.rmdir()
