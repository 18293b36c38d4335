"""One evaluation: load the pairs, score them, measure, and write the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.provenance import describe_run
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.sampling import sample_rows

from .arguments import EvalArguments
from .baseline_pairs import LabelledPairs, load_baseline_pairs
from .cut_turns import sum_cut
from .held_out import by_held_out, find_left_out_sources, render_held_out
from .model_training import find_overlap, read_heard_sources, read_heard_synthesizers
from .pair_scoring import score_pairs, score_with_baselines
from .report import inputs, write_page
from .report.disagreements import find_disagreements
from .report.figures import plot_rewards
from .summary import name_synthesizers, render_report, sum_timing, summarise


if TYPE_CHECKING:
    from sdiareward.scoring.outcomes import PairScorer


class Evaluated(Protocol):
    """What is evaluated, not loaded yet: a reward model or a judge."""

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on, except the pairs."""
        ...

    def load(self, folder: Path) -> PairScorer:
        """Return it as a scorer of pairs that may write to the run's folder."""
        ...

    def describe(
        self, labels: Any, scores: Mapping[str, Mapping[str, Any]], folder: Path, **options: Any
    ) -> dict[str, Any]:
        """Return further results about it."""
        ...


class EvaluationRun:
    """Evaluate a model or a judge on pairs: `score`, `measure` and `report`, in this order."""

    def __init__(self, args: EvalArguments, evaluated: Evaluated):
        self.args = args
        self.evaluated = evaluated
        self.folder = Path(args.output_dir)
        self.others = [inputs.read_evaluation(path) for path in args.compare]
        self.training = inputs.read_training_runs(args.training)
        self.pairs, self.labels = self._load_pairs()
        self.train: Any = None
        self.train_labels: Any = None
        self.notice: str | None = None
        if args.baselines:
            self._load_baseline_pairs()
        self.run = {**evaluated.identity(), "split": args.split, "pairs": fingerprint_pairs(self.labels)}
        self.by_scorer: dict[str, Mapping[str, Any]] = {}
        self.fitted: dict[str, Any] = {}
        self.skipped: list[dict[str, Any]] = []

    def _load_pairs(self) -> LabelledPairs:
        args = self.args
        pairs = load_pairs(args.dataset, args.split, name=args.dataset_name, audio_root=args.audio_root)
        labels = describe_pairs(pairs)
        if args.limit is None or not labels:
            return pairs, labels
        rows = sorted(sample_rows(labels, args.limit, args.seed))
        return pairs.select(rows), [labels[row] for row in rows]

    def _load_baseline_pairs(self) -> None:
        """Load the pairs to fit the baselines on, or set the notice that there are none."""
        args = self.args
        found, self.notice = load_baseline_pairs(
            self.labels,
            args.dataset,
            args.split,
            args.train_split,
            baseline_data=args.baseline_data,
            name=args.dataset_name,
            audio_root=args.audio_root,
        )
        if found is not None:
            self.train, self.train_labels = found

    def score(self) -> None:
        """Score the pairs that the folder lacks, then score the same pairs with the baselines."""
        scores, self.skipped = score_pairs(
            lambda: self.evaluated.load(self.folder),
            self.pairs,
            self.labels,
            self.folder,
            self.run,
            retry_failed=self.args.retry_failed,
        )
        rows = [row for row, label in enumerate(self.labels) if label["pair_id"] in scores]
        if not rows:
            path, reason = self.folder / "skipped.jsonl", self.skipped[0]["reason"].rstrip(".") if self.skipped else ""
            raise ValueError(
                f"none of {len(self.labels)} pairs could be scored; the first: {reason}; {path} has all reasons."
            )
        self.pairs, self.labels = self.pairs.select(rows), [self.labels[row] for row in rows]
        self.by_scorer = {"model": scores}
        if self.train is None or self.train_labels is None:
            return
        found = score_with_baselines(self.train, self.train_labels, self.pairs, self.labels, self.folder)
        for kind, (scored, fitted) in found.items():
            self.by_scorer[kind], self.fitted[kind] = scored, fitted

    def measure(self) -> dict[str, Any]:
        """Return what `results.json` holds; see `docs/evaluation.md`."""
        args, scores = self.args, self.by_scorer["model"]
        draws = {"num_bootstrap": args.num_bootstrap, "seed": args.seed}
        heard, heard_from = self._find_heard()
        options = {"nan": args.nan, **draws}
        results = summarise(self.labels, self.by_scorer, heard, self.skipped, **options)
        sources = find_left_out_sources(self.labels, self._find_heard_sources(heard_from))
        held_out = by_held_out(self.labels, self.by_scorer, results["left_out_synthesizers"], sources, options)
        results |= {"left_out_sources": sources, "by_held_out": held_out}
        if args.model is not None:
            results["overlap"] = find_overlap(args.model, self.pairs, self.labels, scores, options)
        results |= self.evaluated.describe(self.labels, scores, self.folder, **draws)
        if self.others:
            results["disagreements"] = find_disagreements(self.labels, scores, self.others, str(args.nan))
        sessions = JsonLines(self.folder / "sessions.jsonl").read()
        return {
            **results,
            "is_from_hub": not Path(args.dataset).exists(),
            "heard_from": heard_from,
            "omitted": self.notice,
            "cut": sum_cut((scores[label["pair_id"]] for label in self.labels), sessions),
            "baselines": self.fitted,
            "timing": sum_timing(sessions),
            "run": self.run,
            "config": asdict(args),
            **describe_run(),
        }

    def _find_heard(self) -> tuple[set[str] | None, str | None]:
        """Return the synthesizers heard in training, and whether the model or the training split names them."""
        heard = read_heard_synthesizers(self.args.model)
        if heard is not None or self.train_labels is None:
            return heard, None if heard is None else "model"
        return name_synthesizers(self.train_labels), "split"

    def _find_heard_sources(self, heard_from: str | None) -> set[str] | None:
        """Return the sources of the training pairs, from where the synthesizers are known."""
        if heard_from == "split" and self.train_labels is not None:
            return {label["source"] for label in self.train_labels}
        return read_heard_sources(self.args.model)

    def report(self, results: Mapping[str, Any]) -> str:
        """Write results, report and, if requested, the page; return the text for the terminal."""
        scores = self.by_scorer["model"]
        text = "\n".join(filter(None, [render_report(results), render_held_out(results)]))
        write_file(self.folder / "results.json", json.dumps(results, indent=2) + "\n")
        write_file(self.folder / "results.md", text)
        plot_rewards([scores[label["pair_id"]] for label in self.labels], self.folder / "rewards.png")
        if not self.args.report:
            return text
        shown = {"others": self.others, "training": self.training, "embed_audio": self.args.embed_audio}
        page = write_page(self.folder, results, self.pairs, self.labels, self.by_scorer, **shown)
        return f"{text}\nPage: {page}"
