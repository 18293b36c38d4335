"""`python -m sdiareward.cli` is the command line `sdiareward`."""

import sys

from . import main


if __name__ == "__main__":
    sys.exit(main())
