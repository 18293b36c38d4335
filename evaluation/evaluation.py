"""One evaluation: load the pairs, score them, measure, and write `results.json`, `results.md` and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.machine import describe_run
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.sampling import sample_rows

from .arguments import EvalArguments
from .baselines import LabelledPairs, load_baseline_pairs, score_with_baselines
from .held_out import find_heard, find_left_out_sources, find_overlap
from .pair_scoring import ModelPairScorer, score_pairs
from .report.content import read_training_runs
from .report.figures import plot_rewards
from .report.sections import write_page
from .results_files import find_disagreements, read_evaluation
from .summary import Record, Scores, by_held_out, render_held_out, render_report, sum_cut, sum_timing, summarise


if TYPE_CHECKING:
    from sdiareward.scoring.outcomes import PairScorer


def run_evaluation(args: EvalArguments, judge: Any = None) -> tuple[Record, str]:
    """Evaluate the model of the arguments, or a judge; return the results, and the text for the terminal."""
    folder = Path(args.output_dir)
    others = [read_evaluation(path, finite=False) for path in args.compare]
    training = read_training_runs(args.training)
    pairs, labels = _load_pairs(args)
    train, omitted = None, None
    if args.baselines:
        options = {name: getattr(args, name) for name in ("baseline_data", "audio_root")}
        splits = (args.split, args.train_split)
        train, omitted = load_baseline_pairs(labels, args.dataset, *splits, name=args.dataset_name, **options)
    evaluated = args.make_spec() if judge is None else judge
    run = {**evaluated.identity(), "split": args.split, "pairs": fingerprint_pairs(labels)}

    def load_scorer() -> PairScorer:
        return ModelPairScorer(evaluated.load()) if judge is None else judge.load(folder)

    scores, skipped = score_pairs(load_scorer, pairs, labels, folder, run, retry_failed=args.retry_failed)
    rows = [row for row, label in enumerate(labels) if label["pair_id"] in scores]
    if not rows:
        reason = skipped[0]["reason"].rstrip(".") if skipped else ""
        raise ValueError(
            f"none of {len(labels)} pairs could be scored; the first: {reason}; {folder / 'skipped.jsonl'} has all "
            "reasons."
        )
    pairs, labels = pairs.select(rows), [labels[row] for row in rows]
    by_scorer: dict[str, Scores] = {"model": scores}
    fitted: Record = {}
    for kind, (found, about) in (score_with_baselines(*train, pairs, labels, folder) if train else {}).items():
        by_scorer[kind], fitted[kind] = found, about
    results = _measure(args, (pairs, labels), by_scorer, skipped, train)
    if judge is not None:
        results |= judge.describe(labels, scores, folder, num_bootstrap=args.num_bootstrap, seed=args.seed)
    if others:
        results["disagreements"] = find_disagreements(labels, scores, others, str(args.nan))
    results |= {"omitted": omitted, "baselines": fitted, "run": run, "config": asdict(args), **describe_run()}
    text = "\n".join(filter(None, [render_report(results), render_held_out(results)]))
    write_file(folder / "results.json", json.dumps(results, indent=2) + "\n")
    write_file(folder / "results.md", text)
    plot_rewards([scores[label["pair_id"]] for label in labels], folder / "rewards.png")
    if args.report:
        shown: Record = {"others": others, "training": training, "embed_audio": args.embed_audio}
        text += f"\nPage: {write_page(folder, results, pairs, labels, by_scorer, **shown)}"
    return results, text


def _load_pairs(args: EvalArguments) -> LabelledPairs:
    pairs = load_pairs(args.dataset, args.split, name=args.dataset_name, audio_root=args.audio_root)
    labels = describe_pairs(pairs)
    if args.limit is None or not labels:
        return pairs, labels
    rows = sorted(sample_rows(labels, args.limit, args.seed))
    return pairs.select(rows), [labels[row] for row in rows]


def _measure(
    args: EvalArguments,
    evaluated: LabelledPairs,
    by_scorer: Mapping[str, Scores],
    skipped: list[Record],
    train: LabelledPairs | None,
) -> Record:
    """Return the numbers of `results.json`; see `docs/evaluation.md`."""
    pairs, labels = evaluated
    scores = by_scorer["model"]
    options: Record = {"nan": args.nan, "num_bootstrap": args.num_bootstrap, "seed": args.seed}
    heard, heard_sources, heard_from = find_heard(args.model, train[1] if train else None)
    results = summarise(labels, by_scorer, heard, skipped, **options)
    sources = find_left_out_sources(labels, heard_sources)
    held_out = by_held_out(labels, by_scorer, results["left_out_synthesizers"], sources, options)
    if args.model is not None:
        results["overlap"] = find_overlap(args.model, pairs, labels, scores, options)
    sessions = JsonLines(Path(args.output_dir) / "sessions.jsonl").read()
    return {
        **results,
        "left_out_sources": sources,
        "by_held_out": held_out,
        "is_from_hub": not Path(args.dataset).exists(),
        "heard_from": heard_from,
        "cut": sum_cut([scores[label["pair_id"]] for label in labels], sessions),
        "timing": sum_timing(sessions),
    }
