"""Evaluate a reward model, or a zero-shot judge, on preference pairs: score, measure, report.

    sdiareward eval --model runs/demo/model --dataset runs/demo/sdiareward --output_dir runs/eval
    sdiareward eval --judge gpt-4o-audio --dataset runs/demo/sdiareward --output_dir runs/judged

`docs/evaluate.md` is the guide, `docs/judges.md` that of judges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sdiareward.common.commands import PAIR_HELP, make_app, run_app
from sdiareward.common.errors import check_extra
from sdiareward.evaluation.arguments import EvalArguments


EVAL = make_app("sdiareward-eval", None, help_epilogue=PAIR_HELP)


@EVAL.default
def evaluate(args: EvalArguments) -> int:
    """Evaluate a reward model, or a zero-shot judge, on preference pairs.

    Every pair is written as soon as both of its sides are scored; the same command resumes a killed run. Two
    baselines are measured on the same pairs: one hears no words, the other hears nothing but words.
    docs/evaluate.md is the guide, docs/judges.md that of judges.
    """
    from sdiareward.evaluation.evaluation import run_evaluation

    check_extra("eval")
    judge = None
    if args.judge is not None:
        from sdiareward.judges.zero_shot.judging import choose_judge

        judge = choose_judge(args.judge, args.judges_file, args.judge_options)
    results, text = run_evaluation(args, judge)
    print(text)
    return int(args.strict and bool(results["skipped"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return run_app(EVAL, argv, extra="eval")


if __name__ == "__main__":
    sys.exit(main())
