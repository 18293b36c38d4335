"""Record arguments, versions, machine and git revision beside a result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from .files import write_file
from .package_files import PACKAGE


_DISTRIBUTIONS = ("sdiareward", "torch", "transformers", "trl", "datasets", "numpy", "scikit-learn")


def describe_run() -> dict[str, Any]:
    return {
        "versions": {name: _find_version(name) for name in _DISTRIBUTIONS},
        "python": platform.python_version(),
        "machine": {"processor": platform.machine(), "num_cores": os.cpu_count()},
        "git_revision": _read_git_revision(),
    }


def write_provenance(path: str | Path, **sections: Any) -> None:
    """Write `describe_run` and further sections as JSON, atomically; dataclasses field by field."""
    record = {**describe_run(), **{name: _convert_value(value) for name, value in sections.items()}}
    write_file(Path(path), json.dumps(record, indent=2, ensure_ascii=False, default=str) + "\n")


def _convert_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else value


def _find_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _read_git_revision() -> str | None:
    """Return the revision of this checkout; None for an installed package, also one inside a repository."""
    command = ["git", "-C", str(PACKAGE), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    return found[1] if Path(found[0]).samefile(PACKAGE) else None
