"""Record arguments, versions, machine and git revision beside a result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from .files import write_file
from .package_files import PACKAGE


_DISTRIBUTIONS = ("sdiareward", "torch", "transformers", "trl", "datasets", "numpy", "scikit-learn")


def describe_run() -> dict[str, Any]:
    versions, revision = dict[str, str | None].fromkeys(_DISTRIBUTIONS), None
    for name in versions:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    command = ["git", "-C", str(PACKAGE), "rev-parse", "--show-toplevel", "HEAD"]
    with suppress(OSError, subprocess.CalledProcessError):
        top, head = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")[:2]
        # An installed package may be inside another repository.
        revision = head if Path(top).samefile(PACKAGE) else None
    return {
        "versions": versions,
        "python": platform.python_version(),
        "machine": {"processor": platform.machine(), "num_cores": os.cpu_count()},
        "git_revision": revision,
    }


def write_provenance(path: str | Path, **sections: Any) -> None:
    """Write `describe_run` and further sections as JSON, atomically; dataclasses field by field."""

    def convert(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        return dict(value) if isinstance(value, Mapping) else str(value)

    record = describe_run() | sections
    write_file(Path(path), json.dumps(record, indent=2, ensure_ascii=False, default=convert) + "\n")
