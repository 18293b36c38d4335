"""Score both sides of every pair, with a model, a judge or a baseline, and keep the scores in a run's folder.

Scores of a model or a judge are kept line by line, those of a baseline as a whole; a rerun computes only the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import Heard
from sdiareward.common.files import JsonLines, read_sealed, seal, write_file
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.content import digest_pair, fingerprint_pairs, has_changed
from sdiareward.pairs.dialogues import Dialogues
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.engine import (
    Labels,
    Outcome,
    PairScorer,
    Record,
    Session,
    complete_items,
    describe_heard,
    score_pending,
)
from sdiareward.scoring.model_spec import ModelSpec

from .baselines import KINDS, Kind, score_baseline


if TYPE_CHECKING:
    import datasets

    from sdiareward.scoring.scorer import Scorer

Scores = dict[str, dict[str, Any]]
_NUM_THREADS = 2


class ModelPairScorer:
    def __init__(self, scorer: Scorer):
        self.scorer = scorer

    @property
    def audio_s(self) -> float:
        return self.scorer.audio_s

    def score_rows(
        self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int]
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield each finished row with `chosen`, `rejected`, `margin` and its recordings; see [`PairScorer`]."""
        criteria = [labels[row]["criterion"] for row in rows for _ in SIDES]
        # Both sides of a pair in one batch: they often share clips, and a pair is done as soon as its batch is.
        groups = [row for row in rows for _ in SIDES]
        failures: dict[int, str] = {}
        features = self.scorer.iter_features(Dialogues(pairs, rows), criteria, groups=groups, skipped=failures)
        heard: dict[int, Heard] = {}

        def iter_rewards() -> Iterator[tuple[int, float]]:
            for index, each in features:
                heard[index] = each.heard
                yield index, each.reward

        pair_ids = [labels[row]["pair_id"] for row in rows]
        for position, found in complete_items(iter_rewards(), failures, SIDES, pair_ids):
            if isinstance(found, Skipped):
                yield rows[position], found
                continue
            facts = describe_heard(SIDES, [heard.pop(len(SIDES) * position + side) for side in range(len(SIDES))])
            yield rows[position], {**_make_record(*found), **facts}

    @property
    def _max_turn_s(self) -> float:
        return float(self.scorer.processor.max_turn_s)

    def usage(self) -> dict[str, Any]:
        """Return how much of each recording the model hears; it costs only time."""
        return {"max_turn_s": self._max_turn_s}


def _make_record(chosen: float, rejected: float) -> Record:
    """Return the rewards and their margin; a pair with a reward that is not finite has none, and counts as wrong."""
    if not (math.isfinite(chosen) and math.isfinite(rejected)):
        return {"chosen": None, "rejected": None, "margin": None}
    return {"chosen": chosen, "rejected": rejected, "margin": chosen - rejected}


