"""Score both sides of pairs with a model or a judge, read finished evaluations, and compare them pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdiareward.checkpoint_io.training_record import read_stages
from sdiareward.common.errors import Skipped
from sdiareward.common.files import JsonLines, format_line, is_number, read_json_object, write_file
from sdiareward.common.parts import Items, Make, PartFolder, Rows, choose_size, run_parts
from sdiareward.pairs.content import digest_pair
from sdiareward.pairs.labels import TRAINED_ON, name_criterion
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.rows import Dialogues
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.outcomes import Outcome, PairScorer, complete_items, describe_heard

from .summary import Labels, Record, Scores, name_scorer


if TYPE_CHECKING:
    import datasets

    from sdiareward.scoring.scorer import Scorer

_MAX_DISAGREEMENTS = 20


def load_scored_pairs(
    model: str | Path | None, dataset: str, split: str | None, source: Record
) -> tuple[datasets.Dataset, str | None]:
    """Load pairs; `source` gets the criterion of those that name none, as a notice tells: the training's, or joint."""
    pairs = load_pairs(dataset, split, **source)
    if model is None or "criterion" in pairs.column_names:
        return pairs, None
    last = (read_stages(model) or [{}])[-1].get(TRAINED_ON, {}).get("criteria", ())
    chosen, reason = (last[0], ", as in the training of the model") if len(last) == 1 else (name_criterion(None), "")
    choices = "--criterion modality (how a dialogue sounds), colloquialness (how it is worded) or joint (both)"
    source["criterion"] = chosen
    notice = f"the pairs have no column criterion and are scored under {chosen}{reason}; choose with {choices}"
    return pairs.add_column("criterion", [chosen] * len(pairs)), notice


class ModelPairScorer:
    """Scores pairs with a reward model; see [`PairScorer`]."""

    def __init__(self, scorer: Scorer):
        self.scorer = scorer

    @property
    def audio_s(self) -> float:
        return self.scorer.audio_s

    def score_rows(
        self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield each finished row with `chosen`, `rejected`, `margin` and its recordings."""
        # Both sides of a pair are in one batch: they often share clips, and each batch finishes whole pairs.
        groups = [row for row in rows for _ in SIDES]
        criteria = [labels[row]["criterion"] for row in groups]
        failures: dict[int, str] = {}
        features = self.scorer.iter_features(Dialogues(pairs, rows), criteria, groups=groups, skipped=failures)
        pair_ids = [labels[row]["pair_id"] for row in rows]
        for position, found in complete_items(features, failures, SIDES, pair_ids):
            if isinstance(found, Skipped):
                yield rows[position], found
                continue
            rewards = [each.reward for each in found]
            facts = describe_heard(SIDES, [each.heard for each in found])
            # A pair without two finite rewards has no margin and counts as wrong.
            chosen, rejected = rewards if all(map(math.isfinite, rewards)) else (None, None)
            margin = None if chosen is None or rejected is None else chosen - rejected
            yield rows[position], {"chosen": chosen, "rejected": rejected, "margin": margin, **facts}

    def usage(self) -> dict[str, Any]:
        """Return how much of each recording the model hears; a model has no other cost."""
        return {"max_turn_s": float(self.scorer.processor.max_turn_s)}


def score_pairs(
    load_scorer: Callable[[], PairScorer],
    pairs: datasets.Dataset,
    labels: Labels,
    folder: Path,
    meta: Mapping[str, Any],
    *,
    retry_failed: bool = False,
) -> tuple[dict[str, Record], list[Record]]:
    """Score the pairs that the folder lacks; return scores, and labels of skipped pairs with `kind` and `reason`.

    `scores.jsonl` and `skipped.jsonl` get the same content.
    """
    parts = PartFolder(folder, meta)
    rows = {label["pair_id"]: row for row, label in enumerate(labels)}
    scorers: list[PairScorer] = []

    def digest(pair_id: str) -> str | None:
        digests = digest_pair(pairs[rows[pair_id]], labels[rows[pair_id]]["criterion"])
        return None if None in digests else " ".join(map(str, digests))

    def have_changed(records: Rows) -> list[bool]:
        return [
            bool(record.get("reason"))
            or (retry_failed and record["margin"] is None)
            or digest(record["item"]) not in (None, record["digest"])
            for record in records
        ]

    def load() -> Make:
        scorers.append(load_scorer())
        folder.mkdir(parents=True, exist_ok=True)
        return make

    def make(batches: Iterable[Items]) -> Iterator[Rows]:
        for batch in batches:
            found = dict(scorers[0].score_rows(pairs, labels, [rows[pair_id] for pair_id in batch]))
            outcomes = {pair_id: found[rows[pair_id]] for pair_id in batch}
            yield [
                {"item": pair_id, **outcome.explain()}
                if isinstance(outcome, Skipped)
                else {"item": pair_id, **outcome, "digest": digest(pair_id)}
                for pair_id, outcome in outcomes.items()
            ]

    pending = parts.find_pending(rows, have_changed, "reason", "margin", "digest")
    seconds = run_parts(parts, pending, load, choose_size(len(pending)), label="scoring", unit="pair")
    for scorer in scorers:
        timing = {"num_pairs": len(pending), "audio_s": scorer.audio_s, "scoring_s": seconds}
        JsonLines(folder / "sessions.jsonl").append([{**timing, **scorer.usage()}])
    found = {record["item"]: record for record in parts.iter_rows()}
    scores, skipped = {}, []
    for pair_id, label in zip(rows, labels, strict=True):
        record = found[pair_id]
        if record.get("reason"):
            skipped.append({**label, "kind": record["kind"], "reason": record["reason"]})
        else:
            kept = {name: value for name, value in record.items() if name not in ("item", "digest", "kind", "reason")}
            scores[pair_id] = {**label, **kept}
    write_file(folder / "scores.jsonl", "".join(map(format_line, scores.values())))
    write_file(folder / "skipped.jsonl", "".join(map(format_line, skipped)))
    return scores, skipped


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation: scores by pair, and `results.json`."""

    folder: str | Path
    scores: list[Record]
    results: Record
    skipped: list[Record] = field(default_factory=list)

    @property
    def run(self) -> Record:
        """Return everything that the scores depend on."""
        return self.results.get("run", {})

    @property
    def config(self) -> Record:
        """Return the arguments of `eval.py`."""
        return self.results.get("config", {})

    @cached_property
    def by_pair(self) -> dict[str, Record]:
        return {record["pair_id"]: record for record in self.scores}


def read_evaluation(folder: str | Path, *, finite: bool = True) -> Evaluation:
    """Read a finished evaluation; `finite` requires finite rewards."""
    folder = Path(folder)
    for name in ("scores.jsonl", "results.json"):
        # Results are written last, so a folder with results is complete.
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder}: has no {name}; give the output_dir of a finished evaluation.")
    scores = JsonLines(folder / "scores.jsonl").read()
    if not scores:
        raise ValueError(f"{folder}: scores.jsonl has no pairs; evaluate at least one.")
    for record in scores:
        rewards = [record.get(side, "") for side in SIDES]
        if not isinstance(record.get("pair_id"), str) or {*map(type, rewards)} - {int, float, type(None)}:
            what = "a line without a pair_id or the rewards of both sides"
            raise ValueError(f"{folder}: scores.jsonl has {what}; remove it.")
        if finite and not all(map(is_number, rewards)):
            what = "has a missing or non-finite reward; remove its line"
            raise ValueError(f"{folder}: pair {record['pair_id']} {what}.")
    skipped = JsonLines(folder / "skipped.jsonl").read()
    return Evaluation(folder, scores, read_json_object(folder / "results.json", "evaluate again"), skipped)


