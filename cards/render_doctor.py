"""Render the table of `docs/doctor.md` from `benchmarks/results`: `python -m sdiareward.cards.render_doctor`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_table

from .render import not_measured, render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "doctor.md"
RESULT = _ROOT / "benchmarks" / "results" / "doctor_nano.json"


def render_guide(guide: str, result: Path = RESULT) -> str:
    """Return the guide with its table taken from the result file.

    Args:
        guide (`str`): Text with the block `measured`.
        result (`Path`): What `benchmarks.doctor` wrote; perhaps nothing yet.
    """
    found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else None
    return render_readme(guide, {"measured": not_measured("doctor") if found is None else _describe(found)})


def _describe(found: Mapping[str, Any]) -> str:
    rows = [
        [
            check["name"],
            *(f"{check[name]:.1e}" if check[name] is not None else "-" for name in ("measured", "limit")),
            check["status"],
            f"{check['seconds']:.1f}",
        ]
        for check in found["invariants"]
    ]
    table = "\n".join(render_table(["invariant", "difference", "limit", "status", "seconds"], rows))
    counts = ", ".join(f"{count} {status}" for status, count in found["counts"].items() if count)
    cpu = found["cpu"]
    machine = f"{cpu['name']}, {cpu['usable_cores']} cores"
    return f"{table}\n\nThe whole command, {counts}: {found['seconds']:.1f} s; {machine}."


def main() -> None:
    """Render the guide."""
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
