"""The garbage collector, while large libraries are imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


# With it come PyTorch, its compiler and SciPy.
_LARGEST = "transformers.modeling_utils"


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage while `transformers` is imported, and never look through what there is by then.

    Modules, classes and functions stay to the end of a process. Looking through them again and again while there are
    more and more of them takes a good part of the time of their import. Where they are imported already, nothing
    changes.
    """
    if _LARGEST in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
