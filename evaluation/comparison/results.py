"""What a comparison found: `compare.json`, and the same as dataclasses."""

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
    """Two systems under one criterion; counts and margins are the first's against the second.

    Args:
        criterion, first, second (`str`): What is compared.
        verdict (`str`): The result in a sentence.
        is_clear (`bool`): Whether the difference is clear; see `wins.RULE`.
        num_dialogues, num_groups (`int`): Dialogues that both have, and groups of them.
        num_first, num_second, num_ties (`int`): Dialogues in which each has the higher reward, and equal ones.
        win_rate (`float`): Of the first, 0-1; a tie is half a win.
        interval (`list[float]`): 95% interval of the win rate.
        p_value (`float`): Of the sign test.
        mean_margin (`float`), mean_margin_interval (`list[float]`): First reward minus second; None if no two
            bootstrap draws differ.
        follows (`dict`): What `measures.correlate` gives of `length_s` (seconds heard) and `level_db`.
    """

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
    interval: list[float]
    p_value: float
    mean_margin: float
    mean_margin_interval: list[float] | None
    follows: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RankedSystem:
    """A system's place under one criterion; see `ranking.rank_systems`."""

    criterion: str
    system: str
    strength: float
    interval: list[float] | None
    win_rate: float


@dataclass(frozen=True)
class Comparison:
    """The comparison of two or more systems.

    Args:
        verdict (`str`): The result in a sentence or, of several pairs of systems, in several.
        systems (`dict[str, str]`): Where each system's dialogues are from, by its name.
        model (`str`): What scored.
        criteria (`list[str]`): Under which criteria.
        pairs (`list[PairOfSystems]`): By criterion, every pair of systems.
        ranking (`list[RankedSystem]`): By criterion, the strongest first; empty for two systems.
        limits (`list[str]`): What qualifies the verdict.
        dialogues (`list[dict]`): A row for each dialogue, system and criterion: `dialogue`, `group_id`, `system`,
            `criterion`, `reward`, and what `measures.DialogueMeasures` has.
        unmatched (`list[dict]`): `dialogue`, and `missing_in`, the systems that lack it.
        skipped (`list[dict]`): `system`, `dialogue` and `reason` of what could not be used.
        output_dir (`str`, *optional*): Where the files are.
        page (`str`, *optional*): The page in it.
    """

    verdict: str
    systems: dict[str, str]
    model: str
    criteria: list[str]
    pairs: list[PairOfSystems]
    ranking: list[RankedSystem]
    limits: list[str]
    dialogues: list[dict[str, Any]] = field(repr=False)
    unmatched: list[dict[str, Any]] = field(repr=False)
    skipped: list[dict[str, Any]] = field(repr=False)
    output_dir: str | None = None
    page: str | None = None

    def to_pandas(self) -> pd.DataFrame:
        """Return `dialogues` as a table, which is also in `compare.parquet`."""
        return self.to_arrow().to_pandas()

    def to_arrow(self) -> pa.Table:
        """Return `dialogues` as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist(self.dialogues)


@dataclass(frozen=True)
class ScoredDialogues:
    """The dialogues that all systems have, with their rewards.

    Args:
        systems (`list[str]`): Names of the systems.
        names, groups (`list[str]`): Name and group of each dialogue.
        rewards (`dict[str, np.ndarray]` of shape `(num_dialogues, num_systems)`): By criterion.
        measures (`list[list[DialogueMeasures]]`): By dialogue and system.
    """

    systems: list[str]
    names: list[str]
    groups: list[str]
    rewards: dict[str, NDArray[np.float64]]
    measures: list[list[Any]]

    def get_values(self, name: str) -> NDArray[np.float64]:
        """Return one of the measures, shape `(num_dialogues, num_systems)`."""
        return np.array([[getattr(each, name) for each in row] for row in self.measures], dtype=np.float64)
