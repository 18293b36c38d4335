"""Run `sdiareward doctor` on the nano checkpoint, and keep what the invariants measured and how long it all took.

    python -m benchmarks.doctor

The facts about this machine are not kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import racing
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.provenance import write_provenance


RESULT = racing.ROOT / "benchmarks" / "results" / "doctor_nano.json"
_SECTION = "invariants"
_FIELDS = ("name", "status", "seconds", "measured", "limit")


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> None:
    """Run the benchmark from the command line."""
    output = parse_arguments((Arguments,), None, prog="python -m benchmarks.doctor", description=__doc__)[0].output
    write_provenance(output, cpu=racing.describe_cpu(), **examine())
    print(output.read_text(encoding="utf-8"))


def examine() -> dict[str, Any]:
    """Return the seconds of a whole examination, its checks by status, and the invariants."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", "sdiareward.cli", "doctor", "--offline", "--output", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return summarise(json.loads(path.read_text(encoding="utf-8")))


def summarise(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an examination that is not about this machine alone.

    Args:
        found (`Mapping`): The file of `--output`.
    """
    invariants = [{name: check[name] for name in _FIELDS} for check in found["checks"] if check["section"] == _SECTION]
    return {"seconds": found["seconds"], "counts": found["counts"], "invariants": invariants}


if __name__ == "__main__":
    main()
