"""Evaluate a reward model, or a zero-shot judge, on preference pairs: score, measure, report.

    sdiareward eval --model runs/demo/model --dataset runs/demo/sdiareward-demo --output_dir runs/eval
    sdiareward eval --judge gpt-4o-audio --dataset runs/demo/sdiareward-demo --output_dir runs/judged

A recipe evaluates WavReward on ChatReward. `docs/evaluate.md` is the guide, `docs/judges.md` the guide of judges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sdiareward.common.commands import PAIR_HELP, make_app, run_app
from sdiareward.common.errors import check_extra
from sdiareward.common.settings import read_mapping, require_mapping
from sdiareward.evaluation.arguments import EvalArguments


EVAL = make_app("eval", None, help_epilogue=PAIR_HELP)
EVAL.command(
    "sdiareward.judges.wavreward.evaluate:run",
    name="--recipe=wavreward",
    help="Evaluate WavReward or another model on ChatReward: Table 1 with intervals and baselines.\n\n"
    "The same command resumes a killed run. docs/wavreward.md is the guide.\n\n"
    "Keys of --config without a flag: num_bootstrap, train_split.",
)
EVAL.command(
    "sdiareward.judges.wavreward.evaluate:run_reasoning",
    name="--recipe=wavreward_reasoning",
    help="Have another judge rate WavReward's thoughts as Good or Poor (appendix I).\n\n"
    "Answers are cached in cache_dir: the same command resumes a killed run.",
)


@EVAL.command(name="--judge=list")
def list_judges(*, judges_file: Path | None = None) -> None:
    """List the zero-shot judges.

    Args:
        judges_file: YAML of judges; configs/judges.yaml of the package by default.
    """
    from sdiareward.judges.settings import JUDGES_FILE

    path = judges_file or JUDGES_FILE
    judges = read_mapping(path)
    width = max(map(len, map(str, judges)), default=0)
    for name, settings in judges.items():
        require_mapping(settings, f"{path}: {name}")
        print(f"{name!s:<{width}}  {settings.get('backend', '')}  {settings.get('model', '')}".rstrip())


@EVAL.default
def evaluate(args: EvalArguments) -> int:
    """Evaluate a reward model, or a zero-shot judge, on preference pairs.

    Every pair is written as soon as both of its sides are scored; the same command resumes a killed run. Two
    baselines are measured on the same pairs: one hears the sound without words, the other reads the words alone.
    docs/evaluate.md is the guide, docs/judges.md the guide of judges.

    Keys of --config without a flag: baseline_data, baseline_revision, nan, num_bootstrap, retry_failed, train_split,
    training.
    """
    from sdiareward.evaluation.evaluation import run_evaluation

    check_extra("eval")
    judge = None
    if args.judge is not None:
        from sdiareward.judges.zero_shot.judging import choose_judge

        judge = choose_judge(args.judge, args.judges_file, args.judge_options)
    results, text = run_evaluation(args, judge)
    print(text)
    if args.calibrate is not None:
        _calibrate(args)
    return int(args.strict and bool(results["skipped"]))


def _calibrate(args: EvalArguments) -> None:
    """Fit a calibration on the evaluated pairs, save a calibrated copy of the checkpoint, and print the fit."""
    from sdiareward.checkpoint_io.models import find_checkpoint
    from sdiareward.evaluation.calibrate import calibrate_checkpoint, find_calibration_warnings
    from sdiareward.evaluation.scores import read_evaluation

    checkpoint, evaluation = find_checkpoint(str(args.model)), read_evaluation(args.output_dir)
    for warning in find_calibration_warnings(evaluation, checkpoint):
        print(f"sdiareward: notice: {warning}", file=sys.stderr)
    subsets = calibrate_checkpoint(checkpoint, evaluation, str(args.calibrate))["subsets"]
    width = max(map(len, (*subsets, "subset")))
    print(f"{'subset':<{width}}  {'pairs':>6}  {'offset':>9}  {'temperature':>11}")
    for name, fitted in subsets.items():
        numbers = f"{fitted['num_pairs']:>6}  {fitted['offset']:>+9.4f}  {fitted['temperature']:>11.4f}"
        print(f"{name:<{width}}  {numbers}")
    print(f"Calibrated checkpoint: {args.calibrate}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return run_app(EVAL, argv, extra="eval")


if __name__ == "__main__":
    sys.exit(main())
