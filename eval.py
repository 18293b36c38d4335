"""Evaluate a reward model, or a zero-shot judge, on preference pairs: score, measure, report.

    sdiareward eval --model runs/demo/model --dataset runs/demo/sdiareward --output_dir runs/eval
    sdiareward eval --judge gpt-4o-audio --dataset runs/demo/sdiareward --output_dir runs/judged

`docs/evaluation.md` is the guide, `docs/judges.md` that of judges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdiareward.common.commands import make_app, run_app
from sdiareward.common.data_help import PAIR_HELP
from sdiareward.common.optional_dependencies import check_extra
from sdiareward.evaluation.arguments import EvalArguments


if TYPE_CHECKING:
    from sdiareward.evaluation.evaluation import Evaluated

EVAL = make_app("sdiareward-eval", None, help_epilogue=PAIR_HELP)


@EVAL.default
def evaluate(args: EvalArguments) -> int:
    """Evaluate a reward model, or a zero-shot judge, on preference pairs.

    Every pair is written as soon as both of its sides are scored; the same command resumes a killed run. Two
    baselines are measured on the same pairs: one hears no words, the other hears nothing but words.
    docs/evaluation.md is the guide, docs/judges.md that of judges.
    """
    from sdiareward.evaluation.evaluation import EvaluationRun

    check_extra("eval")
    run = EvaluationRun(args, choose_evaluated(args))
    run.score()
    results = run.measure()
    print(run.report(results))
    return int(args.strict and bool(results["skipped"]))


def choose_evaluated(args: EvalArguments) -> Evaluated:
    """Return the model or the judge, not loaded yet."""
    if args.judge is not None:
        from sdiareward.judges.zero_shot.settings import choose_judge

        return choose_judge(args.judge, args.judges_file, args.judge_options)
    from sdiareward.evaluation.pair_scoring import ModelToEvaluate

    return ModelToEvaluate(args.make_spec())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return run_app(EVAL, argv, extra="eval")


if __name__ == "__main__":
    sys.exit(main())
