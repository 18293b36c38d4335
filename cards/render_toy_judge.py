"""Render what a nano judge learnt: `python -m sdiareward.cards.render_toy_judge` renders `docs/wavreward.md`.

All numbers come from the result of `benchmarks.toy_judge`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_table
from sdiareward.evaluation.summary import percent

from .render import render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "wavreward.md"
RESULT = _ROOT / "benchmarks" / "results" / "toy_judge.json"


def render_guide(guide: str, result: Path = RESULT) -> str:
    """Return the guide with its curve taken from the result file.

    Args:
        guide (`str`): Text with the block `toy`.
        result (`Path`): What `benchmarks.toy_judge` wrote.
    """
    return render_readme(guide, {"toy": render_curve(json.loads(result.read_text(encoding="utf-8")))})


def render_curve(result: Mapping[str, Any]) -> str:
    """Return the curve as a table, and how it came about.

    Args:
        result (`Mapping`): What `benchmarks.toy_judge` wrote.
    """
    rows = [
        [str(point["step"]), percent(point["accuracy"]), percent(point["format"]), f"{point['seconds']:.0f}"]
        for point in result["curve"]
    ]
    table = "\n".join(render_table(["GRPO steps", "right scores", "exact form", "s"], rows, num_left=0))
    minutes = result["total_s"] / 60
    cpu = result["cpu"]
    return (
        f"{table}\n\nPercent of {result['num_test_samples']} held-out clips, answered greedily. Trained on "
        f"{result['num_train_samples']} clips; {minutes:.1f} minutes in all, {result['warm_up_s'] / 60:.1f} of them "
        f"for clips and warm start; {cpu['name']}, {cpu['torch_threads']} threads."
    )


def main() -> None:
    """Render the guide."""
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
