"""Keep what scoring a data set finds: records in `partial/` while it runs, at the end a table in order of the rows.

A record of a row that was scored is `{"row", "rewards", "audio_s", "num_cut"}`, of one that was skipped
`{"row", "reason"}`. Each block of rows has a JSON lines file of its own, so that no two processes write to one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.common.files import JsonLines, write_file
from sdiareward.pairs.rows import ID_COLUMNS, Rows
from sdiareward.pairs.schema import SIDES


Record = dict[str, Any]
_ROWS_WRITTEN_AT_ONCE = 65_536


@dataclass
class Summary:
    """What became of the rows, by all runs in a folder, and by the last one.

    Args:
        num_rows, num_scored, num_skipped (`int`): Rows that were to be scored, that were, and that could not be.
        num_cut (`int`): Turns of which the model heard the beginning only.
        audio_s (`float`): Seconds that the model heard.
        num_new (`int`): Rows that the last run scored.
        new_audio_s, seconds (`float`): Seconds that the model heard in the last run, and how long that took.
    """

    num_rows: int
    num_scored: int
    num_skipped: int
    num_cut: int
    audio_s: float
    num_new: int
    new_audio_s: float
    seconds: float

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of computing for a second of audio, in the last run; lower is better."""
        return self.seconds / self.new_audio_s if self.new_audio_s else None


class Results:
    """What is known of each row: a few numbers, and the reason where it was skipped.

    Args:
        folder (`Path`): The run's folder; its records are read.
        num_rows (`int`): Rows to score, from the first on.
        sides (`tuple[str, ...]`): The columns that hold dialogues.

    Raises:
        ValueError: A record is not JSON.
    """

    def __init__(self, folder: Path, num_rows: int, sides: tuple[str, ...]):
        self.folder = folder
        self.num_rows = num_rows
        self.sides = sides
        self.rewards = np.full((num_rows, len(sides)), np.nan)
        self.audio_s = np.zeros(num_rows)
        self.num_cut = np.zeros(num_rows, dtype=np.int64)
        self.reasons: dict[int, str] = {}
        for path in sorted(self._partial.glob("*.jsonl")):
            self.add(JsonLines(path).read())

    @property
    def _partial(self) -> Path:
        return self.folder / "partial"

    def add(self, records: Iterable[Record]) -> None:
        """Take in records. The first rewards of a row stand; a row that has some is not skipped."""
        for record in records:
            row = record["row"]
            if row >= self.num_rows or not np.isnan(self.rewards[row, 0]):
                continue
            if "reason" in record:
                self.reasons[row] = record["reason"]
                continue
            self.reasons.pop(row, None)
            self.rewards[row] = record["rewards"]
            self.audio_s[row], self.num_cut[row] = record["audio_s"], record["num_cut"]

    @property
    def is_scored(self) -> np.ndarray:
        """Which rows have rewards, a boolean for each."""
        return ~np.isnan(self.rewards[:, 0])

    def pending_blocks(self, block_rows: int, rank: int = 0, num_ranks: int = 1) -> list[np.ndarray]:
        """Return the numbers of the rows that one of several processes has to score, by blocks.

        Neighbours stay together, so that each process reads its own part of the files.
        """
        pending = np.array_split(np.flatnonzero(~self.is_scored), num_ranks)[rank]
        return [pending[start : start + block_rows] for start in range(0, pending.size, block_rows)]

    def log(self, numbers: Sequence[int] | np.ndarray) -> JsonLines:
        """Return the file for the records of a block, which is no other block's."""
        self._partial.mkdir(parents=True, exist_ok=True)
        return JsonLines(self._partial / f"{numbers[0]:010d}.jsonl")


def write_results(results: Results, rows: Rows) -> None:
    """Write `scores.parquet` and `skipped.jsonl`, each row in one of them, in the order of the rows.

    Args:
        results ([`Results`]): Of every row.
        rows (`Rows`): The data set, for the ids of its rows.

    Raises:
        ValueError: A row is neither scored nor skipped.
    """
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
    """Say what became of the rows.

    Args:
        before ([`Results`]): What was known before the run.
        after ([`Results`]): What is known now.
        seconds (`float`): How long it scored.
    """
    num_scored, audio_s = int(after.is_scored.sum()), float(after.audio_s.sum())
    num_new, new_audio_s = num_scored - int(before.is_scored.sum()), audio_s - float(before.audio_s.sum())
    counts = (after.num_rows, num_scored, len(after.reasons), int(after.num_cut.sum()))
    return Summary(*counts, audio_s, num_new, new_audio_s, seconds)


def _write_table(results: Results, rows: Rows, id_column: str | None, numbers: np.ndarray) -> None:
    """Write the rows that were scored, a part at a time."""
    import pyarrow.parquet as pq

    path = results.folder / "scores.parquet"
    unfinished = path.with_name(f".{path.name}.tmp")
    writer = None
    for start in range(0, max(numbers.size, 1), _ROWS_WRITTEN_AT_ONCE):
        table = _table(results, rows, id_column, numbers[start : start + _ROWS_WRITTEN_AT_ONCE])
        writer = writer or pq.ParquetWriter(unfinished, table.schema)
        writer.write_table(table)
    if writer:
        writer.close()
    unfinished.replace(path)


def _table(results: Results, rows: Rows, id_column: str | None, numbers: np.ndarray) -> Any:
    """Return the table of these rows: number, id, rewards and, of a pair, the margin."""
    import pyarrow as pa

    columns: dict[str, Any] = {"row": numbers}
    if id_column:
        columns[id_column] = rows.read(numbers, [id_column])[id_column]
    rewards = results.rewards[numbers]
    if results.sides == SIDES:
        columns |= dict(zip(SIDES, rewards.T, strict=True))
        columns["margin"] = rewards[:, 0] - rewards[:, 1]
    else:
        columns["reward"] = rewards[:, 0]
    return pa.table(columns)
