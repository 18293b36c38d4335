"""What a model goes by: the same pairs with the sound alone, with the words alone, and with both.

A dialogue without words is the same messages without their transcripts, one without sound the same messages without
their recordings. The processor takes both; a turn that is left with neither (no transcript, and its sound taken away)
is not refused but read as an empty message. The model was trained on both together, so that a low accuracy on one
alone may be surprise as well as deafness. What can be read off safely is the other way round: a model that is as good
without the sound does not need it, and one that is as good without the words does not read them.

Where both sides say the same words, rewards without sound are equal: all such pairs tie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sdiareward.esdr_accuracy.pairwise import SUBSETS
from sdiareward.evaluation.columns import CRITERION_COLUMNS
from sdiareward.evaluation.statistics import Counts, draw_groups, percentiles
from sdiareward.evaluation.summary import Labels, Scores, accuracy_of, groups_of, one_column
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.decoded_pairs import AuditPair, Messages, to_messages


BOTH, AUDIO_ONLY, TEXT_ONLY = "both", "audio_only", "text_only"
# Columns of Table 2 that are a set of pairs; a macro average is none.
_COLUMNS = tuple(dict.fromkeys((*SUBSETS, *CRITERION_COLUMNS.values(), "overall_micro")))


def _present(*, audio: bool = True, text: bool = True) -> Callable[[AuditPair], dict[str, Messages]]:
    """Return a function from a pair to its two dialogues without recordings or without transcripts."""
    return lambda pair: {side: to_messages(getattr(pair, side), audio=audio, text=text) for side in SIDES}


# From a pair to its dialogues by side.
CONDITIONS = {BOTH: _present(), AUDIO_ONLY: _present(text=False), TEXT_ONLY: _present(audio=False)}


def describe_conditions(
    labels: Labels,
    scores: Mapping[str, Scores],
    baselines: Mapping[str, Scores] | None = None,
    *,
    num_bootstrap: int = 1000,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Compare conditions with each other and with the cheap baselines, by subset.

    Args:
        labels (`Sequence[Mapping]`): Labels of each pair; see `labels.describe_pairs`.
        scores (`Mapping`): By condition, `"both"` among them, and `pair_id`: `chosen` and `rejected`.
        baselines (`Mapping`, *optional*): By baseline and `pair_id`: `chosen` and `rejected`, for instance as
            `pair_scoring.score_with_baseline` gives them.
        num_bootstrap (`int`, *optional*, defaults to 1000): Bootstrap draws of the intervals.
        seed (`int`, *optional*, defaults to 0): Their seed.

    Returns:
        `list[dict]`: A row for each subset, criterion and all pairs, as far as there are pairs: `column`, `num_pairs`;
        `conditions`, by name `accuracy`, `num_ties`, `num_invalid`, `num_groups`, `interval`, `mean_margin`,
        `margin_kept` (the sum of the margins as a share of the sum with both; 1 for `"both"`, negative where the order
        turns, None where both have no margin) and `margin_kept_interval`; `baselines`, by name the first five.
    """
    options = {"num_bootstrap": num_bootstrap, "seed": seed}
    accuracies = {name: accuracy_of(labels, found, options) for name, found in scores.items()}
    beside = {name: accuracy_of(labels, found, options) for name, found in (baselines or {}).items()}
    margins = {name: _margins(labels, found) for name, found in scores.items()}
    draws = draw_groups(groups_of(labels), [label["subset"] for label in labels], **options)
    rows = []
    for column in _COLUMNS:
        is_in = np.array([_belongs(label["subset"], column) for label in labels])
        if not is_in.any():
            continue
        of_column = {name: values[is_in] for name, values in margins.items()}
        conditions = {
            name: {**one_column(accuracies[name], column), **_kept(values, of_column[BOTH], draws[:, is_in])}
            for name, values in of_column.items()
        }
        cheap = {name: one_column(result, column) for name, result in beside.items()}
        rows.append({"column": column, "num_pairs": int(is_in.sum()), "conditions": conditions, "baselines": cheap})
    return rows


def _margins(labels: Labels, scores: Scores) -> np.ndarray:
    """Return the margin of each pair, shape `(num_pairs,)`."""
    sides = [[scores[label["pair_id"]][side] for label in labels] for side in SIDES]
    return np.subtract(*np.asarray(sides, dtype=np.float64))


def _belongs(subset: str, column: str) -> bool:
    """Say whether a column counts a subset's pairs."""
    return column in (subset, "overall_micro") or (column == "modality_micro" and subset != "colloquialness")


def _kept(margins: np.ndarray, whole: np.ndarray, draws: Counts) -> dict[str, Any]:
    """Return the mean margin and which share of the whole one it is."""
    total = whole.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = (draws @ margins) / (draws @ whole)
    return {
        "mean_margin": float(margins.mean()),
        "margin_kept": float(margins.sum() / total) if total else None,
        "margin_kept_interval": percentiles(ratios) if total else None,
    }
