"""Read finished evaluations, and find the pairs on which two of them disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdiareward.common.files import JsonLines, is_number, read_json_object
from sdiareward.pairs.schema import SIDES

from .summary import Labels, Record, Scores, name_scorer


_MAX_SHOWN = 20


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation: scores by pair, and `results.json`."""

    folder: str | Path
    scores: list[Record]
    results: Record
    skipped: list[Record] = field(default_factory=list)

    @property
    def run(self) -> Record:
        """Return what the scores depend on."""
        return self.results.get("run", {})

    @property
    def config(self) -> Record:
        """Return the arguments of `eval.py`."""
        return self.results.get("config", {})

    @cached_property
    def by_pair(self) -> dict[str, Record]:
        return {record["pair_id"]: record for record in self.scores}


def read_evaluation(folder: str | Path, *, finite: bool = True) -> Evaluation:
    """Read an evaluation that `eval.py` finished; `finite` requires finite rewards."""
    folder = Path(folder)
    for name in ("scores.jsonl", "results.json"):
        # Results come last, so a folder that has them is complete.
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder}: has no {name}; give the output_dir of a finished evaluation.")
    scores = JsonLines(folder / "scores.jsonl").read()
    if not scores:
        raise ValueError(f"{folder}: scores.jsonl holds no pair; evaluate at least one.")
    for record in scores:
        rewards = [record.get(side, "") for side in SIDES]
        if not isinstance(record.get("pair_id"), str) or any(
            reward is not None and type(reward) not in (int, float) for reward in rewards
        ):
            raise ValueError(
                f"{folder}: scores.jsonl has a line without a pair_id or the rewards of both sides; take it out."
            )
        if finite and not all(map(is_number, rewards)):
            raise ValueError(
                f"{folder}: pair {record['pair_id']} has a reward that is missing or not finite; take its line out of "
                "the file."
            )
    skipped = JsonLines(folder / "skipped.jsonl").read()
    return Evaluation(folder, scores, read_json_object(folder / "results.json", "evaluate again"), skipped)


def find_disagreements(
    labels: Labels, scores: Scores, others: Sequence[Evaluation], nan: str, count: int = _MAX_SHOWN
) -> list[Record]:
    """Find where an evaluation and others disagree; `confidence` is the mean of both scorers' ranks of |margin|."""
    found = []
    for other in others:
        _require_same_pairs(other, [label["pair_id"] for label in labels], nan)
        ranks = [_rank_margins(labels, each) for each in (scores, other.by_pair)]
        rows = []
        for label, confidence in zip(labels, ((ranks[0] + ranks[1]) / 2).tolist(), strict=True):
            own, its = scores[label["pair_id"]], other.by_pair[label["pair_id"]]
            if is_right(own) != is_right(its):
                margins = {"margin": compute_margin(own), "other_margin": compute_margin(its)}
                rows.append({**label, "is_right": is_right(own), **margins, "confidence": confidence})
        rows.sort(key=lambda row: (-row["confidence"], row["pair_id"]))
        title = name_scorer(other.config)
        found.append({"title": title, "folder": str(other.folder), "num_pairs": len(rows), "rows": rows[:count]})
    return found


def _require_same_pairs(other: Evaluation, pair_ids: Sequence[str], nan: str) -> None:
    """Raise unless an evaluation has a reward for both sides of every one of these pairs."""
    if missing := [pair_id for pair_id in pair_ids if pair_id not in other.by_pair]:
        reasons = {record["pair_id"]: f" (skipped there: {record['reason']})" for record in other.skipped}
        raise ValueError(
            f"{other.folder}: lacks {len(missing)} of {len(pair_ids)} pairs, the first is {missing[0]!r}"
            f"{reasons.get(missing[0], '')}; models are compared on the same pairs: evaluate it on the same split of "
            "the same data set."
        )
    broken = [pair_id for pair_id in pair_ids if not is_finite(other.by_pair[pair_id])]
    if broken and nan == "error":
        raise ValueError(
            f"{other.folder}: {len(broken)} pairs have a reward that is missing or not finite, the first is "
            f"{broken[0]!r}; score them again, or count them as wrong with nan: wrong."
        )


def is_finite(score: Mapping[str, Any]) -> bool:
    """Return whether both sides have a finite reward."""
    return all(score[side] is not None and np.isfinite(score[side]) for side in SIDES)


def is_right(score: Mapping[str, Any]) -> bool:
    """Return whether the chosen side has the higher reward; a tie and a missing reward are wrong."""
    return is_finite(score) and score["chosen"] > score["rejected"]


def compute_margin(score: Mapping[str, Any]) -> float | None:
    """Return chosen minus rejected reward; None if one of them is missing or not finite."""
    return float(score["chosen"] - score["rejected"]) if is_finite(score) else None


def _rank_margins(labels: Labels, scores: Scores) -> NDArray[np.float64]:
    """Return the share of pairs with a smaller |margin|: models and judges share no scale; no margin is last."""
    margins = [compute_margin(scores[label["pair_id"]]) for label in labels]
    sizes = np.array([-1.0 if margin is None else abs(margin) for margin in margins])
    return np.searchsorted(np.sort(sizes), sizes, side="left") / len(sizes)
