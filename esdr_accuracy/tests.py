"""Cases to check by hand; `python tests.py` runs them, and the Space shows them as examples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


# A tie is wrong; a macro average uses the subsets that are present.
TEST_CASES: list[dict[str, Any]] = [
    {
        "columns": {"chosen": [2.0, 1.0, 0.5], "rejected": [1.0, 1.0, 0.0], "subset": ["wild", "wild", "scripted"]},
        "result": {"wild": 0.5, "scripted": 1.0, "modality_micro": 2 / 3, "modality_macro": 0.75, "semi_wild": None},
    },
    {
        "columns": {
            "chosen": [1.2, 0.3, 0.9, -0.1],
            "rejected": [0.1, 0.5, 0.2, -0.4],
            "subset": ["wild", "semi_wild", "scripted", "colloquialness"],
        },
        "result": {"modality_micro": 2 / 3, "colloquialness": 1.0, "overall_micro": 0.75, "overall_macro": 5 / 6},
    },
    {
        "columns": {"chosen": [0.0], "rejected": [0.0], "subset": ["colloquialness"]},
        "result": {"colloquialness": 0.0, "overall_micro": 0.0, "modality_micro": None},
    },
]


def find_failures(metric: Any) -> list[str]:
    found = []
    for number, case in enumerate(TEST_CASES):
        result = metric.compute(**case["columns"])
        for name, expected in case["result"].items():
            value = result[name]
            if (value is None) != (expected is None) or (value is not None and abs(value - expected) > 1e-12):
                found.append(f"case {number}: {name} is {value}, not {expected}")
    return found


if __name__ == "__main__":
    import evaluate

    if found := find_failures(evaluate.load(str(Path(__file__).with_name("esdr_accuracy.py")))):
        sys.exit("\n".join(found))
