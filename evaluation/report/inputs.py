"""What a page shows beside the evaluation itself: other evaluations of the same pairs, and logs of training runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.common.files import JsonLines
from sdiareward.pairs.schema import SIDES

from .. import results_files


Point = dict[str, float]


@dataclass(frozen=True)
class ComparedEvaluation:
    folder: str
    model: str
    scores: Mapping[str, Mapping[str, Any]]
    # Why pairs were skipped, by `pair_id`.
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class TrainingRun:
    """What a training run logged about its rewards, for Figures 4 and 8, a and b."""

    path: str
    title: str
    center_rewards_coefficient: float
    # Mean rewards of both sides and their margin, by step.
    train: list[Point]
    validation: list[Point]


def read_evaluation(folder: str | Path) -> ComparedEvaluation:
    found = results_files.read_evaluation(folder, finite=False)
    scores = {record["pair_id"]: record for record in found.scores}
    skipped = JsonLines(found.folder / "skipped.jsonl").read()
    reasons = {record["pair_id"]: record["reason"] for record in skipped}
    return ComparedEvaluation(str(folder), results_files.name_scorer(found.config), scores, reasons)


def check_same_pairs(evaluation: ComparedEvaluation, pair_ids: Sequence[str], nan: str) -> None:
    """Raise unless an evaluation has a reward for both sides of every one of these pairs."""
    missing = [pair_id for pair_id in pair_ids if pair_id not in evaluation.scores]
    if missing:
        first = missing[0]
        skipped = f" (skipped there: {evaluation.reasons[first]})" if first in evaluation.reasons else ""
        raise ValueError(
            f"{evaluation.folder}: lacks {len(missing)} of {len(pair_ids)} pairs, the first is {first!r}{skipped}; "
            "models are compared on the same pairs: evaluate it on the same split of the same data set."
        )
    broken = [pair_id for pair_id in pair_ids if not is_finite(evaluation.scores[pair_id])]
    if broken and nan == "error":
        raise ValueError(
            f"{evaluation.folder}: {len(broken)} pairs have a reward that is missing or not finite, the first is "
            f"{broken[0]!r}; score them again, or count them as wrong with nan: wrong."
        )


def is_finite(score: Mapping[str, Any]) -> bool:
    """Return whether both sides have a finite reward."""
    return all(score[side] is not None and np.isfinite(score[side]) for side in SIDES)


def is_right(score: Mapping[str, Any]) -> bool:
    """Return whether the chosen side has the higher reward; a tie and a missing reward are wrong."""
    return is_finite(score) and score["chosen"] > score["rejected"]


def title_scorers(title: str, others: Sequence[ComparedEvaluation]) -> list[str]:
    """Name other evaluations beside one called `title`; equal names get their folders."""
    names = [title, *(other.model for other in others)]
    return [other.model if names.count(other.model) == 1 else f"{other.model} ({other.folder})" for other in others]


def read_training_runs(paths: Sequence[str | Path]) -> list[TrainingRun]:
    runs = [_read_history(Path(path)) for path in paths]
    titles = title_runs([str(path) for path in paths], [coefficient for coefficient, _ in runs])
    read = []
    for path, title, (coefficient, history) in zip(paths, titles, runs, strict=True):
        train, validation = _make_points(history, ""), _make_points(history, "eval_")
        if not train and not validation:
            raise ValueError(f"{path}: its history has no mean_reward and margin; set logging_steps and train again.")
        read.append(TrainingRun(str(path), title, coefficient, train, validation))
    return read


def _read_history(path: Path) -> tuple[float, list[dict[str, Any]]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; training takes the run.json that train.py writes.")
    run = json.loads(path.read_text(encoding="utf-8"))
    absent = [name for name in ("history", "training") if name not in run]
    if absent:
        raise ValueError(f"{path}: has no {' and no '.join(absent)}; training takes the run.json of train.py.")
    return float(run["training"].get("center_rewards_coefficient") or 0.0), run["history"]


def _make_points(history: Sequence[Mapping[str, Any]], prefix: str) -> list[Point]:
    """Return the mean reward of each side: TRL logs the mean over both and their difference."""
    mean, margin = f"{prefix}mean_reward", f"{prefix}margin"
    return [
        {
            "step": entry["step"],
            "chosen": entry[mean] + entry[margin] / 2,
            "rejected": entry[mean] - entry[margin] / 2,
            "margin": entry[margin],
        }
        for entry in history
        if mean in entry and margin in entry
    ]


def title_runs(paths: Sequence[str], coefficients: Sequence[float]) -> list[str]:
    """Name runs by their centering; equal names get their paths."""
    titles = [f"with centering, λ = {value:g}" if value else "without centering" for value in coefficients]
    return [
        f"{title} ({path})" if titles.count(title) > 1 else title for title, path in zip(titles, paths, strict=True)
    ]
