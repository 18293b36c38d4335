"""Measure ties: identical dialogues must have equal rewards, codec copies nearly equal ones.

A codec copy is a dialogue whose recordings were encoded again with a lossy codec, at its mildest usual setting: the
same people say the same words in the same way. A margin between a dialogue and its codec copy is noise of the model,
and so is an equally small margin between the two sides of a pair. This gives a threshold below which to abstain, the
cost of abstaining, and how well the size of a margin separates natural pairs from codec copies (tie AUROC: 1 if every
natural margin is larger than the margin of every codec copy, 0.5 if size carries no information).

Rewards are deterministic, but the last digits of a sum depend on the batch. Rewards of identical dialogues must be
equal when the two are scored together, as the two sides of a pair are, and when each is scored in its own call. In a
call with other dialogues they may differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import read_audio
from sdiareward.evaluation.columns import CRITERION_COLUMNS
from sdiareward.evaluation.statistics import Counts, Floats, compute_percentiles, describe_share, draw_groups
from sdiareward.evaluation.summary import Labels, Scores, list_groups
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.channel import encode_flac
from sdiareward.perturbations.decoded_pairs import AuditPair, RewardFunction, Turn, to_messages
from sdiareward.perturbations.registry import PERTURBATIONS

from .statistics import Booleans, compute_margins, is_in_column


# Perturbations that make codec copies: lossy codecs, each at the mildest of its usual severities.
CODEC_COPIES: dict[str, float] = {name: PERTURBATIONS[name].severities[0] for name in ("mp3", "opus", "mulaw")}
_SHARE_OF_COPIES = 0.95
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_NUM_THRESHOLDS = 20


def measure_identical(pairs: Sequence[AuditPair], rewards: RewardFunction) -> dict[str, Any]:
    """Score identical dialogues and find the largest difference of their rewards.

    A few pairs suffice: each costs 16 rewards, most of them in calls of one or two.

    Returns:
        `dict`: `num_dialogues`, and the largest absolute difference of two rewards: `as_pair`, of a dialogue and its
        copy in one call; `lossless`, the same for recordings rounded to 16 bits and their FLAC copy;
        `separate_calls`, of the dialogue alone in two calls: these three must be 0. `among_others`, alone and twice
        in one call with all other dialogues, may differ by rounding. `worst` names the dialogue of each that is not 0.
    """
    sides = [(f"pair {pair.pair_id}, {side}", pair.criterion, getattr(pair, side)) for pair in pairs for side in SIDES]
    everything = [to_messages(turns) for _, _, turns in sides] + [to_messages(_copy(turns)) for _, _, turns in sides]
    together = np.reshape(rewards(everything, [criterion for _, criterion, _ in sides] * 2), (2, len(sides)))
    largest: dict[str, tuple[float, str]] = {}
    for (name, criterion, turns), among in zip(sides, together.T, strict=True):
        for question, values in _score_twice(turns, criterion, rewards, among).items():
            size = float(np.ptp(values))
            if question not in largest or size > largest[question][0]:
                largest[question] = (size, name)
    worst = {question: name for question, (size, name) in largest.items() if size > 0}
    sizes = {question: size for question, (size, _) in largest.items()}
    return {"num_dialogues": len(sides), **sizes, "worst": worst}


def _score_twice(
    turns: Sequence[Turn], criterion: str, rewards: RewardFunction, among: Floats
) -> dict[str, Sequence[float]]:
    """Return the rewards of identical dialogues to compare; `among` holds those of a call with others."""
    rounded = _copy(turns, _recode_as_flac)
    first, second = to_messages(turns), to_messages(_copy(turns))
    alone = [rewards([each], [criterion])[0] for each in (first, second)]
    recoded = [to_messages(rounded), to_messages(_copy(rounded, _recode_as_flac))]
    return {
        "as_pair": rewards([first, second], [criterion] * 2),
        "lossless": rewards(recoded, [criterion] * 2),
        "separate_calls": alone,
        "among_others": [alone[0], *among.tolist()],
    }


def _copy(turns: Sequence[Turn], change: Callable[[np.ndarray], np.ndarray] = np.copy) -> list[Turn]:
    return [replace(turn, array=change(turn.array)) for turn in turns]


def _recode_as_flac(array: np.ndarray) -> np.ndarray:
    """Encode as 16-bit FLAC and decode: only rounding to 16 bits changes the samples."""
    return read_audio(encode_flac(array))


def describe_ties(
    labels: Labels, natural: Scores, copies: Mapping[str, Scores], *, num_bootstrap: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Compare the margins of natural pairs with those of codec copies, over all pairs and by criterion.

    Both sides of a pair have codec copies. A model that abstains at a threshold decides no pair with a margin up to
    it; without a threshold it never abstains, and a tie is wrong. Intervals draw whole recordings with their codec
    copies.

    Args:
        labels (`Sequence[Mapping]`): Labels of each pair; see `labels.describe_pairs`.
        natural (`Mapping`): `chosen` and `rejected` by `pair_id`.
        copies (`Mapping`): By codec and `pair_id`: `chosen` and `rejected` of the encoded sides.
        num_bootstrap (`int`, *optional*, defaults to 1000): Bootstrap draws of the intervals.
        seed (`int`, *optional*, defaults to 0): Seed of the draws.

    Returns:
        `dict`: `rows`, one for all pairs (`"overall_micro"`) and each criterion: `column`, `num_pairs`; `natural`, the
        `quantiles` of the absolute margins; `twins`, by codec and for `"all"` of them `num_twins`, `num_equal` (of
        margin 0), `quantiles`, the tie `auroc` and its `interval`; `at_95`, the lowest threshold at which at least 95%
        of all codec copies are abstained from: `threshold`, `coverage` (share of natural pairs not abstained from),
        `accuracy` of these (None if there are none), each with its interval; and `curve`, for no and rising
        `threshold`s `abstained_twins`, `coverage`, `accuracy` and its `interval`.
    """
    options = {"num_bootstrap": num_bootstrap, "seed": seed}
    rows = []
    for column in ("overall_micro", *CRITERION_COLUMNS.values()):
        members = [label for label in labels if is_in_column(label["subset"], column)]
        if members and (column == "overall_micro" or len(members) < len(labels)):
            rows.append({"column": column, **_describe_column(members, natural, copies, options)})
    return {"rows": rows}


