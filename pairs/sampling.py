"""Draw pairs or dialogues from a data set, spread evenly over subsets, recordings and synthesizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def draw_rows(num_rows: int, count: int | None, seed: int) -> list[int]:
    """Return the numbers of at most `count` rows (None for all), in order."""
    return sorted(np.random.default_rng(seed).permutation(num_rows)[:count].tolist())


def sample_rows(labels: Sequence[Mapping[str, Any]], num_pairs: int, seed: int = 0) -> list[int]:
    """Draw pairs from the subsets in turn, within a subset from recordings, then synthesizers; 0 takes all.

    A larger sample of the same seed contains the smaller one, whose scores are reused.
    """
    import pandas as pd

    # A pair of unknown origin is its own group.
    groups = [label["group_id"] or f"row {row}" for row, label in enumerate(labels)]
    frame = pd.DataFrame({name: [label[name] for label in labels] for name in ("subset", "synthesizer")})
    frame = frame.assign(group=groups).iloc[np.random.default_rng(seed).permutation(len(labels))]
    # The nth pair of its group, and among these the nth of its synthesizer.
    frame["round"] = frame.groupby(["subset", "group"]).cumcount()
    frame["turn"] = frame.groupby(["subset", "round", "synthesizer"], dropna=False).cumcount()
    frame = frame.sort_values(["round", "turn"], kind="stable")
    frame["position"] = frame.groupby("subset").cumcount()
    drawn = frame.sort_values(["position", "subset"]).index.tolist()
    return drawn[:num_pairs] if num_pairs else drawn
