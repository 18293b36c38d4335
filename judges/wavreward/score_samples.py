"""Read samples to evaluate a judge on: ChatReward, or a custom folder of recordings with a list of scores.

RealDialogue, the out-of-domain set of the paper, is not published. A custom folder replaces it: recordings of
question, silence and answer, as in ChatReward, and `scores.csv` or `scores.jsonl` with `file`, `score` and, if known,
`scenario_id`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import split_lines

from .answers import SCORES
from .score_metrics import find_column


if TYPE_CHECKING:
    import datasets

LABELS = ("sample_id", "scenario_id", "part", "attribute", "category", "score", "duration_s")
_REQUIRED = ("file", "score")
_LIST_SUFFIXES = (".csv", ".jsonl")

Labels = list[dict[str, Any]]


class Samples(Sequence[Any]):
    """Samples with their labels in memory and their recordings read on access."""

    def __init__(self, rows: datasets.Dataset):
        self.rows = rows
        self.labels: Labels = rows.select_columns(list(LABELS)).to_list()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    @property
    def has_texts(self) -> bool:
        """Whether the texts and durations of question and answer are known, as in ChatReward."""
        return {"question", "response"} <= set(self.rows.column_names)

    def take_first(self, limit: int | None) -> Samples:
        return self if limit is None else Samples(self.rows.take(min(limit, len(self))))

    def find_rows(self, sample_ids: Sequence[str]) -> dict[str, int]:
        rows = {label["sample_id"]: row for row, label in enumerate(self.labels)}
        if missing := [sample_id for sample_id in sample_ids if sample_id not in rows]:
            raise ValueError(
                f"{len(missing)} of {len(sample_ids)} samples are not in the data, such as {missing[0]!r}; give the "
                "data set and split that were evaluated."
            )
        return rows


def read_samples(path: str | Path, split: str) -> Samples:
    from sdiareward.dataset_builder.chatreward.loading import load_samples

    samples = Samples(load_samples(path, split))
    for label in samples.labels:
        _check_score(label["score"], f"{path}, split {split}, sample {label['sample_id']}")
        find_column(label)
    _check_ids(samples.labels, f"{path}, split {split}")
    return samples


def read_out_of_domain(path: str | Path, split: str) -> Samples:
    """Read out-of-domain samples: recordings with a list of scores, or another data set in the form of ChatReward."""
    import datasets

    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder of recordings.")
    lists = sorted(entry for entry in folder.iterdir() if entry.suffix in _LIST_SUFFIXES)
    if not lists:
        return read_samples(folder, split)
    if len(lists) > 1:
        raise ValueError(f"{folder}: holds several lists ({', '.join(map(str, lists))}); leave one.")
    rows = [_read_entry(entry, f"{lists[0]}, entry {number}", folder) for number, entry in _read_entries(lists[0])]
    if not rows:
        raise ValueError(f"{lists[0]}: lists no recording; give at least one line of file and score.")
    _check_ids(rows, str(lists[0]))
    return Samples(datasets.Dataset.from_list(rows))


def _read_entries(path: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the entries of a list with their numbers, from 1."""
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        # `str.splitlines` would also split at line separators within a text.
        try:
            return list(enumerate(csv.DictReader(io.StringIO(text, newline="")), start=1))
        except csv.Error as error:
            raise ValueError(
                f"{path}: not CSV ({error}); give a line of file and score for each recording."
            ) from error
    entries: list[tuple[int, Mapping[str, Any]]] = []
    for number, line in enumerate(split_lines(text), start=1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path}, entry {number}: not JSON ({error}); give an object with file, score."
            ) from error
        if not isinstance(entry, dict):
            raise ValueError(f"{path}, entry {number}: holds {type(entry).__name__}; give an object with file, score.")
        entries.append((number, entry))
    return entries


def _read_entry(entry: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    from sdiareward.audio_sdiareward import audio_duration_s

    if missing := [column for column in _REQUIRED if entry.get(column) in (None, "")]:
        raise ValueError(f"{name}: has no {' and no '.join(missing)}; each recording needs file and score.")
    file = str(entry["file"])
    if not (folder / file).is_file():
        raise FileNotFoundError(f"{name}: {folder / file} does not exist; give paths from the list's folder.")
    return {
        "sample_id": file,
        "scenario_id": None if entry.get("scenario_id") in (None, "") else str(entry["scenario_id"]),
        "part": None,
        "attribute": None,
        "category": None,
        "score": _check_score(_as_number(entry["score"]), name),
        "duration_s": audio_duration_s(folder / file),
        "audio": {"bytes": None, "path": str(folder / file)},
    }


def _as_number(value: Any) -> Any:
    """Convert a whole number in a CSV; return anything else unchanged."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


def _check_score(score: Any, name: str) -> int:
    if type(score) is not int or score not in SCORES:
        raise ValueError(f"{name}: its score is {score!r}; it must be a whole number from 1 to 5.")
    return score


def _check_ids(labels: Labels, name: str) -> None:
    seen: set[str] = set()
    for label in labels:
        if label["sample_id"] in seen:
            raise ValueError(f"{name}: sample {label['sample_id']} is listed twice; remove one of the two.")
        seen.add(label["sample_id"])
