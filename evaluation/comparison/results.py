"""The findings of a comparison: `compare.json`, and the same as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray


if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class PairOfSystems:
    """Two systems under one criterion; counts and margins are the first's against the second."""

    criterion: str
    first: str
    second: str
    verdict: str
    is_clear: bool
    num_dialogues: int
    num_groups: int
    num_first: int
    num_second: int
    num_ties: int
    win_rate: float
    # None for one group.
    interval: list[float] | None
    # Of the sign test, in which the signs of whole groups are random.
    p_value: float
    mean_margin: float
    # None for one group, or if all margins are equal.
    mean_margin_interval: list[float] | None
    # By the names of `measures.COVARIATES`, the result of `measures.correlate`.
    follows: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RankedSystem:
    """A system's place under one criterion; see `ranking.rank_systems`."""

    criterion: str
    system: str
    strength: float
    interval: list[float] | None
    num_groups: int
    win_rate: float


@dataclass(frozen=True)
class Comparison:
    """The comparison of two or more systems."""

    verdict: str
    systems: dict[str, str]
    model: str
    criteria: list[str]
    pairs: list[PairOfSystems]
    ranking: list[RankedSystem]
    limits: list[str]
    # One row per dialogue, system and criterion: labels, `reward` and the fields of `DialogueMeasures`.
    dialogues: list[dict[str, Any]] = field(repr=False)
    # `dialogue`, and `missing_in`: the systems that lack it.
    unmatched: list[dict[str, Any]] = field(repr=False)
    skipped: list[dict[str, Any]] = field(repr=False)
    output_dir: str | None = None
    page: str | None = None

    def to_pandas(self) -> pd.DataFrame:
        """Return `dialogues` as a table, which is also in `compare.parquet`."""
        return self.to_arrow().to_pandas()

    def to_arrow(self) -> pa.Table:
        import pyarrow as pa

        return pa.Table.from_pylist(self.dialogues)


@dataclass(frozen=True)
class ScoredDialogues:
    """The dialogues that all systems have, with their rewards."""

    systems: list[str]
    names: list[str]
    groups: list[str]
    # By criterion, shape `(num_dialogues, num_systems)`.
    rewards: dict[str, NDArray[np.float64]]
    # By dialogue and system.
    measures: list[list[Any]]

    def get_values(self, name: str) -> NDArray[np.float64]:
        """Return one of the measures, shape `(num_dialogues, num_systems)`."""
        return np.array([[getattr(each, name) for each in row] for row in self.measures], dtype=np.float64)
