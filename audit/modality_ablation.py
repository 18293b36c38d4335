"""Measure which modality a model uses: the same pairs with the sound alone, with the words alone, and with both.

The model was trained on both together, so a low accuracy with one of them may only show that such input is unfamiliar.
A high accuracy is evidence: a model that is as good without the sound does not need it, and one that is as good
without the words does not use them. Sides with the same words tie without sound. A pair with a turn without words is
not presented without sound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sdiareward.esdr_accuracy.pairwise import SUBSETS
from sdiareward.evaluation.statistics import Booleans, Clusters
from sdiareward.evaluation.summary import (
    CRITERION_COLUMNS,
    Labels,
    Scores,
    compute_accuracy,
    list_groups,
    select_column,
)
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.decoded_pairs import AuditPair, Messages, to_messages

from .statistics import compute_margins, is_in_column


BOTH, AUDIO_ONLY, TEXT_ONLY = "both", "audio_only", "text_only"
# Columns of Table 2 that are sets of pairs, not macro averages.
_COLUMNS = tuple(dict.fromkeys((*SUBSETS, *CRITERION_COLUMNS.values(), "overall_micro")))


def _make_builder(*, audio: bool = True, text: bool = True) -> Callable[[AuditPair], dict[str, Messages] | str]:
    """Return a function that builds the two dialogues of a pair without recordings or without transcripts."""

    def build(pair: AuditPair) -> dict[str, Messages] | str:
        sides = {side: to_messages(getattr(pair, side), audio=audio, text=text) for side in SIDES}
        is_whole = all(message["content"] for messages in sides.values() for message in messages)
        return sides if is_whole else "has a turn without words"

    return build


# Each returns the dialogues of a pair by side.
CONDITIONS = {BOTH: _make_builder(), AUDIO_ONLY: _make_builder(text=False), TEXT_ONLY: _make_builder(audio=False)}


def describe_conditions(
    labels: Labels,
    scores: Mapping[str, Scores],
    baselines: Mapping[str, Scores] | None = None,
    *,
    num_bootstrap: int = 1000,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Compare conditions (`"both"` among them) with each other and with the baselines, by column of Table 2."""
    options = {"num_bootstrap": num_bootstrap, "seed": seed}
    accuracies = {name: compute_accuracy(labels, found, options) for name, found in scores.items()}
    beside = {name: compute_accuracy(labels, found, options) for name, found in (baselines or {}).items()}
    margins = {name: compute_margins(labels, found) for name, found in scores.items()}
    clusters = Clusters(list_groups(labels), [label["subset"] for label in labels], **options)
    rows = []
    for column in _COLUMNS:
        is_in = np.array([is_in_column(label["subset"], column) for label in labels])
        if not is_in.any():
            continue
        conditions = {
            name: {
                **select_column(accuracies[name], column),
                **_compute_kept(values, margins[BOTH], is_in, clusters),
            }
            for name, values in margins.items()
        }
        cheap = {name: select_column(result, column) for name, result in beside.items()}
        rows.append({"column": column, "num_pairs": int(is_in.sum()), "conditions": conditions, "baselines": cheap})
    return rows


def _compute_kept(margins: np.ndarray, whole: np.ndarray, is_in: Booleans, clusters: Clusters) -> dict[str, Any]:
    """Return the mean margin and its share of the whole, negative if the order is reversed, None if the whole is 0."""
    kept = clusters.measure(margins, is_in, whole)
    return {
        "mean_margin": float(margins[is_in].mean()),
        "margin_kept": kept["mean"],
        "margin_kept_interval": kept["interval"],
    }
