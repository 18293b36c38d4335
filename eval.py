"""Evaluate a reward model, or a zero-shot judge, on preference pairs: score, measure, report.

    python eval.py --model runs/demo/model --dataset runs/demo/sdiareward --output_dir runs/eval
    python eval.py --judge gpt-4o-audio --dataset runs/demo/sdiareward --output_dir runs/judged

Each flag is also a key of the YAML that `--config` names; flags override it, unknown keys fail. A pair's line is
written as soon as both of its sides are scored, and the same command goes on after a kill. Beside the model, two
baselines are measured on the same pairs: one that hears no words, one that hears nothing but words. `--report` makes a
page of it all, `report/index.html`; `docs/evaluation.md` is the guide, `docs/judges.md` that of judges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.escaping import escape_terminal
from sdiareward.common.locks import lock_folder
from sdiareward.common.optional_dependencies import requires_extra
from sdiareward.common.user_errors import UserError, exit_on_user_error
from sdiareward.evaluation.arguments import _OF_MODELS, EvalArguments


if TYPE_CHECKING:
    import datasets

    from sdiareward.evaluation.pair_scoring import ModelChoice
    from sdiareward.judges.zero_shot.settings import JudgeSpec

Labels = list[dict[str, Any]]


@exit_on_user_error("sdiareward-eval")
@requires_extra("eval", command="sdiareward-eval")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if `strict` and a pair was skipped, 2 if a judge cannot be reached, else 0."""
    from sdiareward.common.arguments import parse_arguments

    (args,) = parse_arguments((EvalArguments,), argv, prog="eval.py", description=__doc__)
    from sdiareward.llm.settings import EndpointError

    try:
        with lock_folder(args.output_dir):
            return evaluate(args)
    except EndpointError as error:
        print(f"eval.py: {error} What was answered is kept: the same command goes on.", file=sys.stderr)
        return 2


def evaluate(args: EvalArguments) -> int:
    """Score, measure and report; see `main`."""
    from sdiareward.common import files, provenance, run_identity
    from sdiareward.evaluation import pair_scoring, summary
    from sdiareward.evaluation.baselines import KINDS
    from sdiareward.evaluation.report import inputs, write_page
    from sdiareward.evaluation.report.disagreements import find_disagreements
    from sdiareward.pairs import labels as records

    others = [inputs.read_evaluation(path) for path in args.compare]
    training = inputs.read_training_runs(args.training)
    choice = _choose(args)
    pairs, labels = _load_pairs(args, args.split, args.limit)
    train, train_labels = _load_training_pairs(args, labels) if args.baselines else (None, None)
    folder = Path(args.output_dir)
    run = {**choice.identity(), "split": args.split, "pairs": records.fingerprint_pairs(labels)}
    run_identity.open_run(folder, run)
    scores, skipped = pair_scoring.score_pairs(
        lambda: choice.load(folder), pairs, labels, folder, retry_failed=args.retry_failed
    )
    rows = [row for row, label in enumerate(labels) if label["pair_id"] in scores]
    if not rows:
        raise ValueError(f"none of {len(labels)} pairs could be scored; {folder / 'skipped.jsonl'} has the reasons.")
    pairs, labels = pairs.select(rows), [labels[row] for row in rows]
    by_scorer, fitted = {"model": scores}, {}
    for kind in KINDS if args.baselines else ():
        found = pair_scoring.score_with_baseline(kind, train, train_labels or [], pairs, labels, folder)
        by_scorer[kind], fitted[kind] = found
    draws = {"num_bootstrap": args.num_bootstrap, "seed": args.seed}
    results = summary.summarise(labels, by_scorer, train_labels, skipped, nan=args.nan, **draws)
    results |= choice.describe(labels, scores, folder, **draws)
    if others:
        results["disagreements"] = find_disagreements(labels, scores, others, str(args.nan))
    timing = summary.total_timing(files.JsonLines(folder / "sessions.jsonl").read())
    results |= {"baselines": fitted, "timing": timing, "run": run, "config": asdict(args), **provenance.describe_run()}
    summary.write_report(results, [scores[label["pair_id"]] for label in labels], folder)
    print(escape_terminal(summary.render_report(results)))
    if args.report:
        page = write_page(
            folder, results, pairs, labels, by_scorer, others=others, training=training, embed_audio=args.embed_audio
        )
        print(f"Page: {page}")
    return int(args.strict and bool(skipped))


def _load_pairs(args: EvalArguments, split: str, limit: int | None = None) -> tuple[datasets.Dataset, Labels]:
    from sdiareward.pairs.labels import describe_pairs
    from sdiareward.pairs.loading import load_pairs

    pairs = load_pairs(args.dataset, split, name=args.dataset_name)
    if limit is not None:
        pairs = pairs.select(range(min(limit, len(pairs))))
    return pairs, describe_pairs(pairs)


def _choose(args: EvalArguments) -> ModelChoice | JudgeSpec:
    """Return what is to be evaluated, not loaded yet."""
    if args.judge is not None:
        from sdiareward.judges.zero_shot.settings import choose_judge

        return choose_judge(args.judge, args.judges_file, args.judge_options)
    from sdiareward.evaluation.pair_scoring import ModelChoice

    return ModelChoice(str(args.model), **{name: getattr(args, name) for name in _OF_MODELS})


def _load_training_pairs(args: EvalArguments, labels: Labels) -> tuple[datasets.Dataset, Labels]:
    """Load what the baselines are fitted on; raise if it overlaps with what is evaluated."""
    from sdiareward.common.user_errors import PairsError
    from sdiareward.pairs.labels import require_other_recordings

    try:
        train, train_labels = _load_pairs(args, args.train_split)
    except PairsError as error:
        remedy = "name another split with --train_split, or leave the baselines out with --no_baselines"
        raise UserError(f"{args.dataset}: the baselines have nothing to be fitted on ({error}); {remedy}.") from error
    require_other_recordings(labels, train_labels, args.split, args.train_split)
    return train, train_labels


if __name__ == "__main__":
    sys.exit(main())
