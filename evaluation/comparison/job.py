"""Score the dialogues of all systems with the engine that scores data sets, which skips those already scored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sdiareward.common.files import JsonLines
from sdiareward.pairs.rows import MessageRows, Rows
from sdiareward.pairs.systems import System
from sdiareward.scoring.dataset import ScoringJob, Summary, score_dataset
from sdiareward.scoring.scorer import Scorer

from .measures import MATCHED_DBFS


@dataclass(frozen=True, kw_only=True)
class SystemsJob(ScoringJob):
    # Each system has checked its own paths when it was read; all are absolute.
    audio_root: str | None = os.sep
    systems: Sequence[System]
    names: Sequence[str]
    match_level: bool = False
    # Keeps the model for the jobs of further criteria.
    loaded: list[Scorer] = field(default_factory=list, compare=False)

    def open_rows(self) -> Rows:
        """Return the dialogues, all systems' versions of one after the other, because they share turns."""
        owners = [(system, name) for name in self.names for system in self.systems]
        ids = [f"{system.name}/{name}" for system, name in owners]
        return MessageRows(ids, lambda number: owners[number][0].read(owners[number][1]))

    def identity(self) -> dict[str, Any]:
        """Return what the rewards depend on; digests compare the dialogues themselves."""
        paths = {system.name: system.path for system in self.systems}
        matched = {"match_level": MATCHED_DBFS} if self.match_level else {}
        return {**self.model.identity(), "criterion": self.criterion, "systems": paths, **matched}

    def describe_settings(self) -> dict[str, Any]:
        return self.identity()

    def load_scorer(self, device: str | None = None) -> Scorer:
        if not self.loaded:
            self.loaded.append(self.model.load(self.criterion, device))
        return self.loaded[0]


def score_systems(job: SystemsJob, folder: Path) -> tuple[Summary, NDArray[np.float64], dict[int, str]] | None:
    """Return the summary, rewards `(num_dialogues, num_systems)`, and the reason by row of each NaN among them."""
    summary = score_dataset(job, folder)
    if summary is None:
        return None
    rewards = np.full(len(job.names) * len(job.systems), np.nan)
    table = pq.read_table(folder / "scores.parquet", columns=["row", "reward"])
    rewards[table["row"].to_numpy()] = table["reward"].to_numpy()
    reasons = {record["row"]: record["reason"] for record in JsonLines(folder / "skipped.jsonl").read()}
    return summary, rewards.reshape(len(job.names), len(job.systems)), reasons
