"""JSONL files of scenarios, files that a language model writes line by line, and the limit of its failures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sdiareward.common.files import JsonLines, split_lines
from sdiareward.common.llm import EndpointError


_Scenario = TypeVar("_Scenario")
# Before this number of questions a share of failures has no meaning.
_FEWEST_ASKED = 20


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
    file = JsonLines(Path(path), is_edited=True)
    file.path.parent.mkdir(parents=True, exist_ok=True)
    rows = file.read()
    for number, row in enumerate(rows, start=1):
        if other := {name: row.get(name) for name, value in writer.items() if row.get(name) != value}:
            wanted = {name: writer[name] for name in other}
            raise ValueError(f"{path}, line {number}: was written with {other}, not {wanted}; use another file.")
    return file, rows


@dataclass
class FailureLimit:
    """Stop a run whose model fails on more than a share of the questions."""

    max_failed: float
    asked: str  # Who failed at what, for the message: "the judge failed on {} pairs".
    setting: str  # Name of the setting of `max_failed`.
    num_asked: int = 0
    reasons: list[str] = field(default_factory=list)

    def count(self, failure: str | None) -> None:
        """Count a question and the reason if it failed; raise `EndpointError` above the limit."""
        self.num_asked += 1
        self.reasons += [] if failure is None else [failure]
        if self.num_asked >= _FEWEST_ASKED:
            self.require_few()

    def require_few(self) -> None:
        """Check all questions of a run that has ended, however few."""
        if len(self.reasons) > self.max_failed * self.num_asked:
            failed = self.asked.format(f"{len(self.reasons)} of {self.num_asked}")
            raise EndpointError(
                f"{failed}, the first time with: {self.reasons[0]} At most {self.max_failed:.0%} may fail "
                f"({self.setting}); mend the endpoint's settings and run the same command: answers are kept."
            )
