"""Keep the scores of a data set: records in `partial/` during the run, then one table in the order of the rows.

The record of a scored row has its `rewards`, what `engine.describe_heard` returns, and `content` and `files` as
`changes` needs them; that of a skipped row is `{"row", "kind", "reason"}`. Each process writes to its own JSON lines
file, named after its first row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.common.files import JsonLines, is_number, replace_atomically, write_file
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.rows import Rows
from sdiareward.pairs.schema import ID_COLUMNS, SIDES

from .engine import Outcome, Record, Session


QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
_PARTIAL = "partial"
_NUM_REASONS = 3
_ROWS_WRITTEN_AT_ONCE = 65_536


@dataclass
class Summary:
    """The rows and rewards of all runs in a folder; `num_new`, `new_audio_s` and `seconds` are of the last run."""

    num_rows: int
    num_scored: int
    num_skipped: int
    num_cut: int  # Turns that the model heard only the beginning of.
    given_s: float
    audio_s: float  # That the model heard.
    num_new: int
    new_audio_s: float
    seconds: float
    rewards: dict[str, dict[str, float]] = field(default_factory=dict)
    num_right: int | None = None  # Of pairs; a tie is not right.
    num_ties: int | None = None
    num_silent: int = 0
    silent_turns: list[str] = field(default_factory=list)  # The first ones.
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of computing for a second of audio, in the last run; lower is better."""
        return self.seconds / self.new_audio_s if self.new_audio_s else None


class Results:
    def __init__(self, folder: Path, num_rows: int, sides: tuple[str, ...], drawn: Sequence[int] | None = None):
        self.folder = folder
        self.sides = sides
        self.drawn = drawn
        self.is_wanted = np.full(num_rows, drawn is None)
        if drawn is not None:
            self.is_wanted[drawn] = True
        self.rewards = np.full((num_rows, len(sides)), np.nan)
        self.given_s, self.heard_s = np.zeros(num_rows), np.zeros(num_rows)
        self.num_cut = np.zeros(num_rows, dtype=np.int64)
        self.silent_turns: dict[int, list[str]] = {}
        self.reasons: dict[int, str] = {}
        for path in list_logs(folder):
            self.add(iter_records(path, len(sides)))

    def add(self, records: Iterable[Record]) -> None:
        """Take in records; the first rewards of a row count, also where it was skipped before or after."""
        for record in records:
            row = record["row"]
            if row >= self.is_wanted.size or not self.is_wanted[row] or not np.isnan(self.rewards[row, 0]):
                continue
            if "reason" in record:
                self.reasons[row] = record["reason"]
                continue
            self.reasons.pop(row, None)
            self.rewards[row] = record["rewards"]
            self.given_s[row], self.heard_s[row] = record["given_s"], record["heard_s"]
            self.num_cut[row] = record["num_cut"]
            if record["silent_turns"]:
                self.silent_turns[row] = record["silent_turns"]

    @property
    def num_rows(self) -> int:
        return int(self.is_wanted.sum())

    @property
    def is_scored(self) -> np.ndarray:
        return ~np.isnan(self.rewards[:, 0])

    def find_pending(self, rank: int = 0, num_ranks: int = 1) -> np.ndarray:
        """Return the rows that one process has to score: neighbours, so that it reads its own part of the files."""
        return np.array_split(np.flatnonzero(self.is_wanted & ~self.is_scored), num_ranks)[rank]

    def open_log(self, pending: np.ndarray) -> PartialLog:
        return PartialLog(self.folder / _PARTIAL / f"{pending[0] if pending.size else 0:010d}.jsonl")


def list_logs(folder: Path) -> list[Path]:
    return sorted((folder / _PARTIAL).glob("*.jsonl"))


def iter_records(path: Path, num_sides: int) -> Iterator[Record]:
    for number, record in enumerate(JsonLines(path), start=1):
        if not _is_record(record, num_sides):
            raise ValueError(f"{path}, line {number}: is no record of a row with {num_sides} rewards; remove it.")
        yield record


def _is_record(record: Record, num_sides: int) -> bool:
    if type(record.get("row")) is not int or record["row"] < 0:
        return False
    if "reason" in record:
        return isinstance(record["reason"], str)
    rewards = record.get("rewards")
    is_scored = isinstance(rewards, list) and len(rewards) == num_sides and all(map(is_number, rewards))
    has_heard = all(is_number(record.get(name)) for name in ("given_s", "heard_s", "num_cut"))
    return is_scored and has_heard and isinstance(record.get("silent_turns"), list)


