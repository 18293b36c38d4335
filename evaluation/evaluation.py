"""One evaluation: load the pairs, score them, measure, and write `results.json`, `results.md` and the page."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.machine import describe_run
from sdiareward.common.package import NANO
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import describe_pairs, sample_rows
from sdiareward.pairs.loading import load_pairs

from .arguments import EvalArguments
from .baselines import load_baseline_pairs, score_with_baselines
from .report.content import read_training_runs
from .report.figures import plot_rewards
from .report.sections import render_markdown, write_page
from .scores import ModelPairScorer, find_disagreements, read_evaluation, score_pairs
from .summary import Record, Scores, find_heard, find_overlap, sum_cut, sum_timing, summarise


if TYPE_CHECKING:
    from sdiareward.scoring.outcomes import PairScorer


FIGURE = "rewards.png"


def run_evaluation(args: EvalArguments, judge: Any = None) -> tuple[Record, str]:
    """Evaluate the model of the arguments, or a judge; return the results, and the text for the terminal."""
    folder, nan = Path(args.output_dir), str(args.nan)
    others = [read_evaluation(path, finite=False) for path in args.compare]
    training = read_training_runs(args.training)
    pairs = load_pairs(args.dataset, args.split, name=args.dataset_name, audio_root=args.audio_root)
    labels = describe_pairs(pairs)
    if args.limit is not None and labels:
        rows = sorted(sample_rows(labels, args.limit, args.seed))
        pairs, labels = pairs.select(rows), [labels[row] for row in rows]
    train, omitted = None, None
    if args.baselines:
        places: Record = {"baseline_data": args.baseline_data, "audio_root": args.audio_root}
        splits = (args.split, args.train_split)
        train, omitted = load_baseline_pairs(labels, args.dataset, *splits, name=args.dataset_name, **places)
    evaluated = args.make_spec() if judge is None else judge
    run = {**evaluated.identity(), "split": args.split, "pairs": fingerprint_pairs(labels)}

    def load_scorer() -> PairScorer:
        return ModelPairScorer(evaluated.load()) if judge is None else judge.load(folder)

    scores, skipped = score_pairs(load_scorer, pairs, labels, folder, run, retry_failed=args.retry_failed)
    rows = [row for row, label in enumerate(labels) if label["pair_id"] in scores]
    if not rows:
        reason = skipped[0]["reason"].rstrip(".") if skipped else ""
        where = f"{folder / 'skipped.jsonl'} has all reasons"
        raise ValueError(f"none of {len(labels)} pairs could be scored; the first: {reason}; {where}.")
    pairs, labels = pairs.select(rows), [labels[row] for row in rows]
    by_scorer: dict[str, Scores] = {"model": scores}
    fitted: Record = {}
    for kind, (found, about) in (score_with_baselines(*train, pairs, labels, folder) if train else {}).items():
        by_scorer[kind], fitted[kind] = found, about
    options: Record = {"nan": nan, "num_bootstrap": args.num_bootstrap, "seed": args.seed}
    heard, heard_sources, heard_from = find_heard(args.model, train[1] if train else None)
    results = summarise(labels, by_scorer, heard, skipped, heard_sources, **options)
    if args.model is not None:
        results["overlap"] = find_overlap(args.model, pairs, labels, scores, options)
    if judge is not None:
        results |= judge.describe(labels, scores, folder, num_bootstrap=args.num_bootstrap, seed=args.seed)
    if others:
        results["disagreements"] = find_disagreements(labels, scores, others, nan)
    sessions = JsonLines(folder / "sessions.jsonl").read()
    own = [scores[label["pair_id"]] for label in labels]
    results |= {
        "is_from_hub": not Path(args.dataset).exists(),
        "heard_from": heard_from,
        "cut": sum_cut(own, sessions),
        "timing": sum_timing(sessions),
        "omitted": omitted,
        "baselines": fitted,
        "run": run,
        "config": asdict(args),
        **describe_run(),
    }
    text = render_markdown(results)
    write_file(folder / "results.json", json.dumps(results, indent=2) + "\n")
    write_file(folder / "results.md", text)
    plot_rewards(own, folder / FIGURE)
    if args.model is not None:
        copy_beside_model(folder, Path(args.model))
    if args.report:
        shown: Record = {"others": others, "training": training, "embed_audio": args.embed_audio}
        text += f"\nPage: {write_page(folder, results, pairs, labels, by_scorer, **shown)}"
    return results, text


def copy_beside_model(folder: Path, model: Path) -> None:
    """Copy results and figure into the folder of a model, for its card; the models of the package keep theirs."""
    is_ours = model.resolve().parent == NANO.resolve().parent
    if model.is_dir() and os.access(model, os.W_OK) and not is_ours and model.resolve() != folder.resolve():
        for name in ("results.json", FIGURE):
            shutil.copyfile(folder / name, model / name)