@dataclass(frozen=True)
class ModelToEvaluate:
    """A reward model to evaluate; the counterpart of a judge's `JudgeSpec`."""

    spec: ModelSpec

    def identity(self) -> dict[str, Any]:
        return self.spec.identity()

    def load(self, folder: Path) -> PairScorer:
        return ModelPairScorer(self.spec.load())

    def describe(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return nothing: the results hold everything that is measured of a model."""
        return {}


class _BoundPairs:
    def __init__(self, scorer: PairScorer, pairs: datasets.Dataset, labels: Labels):
        self._scorer, self._pairs, self._labels = scorer, pairs, labels
        self.usage = scorer.usage

    @property
    def audio_s(self) -> float:
        return self._scorer.audio_s

    def score(self, items: Sequence[int]) -> Iterator[tuple[int, Outcome]]:
        return self._scorer.score_rows(self._pairs, self._labels, items)


class PairLog:
    """The lines of a run: scores, skipped pairs and sessions; those of pairs that have changed since are dropped."""

    def __init__(self, folder: Path, pairs: datasets.Dataset, labels: Labels, retry_failed: bool = False):
        self._folder = folder
        self._pairs = pairs
        self._labels = labels
        self._lines = JsonLines(folder / "scores.jsonl")
        self.scores: Scores = {record["pair_id"]: record for record in self._lines.read()}
        self.skipped: dict[int, Skipped] = {}
        num_lines = len(self.scores)
        if retry_failed:
            self.scores = {key: record for key, record in self.scores.items() if record["margin"] is not None}
        for row, label in enumerate(labels):
            record = self.scores.get(label["pair_id"])
            if record is not None and has_changed(record.get("content"), self._digest(row)):
                del self.scores[label["pair_id"]]
        if len(self.scores) < num_lines:
            self._write("scores.jsonl", list(self.scores.values()))

    def _digest(self, row: int) -> list[str | None]:
        return digest_pair(self._pairs[row], self._labels[row]["criterion"])

    def find_pending(self) -> list[int]:
        return [row for row, label in enumerate(self._labels) if label["pair_id"] not in self.scores]

    def add(self, item: int, outcome: Outcome) -> None:
        if isinstance(outcome, Skipped):
            self.skipped[item] = outcome
            return
        record = {**self._labels[item], **outcome, "content": self._digest(item)}
        self._lines.append([record])
        self.scores[record["pair_id"]] = record

    def end(self, session: Session) -> None:
        timing = {"num_pairs": session.num_scored, "audio_s": session.audio_s, "scoring_s": session.seconds}
        JsonLines(self._folder / "sessions.jsonl").append([{**timing, **(session.usage or {})}])

    def write_skipped(self) -> list[dict[str, Any]]:
        """Write `skipped.jsonl`; return its lines, the labels of each skipped pair with `kind` and `reason`."""
        found = [{**self._labels[row], **skipped.explain()} for row, skipped in sorted(self.skipped.items())]
        self._write("skipped.jsonl", found)
        return found

    def _write(self, name: str, records: Sequence[Mapping[str, Any]]) -> None:
        write_file(self._folder / name, "".join(map(seal, records)))


def score_pairs(
    load_scorer: Callable[[], PairScorer],
    pairs: datasets.Dataset,
    labels: Labels,
    folder: Path,
    *,
    retry_failed: bool = False,
) -> tuple[Scores, list[dict[str, Any]]]:
    """Score every pair that `scores.jsonl` lacks, written once both sides are done; unreadable audio is skipped."""
    log = PairLog(folder, pairs, labels, retry_failed)
    score_pending(
        log.find_pending(), lambda: _BoundPairs(load_scorer(), pairs, labels), log, label="scoring", unit="pair"
    )
    return log.scores, log.write_skipped()


def score_with_baselines(
    train: datasets.Dataset,
    train_labels: Labels,
    pairs: datasets.Dataset,
    labels: Labels,
    folder: Path,
) -> dict[Kind, tuple[dict[str, dict[str, Any]], dict[str, Any]]]:
    """Score pairs with each baseline, or read its scores of the same pairs; also return its training counts."""
    identity = {"train": fingerprint_pairs(train_labels, train), "pairs": fingerprint_pairs(labels, pairs)}
    return {kind: _score_with(kind, train, train_labels, pairs, labels, folder, identity) for kind in KINDS}


def _score_with(
    kind: Kind,
    train: datasets.Dataset,
    train_labels: Labels,
    pairs: datasets.Dataset,
    labels: Labels,
    folder: Path,
    identity: Mapping[str, str],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    path = folder / f"{kind}.json"
    kept = read_sealed(path)
    if kept.get("identity") != identity:
        result = score_baseline(
            kind,
            train,
            [label["criterion"] for label in train_labels],
            pairs,
            [label["criterion"] for label in labels],
            num_threads=_NUM_THREADS,
            progress=True,
        )
        fitted = {name: getattr(result, name) for name in ("num_train", "skipped_train", "unread")}
        sides = zip(labels, result.chosen.tolist(), result.rejected.tolist(), strict=True)
        scores = {label["pair_id"]: {"chosen": chosen, "rejected": rejected} for label, chosen, rejected in sides}
        kept = {"identity": identity, "fitted": fitted, "scores": scores}
        write_file(path, seal(kept))
    return kept["scores"], kept["fitted"]
