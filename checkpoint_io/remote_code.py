"""The remote code of a checkpoint: the files at the package's root that `trust_remote_code` loads.

A checkpoint in the repository holds copies of them, written by `python -m sdiareward.checkpoint_io.remote_code`
(`make nano-code`) and compared with the originals by a test.
"""

from __future__ import annotations

from pathlib import Path

from sdiareward.common.package_files import NANO, PACKAGE

from .files import REMOTE_CODE


def write_remote_code(folder: Path) -> None:
    for name in REMOTE_CODE:
        target = folder / name
        # A symbolic link would be written through.
        target.unlink(missing_ok=True)
        target.write_bytes((PACKAGE / name).read_bytes())


if __name__ == "__main__":
    write_remote_code(NANO)
