"""Evaluate a reward model, or a zero-shot judge, on preference pairs: score, measure, report.

    sdiareward eval --model runs/demo/model --dataset runs/demo/sdiareward --output_dir runs/eval
    sdiareward eval --judge gpt-4o-audio --dataset runs/demo/sdiareward --output_dir runs/judged

Each flag is also a key of the YAML that `--config` names; flags override it, unknown keys fail. Every pair is written
as soon as both of its sides are scored; the same command resumes a killed run. Two baselines are measured on the same
pairs: one hears no words, the other hears nothing but words. `--report` adds a page, `report/index.html`.
`docs/evaluation.md` is the guide, `docs/judges.md` that of judges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sdiareward.common.commands import Command, name_program, run_single
from sdiareward.common.data_help import PAIR_HELP
from sdiareward.common.optional_dependencies import check_extra
from sdiareward.evaluation.arguments import EvalArguments


EVAL = Command(
    "sdiareward.eval:run",
    "evaluate a reward model, or a zero-shot judge, on preference pairs",
    "Every pair is written as soon as both of its sides are scored; the same command resumes a killed run. Two\n"
    "baselines are measured on the same pairs: one hears no words, the other hears nothing but words.\n"
    "docs/evaluation.md is the guide, docs/judges.md that of judges.\n\n" + PAIR_HELP,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return run_single(EVAL, argv, prog=name_program("sdiareward-eval", "eval.py"), extra="eval")


def run(args: EvalArguments) -> int:
    """Evaluate; return 1 if `strict` and a pair was skipped, else 0."""
    check_extra("eval")
    return evaluate(args)


def evaluate(args: EvalArguments) -> int:
    """Load, score, measure and report; return the exit status."""
    from sdiareward.evaluation.evaluation import run_evaluation

    judge = None
    if args.judge is not None:
        from sdiareward.judges.zero_shot.settings import choose_judge

        judge = choose_judge(args.judge, args.judges_file, args.judge_options)
    results, text = run_evaluation(args, judge)
    print(text)
    return int(args.strict and bool(results["skipped"]))


if __name__ == "__main__":
    sys.exit(main())
