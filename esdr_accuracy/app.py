"""The metric's Space: type the rewards of some pairs, see the accuracies.

`evaluate.utils.launch_gradio_widget` needs Gradio 3 (`gr.inputs`), so the page is made here.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


_FOLDER = Path(__file__).resolve().parent
_INPUTS = ("chosen", "rejected", "subset")
_HEADS = ("column", "accuracy", "95% interval", "pairs", "groups", "ties")
_COLUMNS = (
    "wild",
    "semi_wild",
    "scripted",
    "modality_micro",
    "modality_macro",
    "colloquialness",
    "overall_micro",
    "overall_macro",
)


def to_table(result: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name in _COLUMNS:
        accuracy, bounds = result[name], result["interval"][name]
        rows.append(
            [
                name,
                "no pairs" if accuracy is None else f"{accuracy:.4f}",
                f"{bounds[0]:.4f} to {bounds[1]:.4f}" if bounds else "" if accuracy is None else "no interval",
                str(result["num_pairs"][name]),
                str(result["num_groups"][name]),
                str(result["num_ties"][name]),
            ]
        )
    return rows


def compute_rows(metric: Any, rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Compute the table of the entered pairs; empty rows are skipped."""
    filled = [row for row in rows if any(cell not in ("", None) for cell in row)]
    for number, row in enumerate(filled, start=1):
        if any(cell in ("", None) for cell in row):
            raise ValueError(f"pair {number}: has an empty cell; it needs {', '.join(_INPUTS)}.")
    columns: dict[str, list[Any]] = {name: [row[index] for row in filled] for index, name in enumerate(_INPUTS)}
    for name in ("chosen", "rejected"):
        columns[name] = [_parse_number(value, name) for value in columns[name]]
    columns["subset"] = [str(value).strip() for value in columns["subset"]]
    return to_table(metric.compute(**columns))


def _parse_number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}; a reward is a number.") from None


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

    card = (_FOLDER / "README.md").read_text(encoding="utf-8")
    examples = [[list(map(list, zip(*(case[name] for name in _INPUTS), strict=True)))] for case in cases]
    return gr.Interface(
        fn=compute,
        inputs=gr.Dataframe(
            headers=list(_INPUTS), datatype=["number", "number", "str"], type="array", label="Pairs", row_count=3
        ),
        outputs=gr.Dataframe(headers=list(_HEADS), label="Accuracy"),
        examples=examples,
        cache_examples=False,
        title="ESDR accuracy",
        article=card.split("\n---\n", 1)[1],
        flagging_mode="never",
        analytics_enabled=False,
    )


if __name__ == "__main__":
    build().launch()
