"""Summarise the runs of an ablation as rows of tables: means and intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sdiareward.esdr_accuracy.pairwise import COLUMNS


_NUMBERS = ("chosen", "rejected", "margin", "eval_loss", "seconds")


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> dict[str, float | None]:
    """Return the mean of a few runs and the half width of Student's t interval of it.

    Args:
        values (`Sequence[float]`): A value for each seed.
        confidence (`float`, *optional*, defaults to 0.95): Coverage.

    Returns:
        `dict`: `mean` and `half_width`, which is None for a single value.
    """
    from scipy.stats import t

    number, mean = len(values), sum(values) / len(values)
    if number < 2:
        return {"mean": mean, "half_width": None}
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (number - 1))
    quantile = float(t.ppf((1 + confidence) / 2, number - 1))
    return {"mean": mean, "half_width": quantile * deviation / math.sqrt(number)}


def summarise(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Summarise runs that differ only in the seed as one row.

    Args:
        records (`Sequence[Mapping]`): From `run_all`.
        names (`Sequence[str]`): The settings that identify a row, for instance `backbone`, `features` and `lambda`.

    Returns:
        `list[dict]`: In the order of their first runs: those settings and `learning_rate`; `num_seeds`; by column of
        Table 6 `accuracy` (mean and half width over seeds, None for what is absent), `interval` (over groups of test
        pairs, first seed), `num_pairs`, and `num_ties` (most of any seed); and the other numbers, over seeds.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        members = groups.setdefault(tuple(record["settings"][name] for name in names), [])
        if all(record["key"] != member["key"] for member in members):
            members.append(record)
    return [_row(dict(zip(names, values, strict=True)), members) for values, members in groups.items()]


def _row(settings: dict[str, Any], members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    accuracies = [member["accuracy"] for member in members]
    first = accuracies[0]
    return {
        **settings,
        "learning_rate": members[0]["settings"]["learning_rate"],
        "num_seeds": len(members),
        "accuracy": {
            name: None if first[name] is None else mean_interval([each[name] for each in accuracies])
            for name in COLUMNS
        },
        "interval": first["interval"],
        "num_pairs": first["num_pairs"],
        "num_ties": {name: max(each["num_ties"][name] for each in accuracies) for name in COLUMNS},
        **{name: mean_interval([member[name] for member in members]) for name in _NUMBERS},
    }


def drift(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the drift of the mean validation rewards in training (Figures 4a, 4b, 8a), over seeds.

    Args:
        records (`Sequence[Mapping]`): Runs of heads, with and without the centering term.

    Returns:
        `list[dict]`: By backbone and lambda: `step`, and for `chosen` and `margin` the `mean`, least and most of the
        seeds at each step.
    """
    groups: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["settings"]["backbone"], record["settings"]["lambda"]), []).append(record)
    rows = []
    for (backbone, coefficient), members in groups.items():
        points = list(zip(*(member["history"] for member in members), strict=True))
        chosen = [[point["chosen"] for point in each] for each in points]
        margin = [[point["chosen"] - point["rejected"] for point in each] for each in points]
        curves = {"chosen": _band(chosen), "margin": _band(margin)}
        rows.append(
            {"backbone": backbone, "lambda": coefficient, "step": [each[0]["step"] for each in points], **curves}
        )
    return rows


def _band(points: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    return {
        "mean": [sum(each) / len(each) for each in points],
        "least": [min(each) for each in points],
        "most": [max(each) for each in points],
    }


def choose_learning_rates(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Return the learning rate of the lowest validation loss, by backbone and feature set.

    Args:
        records (`Sequence[Mapping]`): Runs that differ in it.
    """
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for record in records:
        place = (record["settings"]["backbone"], record["settings"]["features"])
        if place not in best or record["eval_loss"] < best[place]["eval_loss"]:
            best[place] = record
    return {place: record["settings"]["learning_rate"] for place, record in best.items()}
