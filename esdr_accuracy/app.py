"""The metric's Space: enter the rewards of some pairs and get the accuracies.

`evaluate.utils.launch_gradio_widget` needs Gradio 3 (`gr.inputs`), so this module builds the page.
"""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any


_FOLDER = Path(__file__).resolve().parent
_INPUTS = ("chosen", "rejected", "subset")
_HEADS = ["column", "accuracy", "95% interval", "pairs", "groups", "ties"]


def compute_rows(metric: Any, rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Compute the table for the entered pairs; empty rows are skipped."""
    pairs = []
    for number, row in enumerate((row for row in rows if any(cell not in ("", None) for cell in row)), start=1):
        try:
            pairs.append((float(row[0]), float(row[1]), str(row[2]).strip()))
        except (TypeError, ValueError) as error:
            raise ValueError(f"pair {number}: {error}; give two numeric rewards and a subset.") from error
    result = metric.compute(**{name: [pair[place] for pair in pairs] for place, name in enumerate(_INPUTS)})
    table = []
    for name, bounds in result["interval"].items():
        interval = f"{bounds[0]:.4f} to {bounds[1]:.4f}" if bounds else "" if result[name] is None else "no interval"
        accuracy = "no pairs" if result[name] is None else f"{result[name]:.4f}"
        counts = [str(result[count][name]) for count in ("num_pairs", "num_groups", "num_ties")]
        table.append([name, accuracy, interval, *counts])
    return table


def build() -> Any:
    import evaluate
    import gradio as gr

    cases = runpy.run_path(str(_FOLDER / "tests.py"))["TEST_CASES"]
    metric = evaluate.load(str(_FOLDER / "esdr_accuracy.py"))

    def compute(rows: list[list[Any]]) -> list[list[str]]:
        try:
            return compute_rows(metric, rows)
        except (ValueError, TypeError) as error:
            raise gr.Error(str(error)) from error

    kinds: Any = ["number", "number", "str"]
    return gr.Interface(
        fn=compute,
        inputs=gr.Dataframe(headers=list(_INPUTS), datatype=kinds, type="array", label="Pairs", row_count=3),
        outputs=gr.Dataframe(headers=_HEADS, label="Accuracy"),
        examples=[[list(map(list, zip(*case["columns"].values(), strict=True)))] for case in cases],
        cache_examples=False,
        title="ESDR accuracy",
        article=(_FOLDER / "README.md").read_text(encoding="utf-8").split("\n---\n", 1)[1],
        flagging_mode="never",
        analytics_enabled=False,
    )


if __name__ == "__main__":
    build().launch()
