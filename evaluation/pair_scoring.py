"""Score both sides of every pair with a model or a judge, in parts, so that a rerun scores only the other pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import Heard
from sdiareward.common.errors import Skipped
from sdiareward.common.files import JsonLines, format_line, write_file
from sdiareward.common.parts import Items, Make, PartFolder, Rows, choose_size, run_parts
from sdiareward.pairs.content import digest_pair
from sdiareward.pairs.dialogues import Dialogues
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.outcomes import Labels, Outcome, PairScorer, complete_items, describe_heard


if TYPE_CHECKING:
    import datasets

    from sdiareward.scoring.scorer import Scorer

Scores = dict[str, dict[str, Any]]


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
            # A pair with a reward that is not finite has none, and counts as wrong.
            chosen, rejected = found if all(map(math.isfinite, found)) else (None, None)
            margin = None if chosen is None or rejected is None else chosen - rejected
            yield rows[position], {"chosen": chosen, "rejected": rejected, "margin": margin, **facts}

    def usage(self) -> dict[str, Any]:
        """Return how much of each recording the model hears; it costs only time."""
        return {"max_turn_s": float(self.scorer.processor.max_turn_s)}


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
            outcomes = {pair_id: found[rows[pair_id]] for pair_id in batch}
            yield [
                {"item": pair_id, **outcome.explain()}
                if isinstance(outcome, Skipped)
                else {"item": pair_id, **outcome, "digest": digest(pair_id)}
                for pair_id, outcome in outcomes.items()
            ]

    scorers: list[PairScorer] = []
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