def _describe_column(
    labels: Labels, natural: Scores, copies: Mapping[str, Scores], options: Mapping[str, int]
) -> dict[str, Any]:
    margins = compute_margins(labels, natural)
    sizes = {name: _copy_margins(labels, natural, recoded) for name, recoded in copies.items()}
    sizes["all"] = np.concatenate(list(sizes.values()), axis=0)
    draws = draw_groups(list_groups(labels), [label["subset"] for label in labels], **options)
    everyone = np.ones((1, len(labels)), dtype=np.int64)
    described = {}
    for name, values in sizes.items():
        ranks = _Ranks(np.abs(margins), values)
        described[name] = {
            "num_twins": values.size,
            "num_equal": int((values == 0).sum()),
            "quantiles": _compute_quantiles(values),
            "auroc": float(ranks.auroc(everyone)[0]),
            "interval": compute_percentiles(ranks.auroc(draws)),
        }
    return {
        "num_pairs": len(labels),
        "natural": {"quantiles": _compute_quantiles(np.abs(margins))},
        "twins": described,
        "at_95": _describe_threshold(margins, sizes["all"], draws),
        "curve": _compute_curve(labels, margins, sizes["all"], options),
    }


def _copy_margins(labels: Labels, natural: Scores, recoded: Scores) -> Floats:
    """Return the absolute margin of each side and its codec copy, shape `(2, num_pairs)`."""
    sides = [[natural[label["pair_id"]][side] - recoded[label["pair_id"]][side] for label in labels] for side in SIDES]
    return np.abs(np.array(sides, dtype=np.float64))


def _compute_quantiles(values: Floats) -> dict[str, float]:
    return {f"{level:g}": float(np.quantile(values, level)) for level in _LEVELS}


