"""One evaluation: load the pairs, score them, measure, and write `results.json`, `results.md` and the page."""

from __future__ import annotations

import json
import logging
import os
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sdiareward.common.errors import check_extra
from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.machine import describe_run
from sdiareward.common.package import NANO
from sdiareward.common.tables import Results
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import describe_pairs, sample_rows

from .arguments import EvalArguments
from .baselines import load_baseline_pairs, score_with_baselines
from .report.content import read_training_runs
from .report.figures import FIGURE, plot_rewards
from .report.sections import render_markdown, write_page
from .scores import ModelPairScorer, find_disagreements, load_scored_pairs, read_evaluation, score_pairs
from .summary import Record, Scores, find_heard, find_overlap, sum_cut, sum_timing, summarise


if TYPE_CHECKING:
    from sdiareward.scoring.outcomes import PairScorer


logger = logging.getLogger(__name__)


def evaluate(
    model: str | Path,
    dataset: str | Path,
    *,
    output_dir: str | Path | None = None,
    dataset_config: str | None = None,
    split: str | None = None,
    criterion: str | None = None,
    max_samples: int | None = None,
    audio_root: str | Path | None = None,
    baselines: bool = True,
    baseline_data: str | Path | None = None,
    train_split: str = "train",
    dtype: str | None = None,
    device: str | None = None,
    batch_tokens: int | None = None,
    num_bootstrap: int = 1000,
    seed: int = 0,
    report: bool = False,
) -> Results:
    """Evaluate a reward model on preference pairs, as `sdiareward eval` does.

    Args:
        model (`str` or `Path`): Folder or Hub id of a checkpoint, `"nano"` or `"small"`.
        dataset (`str` or `Path`): Table, folder or Hub id of pairs, as in [`load_pairs`].
        output_dir (`str` or `Path`, *optional*): Folder for scores and results; the same call resumes a killed run
            there. By default nothing is kept.
        dataset_config (`str`, *optional*): Configuration of the data set.
        split (`str`, *optional*): Split to evaluate, by default `"test"`; a single file has no splits.
        criterion (`str`, *optional*): Criterion of all pairs, in place of the column `criterion`.
        max_samples (`int`, *optional*): Pairs to evaluate, drawn evenly from subsets, recordings and synthesizers.
        audio_root (`str` or `Path`, *optional*): Folder at which relative paths begin that are not beside the table.
        baselines (`bool`, *optional*, defaults to `True`): Also measure the acoustic and the text baseline.
        baseline_data (`str` or `Path`, *optional*): Pairs that the baselines are fitted on, by default `dataset`.
        train_split (`str`, *optional*, defaults to `"train"`): Split of these.
        dtype (`str`, *optional*): Dtype of the backbone.
        device (`str`, *optional*): Where to compute; by default an accelerator if there is one.
        batch_tokens (`int`, *optional*): Tokens in one forward pass.
        num_bootstrap (`int`, *optional*, defaults to 1000): Bootstrap draws of the intervals.
        seed (`int`, *optional*, defaults to 0): Seed of the draws and of `max_samples`.
        report (`bool`, *optional*, defaults to `False`): Also write the page `report/index.html`.

    Returns:
        [`Results`]: The content of `results.json`; printed, it shows the tables.

    Raises:
        PairsError: The data set cannot be read, or has no such split.
        ScoringError: The model cannot be loaded.
        ValueError: No pair can be scored, or an option is out of range.

    Examples:
        >>> results = evaluate("nano", "pairs.csv")  # doctest: +SKIP
        >>> results["accuracies"]["model"]["overall_micro"]  # doctest: +SKIP
    """
    # The fields of `EvalArguments` have the names of these arguments.
    given: Record = dict(locals())
    check_extra("eval")
    given |= {name: str(value) for name, value in given.items() if isinstance(value, Path)}
    with TemporaryDirectory() if output_dir is None else nullcontext(str(output_dir)) as place:
        return Results(*run_evaluation(EvalArguments(**{**given, "output_dir": place})))


def run_evaluation(args: EvalArguments, judge: Any = None) -> tuple[Record, str]:
    """Evaluate the model of the arguments, or a judge; return the results, and the text for the terminal."""
    evaluated = args.make_spec() if judge is None else judge
    folder, nan = Path(args.output_dir), str(args.nan)
    others = [read_evaluation(path, finite=False) for path in args.compare]
    training = read_training_runs(args.training)
    source: Record = {"name": args.dataset_config, "audio_root": args.audio_root, "criterion": args.criterion}
    pairs, notice = load_scored_pairs(args.model, args.dataset, args.split, source)
    if notice:
        logger.warning("sdiareward: notice: %s", notice)
    labels = describe_pairs(pairs)
    if args.max_samples is not None and labels:
        rows = sorted(sample_rows(labels, args.max_samples, args.seed))
        pairs, labels = pairs.select(rows), [labels[row] for row in rows]
    train, omitted = None, None
    if args.baselines:
        splits = (args.split, args.train_split)
        source["baseline_data"] = args.baseline_data
        train, omitted = load_baseline_pairs(labels, args.dataset, *splits, **source)
    run = {**evaluated.identity(), "split": args.split, "pairs": fingerprint_pairs(labels)}

    def load_scorer() -> PairScorer:
        return ModelPairScorer(evaluated.load(args.criterion)) if judge is None else judge.load(folder)

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
            write_file(model / name, (folder / name).read_bytes())
