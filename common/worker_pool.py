"""Worker processes that neither outlive the process that started them nor leave it without a word."""

from __future__ import annotations

import multiprocessing
import os
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
    """Start processes to submit work to; what is under way is finished on leaving, the rest is dropped.

    They are spawned, not forked: the synthesizers' runtimes start threads, which a fork would leave locked.

    Args:
        num_workers (`int`): How many.
        initializer (`Callable`, *optional*): Called in each first.
        initargs (`Sequence`, *optional*): What it is called with.

    Raises:
        UserError: One of them was killed.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_workers, context, initializer=_start, initargs=(initializer, initargs))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, perhaps for want of memory; lower num_workers, then run the same command "
            "again: what is finished is kept."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(initializer: Callable[..., None] | None, initargs: Sequence[Any]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _end_with_parent() -> None:
    """End this worker as soon as its parent is gone: it holds both ends of the queue, and would wait without end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
