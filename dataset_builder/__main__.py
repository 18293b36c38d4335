"""`python -m sdiareward.dataset_builder` is the command `sdiareward build`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from sdiareward.common.commands import run_app

from .commands import BUILD


def main(argv: Sequence[str] | None = None) -> int:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    return run_app(BUILD, argv, extra="build")


if __name__ == "__main__":
    sys.exit(main())
