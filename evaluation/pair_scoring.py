"""Score both sides of every pair, with a model, a judge or a baseline, and keep the scores in a run's folder.

What is there already is not computed again: scores of a model or a judge are kept line by line, a baseline's as a
whole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sdiareward.checkpoint_io.fingerprint import fingerprint_model
from sdiareward.common.files import JsonLines, write_file
from sdiareward.pairs.labels import fingerprint_pairs
from sdiareward.pairs.lazy_sides import Sides
from sdiareward.pairs.prompts import read_prompts
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.batching import complete_groups

from .baselines import Kind, score_baseline


if TYPE_CHECKING:
    import datasets

    from sdiareward.scoring.scorer import Scorer

Labels = Sequence[Mapping[str, Any]]
_NUM_THREADS = 2


class PairScorer(Protocol):
    """Something that scores pairs: a reward model or a judge."""

    @property
    def audio_s(self) -> float:
        """Seconds of audio heard so far."""
        ...

    def score_rows(
        self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int], reasons: dict[int, str]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each row that is done with `chosen`, `rejected`, `margin` and whatever else its line is to hold.

        Args:
            pairs (`datasets.Dataset`): Pairs as `loading.load_pairs` gives them.
            labels (`Sequence[Mapping]`): What `labels.describe_pairs` says of each.
            rows (`Sequence[int]`): Which of them to score.
            reasons (`dict[int, str]`): Receives why a row cannot be scored.
        """
        ...

    def usage(self) -> dict[str, Any]:
        """Return what else is worth keeping of this session."""
        ...


