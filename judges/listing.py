"""List the judges of a file of judges."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(kw_only=True)
class ListArguments:
    judges_file: Path | None = field(
        default=None, metadata={"help": "YAML of judges (default: configs/judges.yaml of the package)"}
    )


def run(args: ListArguments) -> None:
    from sdiareward.common.settings import read_mapping, require_mapping

    from .settings import JUDGES_FILE

    path = args.judges_file or JUDGES_FILE
    judges = read_mapping(path)
    width = max(map(len, map(str, judges)), default=0)
    for name, settings in judges.items():
        require_mapping(settings, f"{path}: {name}")
        shown = f"{name!s:<{width}}  {settings.get('backend', '')}  {settings.get('model', '')}"
        sys.stdout.write(f"{shown.rstrip()}\n")
