"""Render the table of `docs/faults.md` from `benchmarks/results`: `python -m sdiareward.cards.render_faults`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_table

from .render import not_measured, render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "faults.md"
RESULT = _ROOT / "benchmarks" / "results" / "faults.json"


def render_guide(guide: str, result: Path = RESULT) -> str:
    """Return the guide with its table taken from the result file.

    Args:
        guide (`str`): Text with the block `faults`.
        result (`Path`): What `benchmarks.faults` wrote; perhaps nothing yet.
    """
    if not result.exists():
        return render_readme(guide, {"faults": not_measured("faults")})
    found = json.loads(result.read_text(encoding="utf-8"))["result"]
    commands = found["commands"]
    signals = ", ".join(f"{name} {count} times" for name, count in found["num_signalled"].items())
    said = f"Sent to a running process: {signals}. Numbers count as equal within {found['tolerance']:g}."
    return render_readme(guide, {"faults": f"{_table(commands)}\n\n{_outcomes(commands)} {said}"})


def _table(commands: dict[str, Any]) -> str:
    """Return how many trials of each command under each fault were right, of how many."""
    faults = list(dict.fromkeys(fault for cells in commands.values() for fault in cells))
    rows = []
    for fault in faults:
        cells = [found.get(fault) for found in commands.values()]
        rows.append([fault, *(f"{cell['num_right']} of {cell['num_trials']}" if cell else "" for cell in cells)])
    return "\n".join(render_table(["", *commands], rows))


def _outcomes(commands: dict[str, Any]) -> str:
    """Return how often a trial went which way, over all of them."""
    counts: Counter[str] = Counter()
    for cells in commands.values():
        for cell in cells.values():
            counts.update(cell["outcomes"])
    listed = "; ".join(f"{outcome}: {count}" for outcome, count in counts.most_common())
    return f"First run and what came of the second, over all {sum(counts.values())} trials: {listed}."


def main() -> None:
    """Render the guide."""
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
