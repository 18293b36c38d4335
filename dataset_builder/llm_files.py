"""JSONL files of scenarios, and JSONL files that a language model writes line by line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sdiareward.common.files import JsonLines, split_lines


_Scenario = TypeVar("_Scenario")


def read_scenario_lines(path: Path, make: Callable[[Any], _Scenario]) -> list[_Scenario]:
    scenarios: list[Any] = []
    for number, line in enumerate(split_lines(path.read_text(encoding="utf-8")), start=1):
        try:
            scenarios.append(make(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    counts = Counter(scenario.scenario_id for scenario in scenarios)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"{path}: scenario_id {twice[:5]} comes more than once; give each scenario its own.")
    return scenarios


def open_written(path: str | Path, writer: Mapping[str, Any]) -> tuple[JsonLines, list[dict[str, Any]]]:
    """Open a file to append to; return it and the rows of an earlier run, which must have the same `writer`."""
    file = JsonLines(Path(path))
    file.path.parent.mkdir(parents=True, exist_ok=True)
    rows = file.read()
    for number, row in enumerate(rows, start=1):
        if other := {name: row.get(name) for name, value in writer.items() if row.get(name) != value}:
            wanted = {name: writer[name] for name in other}
            raise ValueError(f"{path}, line {number}: was written with {other}, not {wanted}; use another file.")
    return file, rows
