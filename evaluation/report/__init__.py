"""The page of an evaluation: `eval.py --report` writes `report/index.html` with its figures and `report.json`.

- `inputs` reads other evaluations and the logs of training runs.
- `reliability`, `margins` and `statistics` are the statistics, each on plain arrays.
- `content` gathers every number of the page; `report.json` is what it returns.
- `examples` has words and sound of single pairs, `figures` draws, `page` renders the template.
"""

from __future__ import annotations

from typing import Any


__all__ = ["write_page"]


def __getattr__(name: str) -> Any:
    # Lazily: the command line reads its flags before anything heavy is loaded.
    if name == "write_page":
        from .page import write_page

        return write_page
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
