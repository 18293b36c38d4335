"""Score both sides of every pair, with a model, a judge or a baseline, and keep the scores in a run's folder.

Scores of a model or a judge are kept in parts, those of a baseline as a whole; a rerun computes only the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import Heard
from sdiareward.common.files import JsonLines, read_sealed, seal, write_file
from sdiareward.common.parts import Items, Make, PartFolder, Rows, choose_size, run_parts
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.content import digest_pair, fingerprint_pairs
from sdiareward.pairs.dialogues import Dialogues
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.model_spec import ModelSpec
from sdiareward.scoring.outcomes import (
    Labels,
    Outcome,
    PairScorer,
    Record,
    complete_items,
    describe_heard,
)

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


def score_pairs(
    load_scorer: Callable[[], PairScorer],
    pairs: datasets.Dataset,
    labels: Labels,
    folder: Path,
    meta: Mapping[str, Any],
    *,
    retry_failed: bool = False,
) -> tuple[Scores, list[dict[str, Any]]]:
    """Score every pair that the folder lacks; return scores, and labels of skipped pairs with `kind` and `reason`.

    Both are also written, to `scores.jsonl` and `skipped.jsonl`.
    """
    parts = PartFolder(folder, meta)
    rows = {label["pair_id"]: row for row, label in enumerate(labels)}

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
            yield [_make_line(pair_id, found[rows[pair_id]], digest) for pair_id in batch]

    scorers: list[PairScorer] = []
    pending = parts.find_pending(rows, have_changed, "reason", "margin", "digest")
    seconds = run_parts(parts, pending, load, choose_size(len(pending)), label="scoring", unit="pair")
    for scorer in scorers:
        timing = {"num_pairs": len(pending), "audio_s": scorer.audio_s, "scoring_s": seconds}
        JsonLines(folder / "sessions.jsonl").append([{**timing, **scorer.usage()}])
    found = {record.pop("item"): record for record in parts.iter_rows()}
    lines = [{**label, **found[pair_id]} for pair_id, label in zip(rows, labels, strict=True)]
    skipped = [
        {**label, "kind": line["kind"], "reason": line["reason"]}
        for label, line in zip(labels, lines, strict=True)
        if line.get("reason")
    ]
    scores = {line["pair_id"]: line for line in lines if not line.get("reason")}
    for line in scores.values():
        del line["digest"]
        line.pop("reason", None), line.pop("kind", None)
    _write_lines(folder / "scores.jsonl", scores.values())
    _write_lines(folder / "skipped.jsonl", skipped)
    return scores, skipped


def _make_line(pair_id: str, outcome: Outcome, digest: Callable[[str], str | None]) -> Record:
    if isinstance(outcome, Skipped):
        return {"item": pair_id, "kind": outcome.kind, "reason": outcome.reason}
    return {"item": pair_id, **outcome, "digest": digest(pair_id)}


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    write_file(path, "".join(map(seal, records)))


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