class _Ranks:
    """Compute the tie AUROC of many weightings of the pairs at once.

    `sklearn.metrics.roc_auc_score` takes one set of weights at a time, and a bootstrap has a thousand.

    Args:
        natural: Absolute margins, shape `(num_pairs,)`.
        copies: Absolute margins of codec copies, shape `(num_copies_per_pair, num_pairs)`.
    """

    def __init__(self, natural: Floats, copies: Floats):
        self.natural, self.copies = natural, copies
        below = np.searchsorted(np.sort(copies, axis=None), natural, "left")
        upto = np.searchsorted(np.sort(copies, axis=None), natural, "right")
        self.bounds = below, upto
        self.order = np.argsort(copies, axis=None, kind="stable") % len(natural)

    def auroc(self, weights: Counts) -> Floats:
        """Return the share of natural margins above those of copies, ties counting half, for each row of weights."""
        cumulated = np.pad(np.cumsum(weights[:, self.order], axis=1), ((0, 0), (1, 0)))
        larger = (cumulated[:, self.bounds[0]] + cumulated[:, self.bounds[1]]) / 2
        return np.asarray((larger * weights).sum(axis=1) / (weights.sum(axis=1) * cumulated[:, -1]))


def _describe_threshold(margins: Floats, copies: Floats, draws: Counts) -> dict[str, Any]:
    """Return the threshold that abstains from 95% of the codec copies, and its effect on natural pairs."""
    found = _measure_at_threshold(margins, copies, np.ones((1, len(margins)), dtype=np.int64))
    drawn = _measure_at_threshold(margins, copies, draws)
    described: dict[str, Any] = {"share_of_twins": _SHARE_OF_COPIES}
    for name, values in found.items():
        described[name] = float(values[0]) if np.isfinite(values[0]) else None
        described[f"{name}_interval"] = compute_percentiles(drawn[name])
    return described


def _measure_at_threshold(margins: Floats, copies: Floats, weights: Counts) -> dict[str, Floats]:
    """Return threshold, coverage and accuracy for each row of weights."""
    order = np.argsort(copies, axis=None, kind="stable")
    cumulated = np.cumsum(weights[:, order % len(margins)], axis=1)
    # Rounded, because 95% of a hundred is 95.00000000000001 in floating point.
    needed = np.ceil(np.round(_SHARE_OF_COPIES * cumulated[:, -1:], 6))
    threshold = np.sort(copies, axis=None)[(cumulated >= needed).argmax(axis=1)]
    is_decided = np.abs(margins) > threshold[:, None]
    num_decided = (is_decided * weights).sum(axis=1)
    with np.errstate(invalid="ignore"):
        accuracy = ((is_decided & (margins > 0)) * weights).sum(axis=1) / num_decided
    return {"threshold": threshold, "coverage": num_decided / weights.sum(axis=1), "accuracy": accuracy}


def _compute_curve(
    labels: Labels, margins: Floats, copies: Floats, options: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the abstention curve: without a threshold, at 0, and at quantiles of all absolute margins."""
    sizes = np.concatenate([np.abs(margins), copies.ravel()])
    levels = np.quantile(sizes, np.linspace(0, 1, _NUM_THRESHOLDS + 1)[1:-1], method="inverted_cdf")
    thresholds = [None, *sorted({0.0, *levels.tolist()})]
    groups, strata = list_groups(labels), [label["subset"] for label in labels]
    points = []
    for threshold in thresholds:
        is_decided: Booleans = np.full(len(margins), True) if threshold is None else np.abs(margins) > threshold
        rows = np.flatnonzero(is_decided).tolist()
        decided = describe_share(
            margins[rows] > 0, [groups[row] for row in rows], [strata[row] for row in rows], **options
        )
        points.append(
            {
                "threshold": threshold,
                "abstained_twins": 0.0 if threshold is None else float((copies <= threshold).mean()),
                "coverage": float(is_decided.mean()),
                "accuracy": decided["share"],
                "interval": decided["interval"],
            }
        )
    return points