@dataclass(frozen=True)
class ModelChoice:
    """A reward model to evaluate, and how.

    Args:
        model (`str`): Folder or Hub name of the checkpoint.
        dtype (`str`, *optional*): Of the backbone, such as `"bfloat16"`.
        device (`str`, *optional*): Such as `"cuda:0"`; by default an accelerator if there is one.
        batch_tokens (`int`, *optional*): Tokens in one forward pass.
        prompt_file (`str`, *optional*): System prompts in place of the checkpoint's; see `prompt_files`.
    """

    model: str
    dtype: str | None = None
    device: str | None = None
    batch_tokens: int | None = None
    prompt_file: str | None = None

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on, but for the pairs."""
        identity: dict[str, Any] = {"model": f"{self.model} ({fingerprint_model(self.model)})", "dtype": self.dtype}
        return identity if self.prompt_file is None else {**identity, "prompts": read_prompts(self.prompt_file)}

    def load(self, folder: Path) -> PairScorer:
        """Return the model as a scorer of pairs; it writes nothing to the run's `folder`."""
        from sdiareward.scoring.scorer import Scorer

        prompts = None if self.prompt_file is None else read_prompts(self.prompt_file)
        scorer = Scorer.from_pretrained(
            self.model, dtype=self.dtype, device=self.device, prompts=prompts, batch_tokens=self.batch_tokens
        )
        return ModelPairScorer(scorer)

    def describe(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return nothing: what is to be said of a model is in its scores."""
        return {}


class ModelPairScorer:
    """Score pairs with a reward model.

    Args:
        scorer (`Scorer`): The model.
    """

    def __init__(self, scorer: Scorer):
        self.scorer = scorer

    @property
    def audio_s(self) -> float:
        """Seconds of audio scored so far."""
        return self.scorer.audio_s

    def score_rows(
        self, pairs: datasets.Dataset, labels: Labels, rows: Sequence[int], reasons: dict[int, str]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each row that is done with `chosen`, `rejected` and `margin`; see [`PairScorer`]."""
        criteria = [labels[row]["criterion"] for row in rows for _ in SIDES]
        sides = Sides(pairs, rows)
        # Both sides of a pair in one batch: they often share clips, and a pair is done as soon as its batch is.
        positions = [index // len(SIDES) for index in range(len(sides))]
        bad: dict[int, str] = {}
        results = self.scorer.iter_scores(sides, criteria, groups=positions, skipped=bad, progress=True)
        for position, (chosen, rejected) in complete_groups(results, len(SIDES)):
            yield rows[position], {"chosen": chosen, "rejected": rejected, "margin": chosen - rejected}
        for index, reason in sorted(bad.items(), reverse=True):
            reasons[rows[index // len(SIDES)]] = f"{SIDES[index % len(SIDES)]}, {reason}"

    def usage(self) -> dict[str, Any]:
        """Return nothing: a model costs time alone."""
        return {}


def score_pairs(
    load_scorer: Callable[[], PairScorer],
    pairs: datasets.Dataset,
    labels: Labels,
    folder: Path,
    *,
    retry_failed: bool = False,
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Score every pair that `scores.jsonl` does not have yet, writing each as soon as both of its sides are done.

    A pair whose audio cannot be read is skipped; `skipped.jsonl` says why.

    Args:
        load_scorer (`Callable`): Returns a new scorer; called only if something is left to score.
        pairs (`datasets.Dataset`): Pairs to score.
        labels (`Sequence[Mapping]`): What `labels.describe_pairs` says of each.
        folder (`Path`): The run's folder.
        retry_failed (`bool`, *optional*, defaults to `False`): Score pairs that have no reward once more.

    Returns:
        `tuple[dict, list]`: The line of each scored pair by `pair_id` (its labels, `chosen`, `rejected`, `margin`),
        and the labels of each skipped pair with its `reason`.
    """
    log = JsonLines(folder / "scores.jsonl")
    scores = {record["pair_id"]: record for record in log.read()}
    if retry_failed:
        scores = {pair_id: record for pair_id, record in scores.items() if record["margin"] is not None}
        write_file(log.path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in scores.values()))
    pending = [row for row, label in enumerate(labels) if label["pair_id"] not in scores]
    reasons: dict[int, str] = {}
    if pending:
        scorer, start, num_pairs = load_scorer(), time.perf_counter(), 0
        try:
            for row, found in scorer.score_rows(pairs, labels, pending, reasons):
                record = {**labels[row], **found}
                log.append([record])
                scores[record["pair_id"]] = record
                num_pairs += 1
        finally:
            timing = {"num_pairs": num_pairs, "audio_s": scorer.audio_s, "scoring_s": time.perf_counter() - start}
            JsonLines(folder / "sessions.jsonl").append([{**timing, **scorer.usage()}])
    skipped = [{**labels[row], "reason": reason} for row, reason in sorted(reasons.items())]
    write_file(folder / "skipped.jsonl", "".join(json.dumps(record) + "\n" for record in skipped))
    return scores, skipped


def score_with_model(
    load_scorer: Callable[[], Scorer], pairs: datasets.Dataset, labels: Labels, folder: Path
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Score pairs with a reward model; `load_scorer` returns a new scorer, all else is as in `score_pairs`."""
    return score_pairs(lambda: ModelPairScorer(load_scorer()), pairs, labels, folder)


def score_with_baseline(
    kind: Kind,
    train: datasets.Dataset,
    train_labels: Labels,
    pairs: datasets.Dataset,
    labels: Labels,
    folder: Path,
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Score pairs with a baseline, or read its scores of the same pairs from an earlier run in the folder.

    Args:
        kind (`"acoustic"` or `"text"`): Which baseline.
        train (`datasets.Dataset`): Pairs to fit on.
        train_labels (`Sequence[Mapping]`): What `labels.describe_pairs` says of each.
        pairs (`datasets.Dataset`): Pairs to score.
        labels (`Sequence[Mapping]`): What `labels.describe_pairs` says of each.
        folder (`Path`): The run's folder.

    Returns:
        `tuple[dict, dict]`: `chosen` and `rejected` by `pair_id`, and what the baseline was fitted on.
    """
    path = folder / f"{kind}.json"
    identity = {"train": fingerprint_pairs(train_labels), "pairs": fingerprint_pairs(labels)}
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
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
        fitted = {"num_train": result.num_train, "skipped_train": result.skipped_train}
        sides = zip(labels, result.chosen.tolist(), result.rejected.tolist(), strict=True)
        scores = {label["pair_id"]: {"chosen": chosen, "rejected": rejected} for label, chosen, rejected in sides}
        kept = {"identity": identity, "fitted": fitted, "scores": scores}
        write_file(path, json.dumps(kept) + "\n")
    return kept["scores"], kept["fitted"]
