"""Render the numbers of `docs/calibration.md`: `python -m sdiareward.cards.render_calibration`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file

from .render import render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "calibration.md"
RESULT = _ROOT / "benchmarks" / "results" / "calibration.json"
_METHODS = {
    "reward": "reward",
    "by_subset": "offset and temperature",
    "one_table": "one table of quantiles",
    "by_quantile": "a table for each criterion",
    "left_out": "the same, target left out",
}


def render_guide(guide: str, result: Path = RESULT) -> str:
    """Return the guide with its numbers taken from the result file.

    Args:
        guide (`str`): Text with the blocks `data`, `transfer` and `common`.
        result (`Path`): What `benchmarks.calibration` wrote.
    """
    found = json.loads(result.read_text(encoding="utf-8"))
    return render_readme(guide, {"data": _data(found), "transfer": _transfer(found), "common": _common(found)})


def _data(found: Mapping[str, Any]) -> str:
    lines = ["| subset | pairs | recordings | median chosen | median rejected |", "|---|--:|--:|--:|--:|"]
    for name, medians in found["median_reward"].items():
        counts = f"{found['num_pairs'][name]} | {found['num_groups'][name]}"
        lines.append(f"| {name} | {counts} | {medians['chosen']:+.2f} | {medians['rejected']:+.2f} |")
    return "\n".join(lines)


def _transfer(found: Mapping[str, Any]) -> str:
    lines = [f"| threshold of | applied to | {' | '.join(_METHODS.values())} |", f"|---|---|{'--:|' * len(_METHODS)}"]
    subsets = list(found["own"])
    for source in subsets:
        for target in subsets:
            losses = [100 * found["methods"][method]["transfer"][source][target] for method in _METHODS]
            lines.append(f"| {source} | {target} | {' | '.join(f'{loss:.1f}' for loss in losses)} |")
    for target in subsets:
        means = [100 * found["methods"][method]["mean_loss_to"][target] for method in _METHODS]
        lines.append(f"| mean of the others | {target} | {' | '.join(f'{mean:.1f}' for mean in means)} |")
    means = [found["methods"][method]["mean_loss"] for method in _METHODS]
    ranges = [found["methods"][method]["range_of_mean_loss"] for method in _METHODS]
    lines.append(f"| **mean of the others** | **all** | {' | '.join(f'**{100 * mean:.1f}**' for mean in means)} |")
    spans = " | ".join(f"{100 * low:.1f} to {100 * high:.1f}" for low, high in ranges)
    lines.append(f"| over {found['settings']['seeds']} splits | all | {spans} |")
    return "\n".join(lines)


def _common(found: Mapping[str, Any]) -> str:
    subsets = list(found["own"])
    lines = [f"| threshold | {' | '.join(subsets)} | mean |", f"|---|{'--:|' * (len(subsets) + 1)}"]
    lines.append(_row("the best for the tested pairs, by subset", found["best"]))
    lines.append(_row("its own, by subset", found["own"]))
    for method, title in _METHODS.items():
        lines.append(_row(f"one for all, {title}", found["methods"][method]["common"]))
    for method, title in _METHODS.items():
        lines.append(_row(f"not fitted, {title}", found["methods"][method]["fixed"]))
    return "\n".join(lines)


def _row(title: str, accuracies: Mapping[str, float]) -> str:
    values = [100 * value for value in accuracies.values()]
    return f"| {title} | {' | '.join(f'{value:.1f}' for value in [*values, sum(values) / len(values)])} |"


if __name__ == "__main__":
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))
