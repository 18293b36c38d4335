"""Worker processes that end with their parent process; the death of a worker is reported."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from .user_errors import UserError


@contextmanager
def open_worker_pool(
    num_workers: int, initializer: Callable[..., None] | None = None, initargs: Sequence[Any] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Start processes to submit work to; on leaving, running jobs finish and queued jobs are cancelled."""
    # A fork of this process would leave the threads of the synthesizers' runtimes locked.
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(num_workers, context, initializer=_start, initargs=(initializer, initargs))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, perhaps for lack of memory; lower num_workers and run the same command "
            "again to resume."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(initializer: Callable[..., None] | None, initargs: Sequence[Any]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _end_with_parent() -> None:
    """End this worker with its parent: it holds both ends of the queue, and would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