class PartialLog:
    def __init__(self, path: Path):
        self._lines = JsonLines(path)

    def add(self, item: int, outcome: Outcome) -> None:
        self._lines.path.parent.mkdir(parents=True, exist_ok=True)
        found = {"kind": outcome.kind, "reason": outcome.reason} if isinstance(outcome, Skipped) else outcome
        self._lines.append([{"row": item, **found}])

    def end(self, session: Session) -> None:
        """Keep nothing: the summary of the run has the time."""


def write_results(results: Results, rows: Rows) -> None:
    """Write `scores.parquet` and `skipped.jsonl`, each row in one of them, in the order of the rows."""
    numbers = np.flatnonzero(results.is_scored)
    num_missing = results.num_rows - numbers.size - len(results.reasons)
    if num_missing:
        raise ValueError(f"{results.folder}: {num_missing} rows have no result; run the same command again.")
    id_column = next((name for name in ID_COLUMNS if name in rows.features), None)
    _write_table(results, rows, id_column, numbers)
    skipped = sorted(results.reasons)
    records: list[Record] = [{"row": row, "reason": results.reasons[row]} for row in skipped]
    if id_column:
        ids = rows.read(skipped, [id_column])[id_column].to_pylist()
        records = [{**record, id_column: each} for record, each in zip(records, ids, strict=True)]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_file(results.folder / "skipped.jsonl", text)


def summarise(before: Results, after: Results, seconds: float) -> Summary:
    num_scored, audio_s = int(after.is_scored.sum()), float(after.heard_s.sum())
    num_new, new_audio_s = num_scored - int(before.is_scored.sum()), audio_s - float(before.heard_s.sum())
    silent = [f"row {row} {turn}" for row, turns in sorted(after.silent_turns.items()) for turn in turns]
    counts = (after.num_rows, num_scored, len(after.reasons), int(after.num_cut.sum()))
    rewards = name_rewards(after, np.flatnonzero(after.is_scored))
    margins = rewards.get("margin")
    return Summary(
        *counts,
        float(after.given_s.sum()),
        audio_s,
        num_new,
        new_audio_s,
        seconds,
        {name: _describe_values(values) for name, values in rewards.items()} if num_scored else {},
        None if margins is None else int((margins > 0).sum()),
        None if margins is None else int((margins == 0).sum()),
        len(silent),
        silent[:_NUM_REASONS],
        {row: after.reasons[row] for row in sorted(after.reasons)[:_NUM_REASONS]},
    )


def _describe_values(values: np.ndarray) -> dict[str, float]:
    quantiles = {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}
    return {"mean": float(values.mean()), **quantiles}


def name_rewards(results: Results, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Return the rewards of some rows by column: `chosen`, `rejected` and `margin` of pairs, else `reward`."""
    rewards = results.rewards[numbers]
    if results.sides != SIDES:
        return {"reward": rewards[:, 0]}
    return {**dict(zip(SIDES, rewards.T, strict=True)), "margin": rewards[:, 0] - rewards[:, 1]}


def _write_table(results: Results, rows: Rows, id_column: str | None, numbers: np.ndarray) -> None:
    import pyarrow.parquet as pq

    path = results.folder / "scores.parquet"
    tables = (
        _make_table(results, rows, id_column, numbers[start : start + _ROWS_WRITTEN_AT_ONCE])
        for start in range(0, max(numbers.size, 1), _ROWS_WRITTEN_AT_ONCE)
    )
    first = next(tables)
    with replace_atomically(path) as temporary, pq.ParquetWriter(temporary, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _make_table(results: Results, rows: Rows, id_column: str | None, numbers: np.ndarray) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {"row": numbers}
    if id_column:
        columns[id_column] = rows.read(numbers, [id_column])[id_column]
    heard = {name: getattr(results, name)[numbers] for name in ("given_s", "heard_s", "num_cut")}
    silent = pa.array([results.silent_turns.get(row, []) for row in numbers.tolist()], pa.list_(pa.string()))
    return pa.table({**columns, **name_rewards(results, numbers), **heard, "silent_turns": silent})