def is_finite(score: Mapping[str, Any]) -> bool:
    """Return whether both sides have a finite reward."""
    return all(score[side] is not None and np.isfinite(score[side]) for side in SIDES)


def is_right(score: Mapping[str, Any]) -> bool:
    """Return whether the chosen side has the higher reward; ties and missing rewards are wrong."""
    return is_finite(score) and score["chosen"] > score["rejected"]


def compute_margin(score: Mapping[str, Any]) -> float | None:
    """Return chosen minus rejected reward; None if one is missing or not finite."""
    return float(score["chosen"] - score["rejected"]) if is_finite(score) else None


def find_disagreements(
    labels: Labels, scores: Scores, others: Sequence[Evaluation], nan: str, count: int = _MAX_DISAGREEMENTS
) -> list[Record]:
    """Find pairs on which evaluations disagree; `confidence` is the mean of both scorers' ranks of |margin|."""
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
        about = {"title": name_scorer(other.config), "folder": str(other.folder), "num_pairs": len(rows)}
        found.append({**about, "rows": rows[:count]})
    return found


def _require_same_pairs(other: Evaluation, pair_ids: Sequence[str], nan: str) -> None:
    """Raise unless an evaluation has rewards for both sides of all these pairs."""
    if missing := [pair_id for pair_id in pair_ids if pair_id not in other.by_pair]:
        reasons = {record["pair_id"]: f" (skipped there: {record['reason']})" for record in other.skipped}
        first = f"{missing[0]!r}{reasons.get(missing[0], '')}"
        remedy = "a comparison needs the same pairs: evaluate it on the same split of the same data set"
        what = f"lacks {len(missing)} of {len(pair_ids)} pairs, first: {first}"
        raise ValueError(f"{other.folder}: {what}; {remedy}.")
    broken = [pair_id for pair_id in pair_ids if not is_finite(other.by_pair[pair_id])]
    if broken and nan == "error":
        what = f"{len(broken)} pairs have a missing or non-finite reward, first: {broken[0]!r}"
        raise ValueError(f"{other.folder}: {what}; score them again, or count them as wrong with nan: wrong.")


def _rank_margins(labels: Labels, scores: Scores) -> NDArray[np.float64]:
    """Return each pair's share of smaller |margin|s, because scorers have no common scale; no margin ranks last."""
    margins = [compute_margin(scores[label["pair_id"]]) for label in labels]
    sizes = np.array([-1.0 if margin is None else abs(margin) for margin in margins])
    return np.searchsorted(np.sort(sizes), sizes, side="left") / len(sizes)
