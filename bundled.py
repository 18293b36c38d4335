"""Where the files lie that travel inside the package: a small trained checkpoint, two dialogues, the tested versions.

They are the same in the repository, in an editable install and in a wheel, so that the first example runs anywhere
and without a network. Imports nothing but the standard library.
"""

from __future__ import annotations

from pathlib import Path


_PACKAGE = Path(__file__).resolve().parent

# The nano checkpoint: configuration, weights, processor, remote code, card and results.
NANO: Path = _PACKAGE / "checkpoints" / "nano"
# One test pair of the open data: `human.json` and `synthetic.json` with their recordings; licences in `README.md`.
EXAMPLES: Path = _PACKAGE / "examples"
# The versions that the tests ran with, one `NAME==VERSION` a line.
CONSTRAINTS: Path = _PACKAGE / "constraints.txt"
