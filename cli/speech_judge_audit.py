"""`sdiareward judge speechjudgeaudit`: answer the tasks of SpeechJudgeAudit with a reward model or a judge."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from sdiareward.common.locks import lock_folder
from sdiareward.common.user_errors import UserError


@dataclass(kw_only=True)
class SpeechJudgeAuditArguments:
    """What answers which tasks."""

    tasks: Path = field(metadata={"positional": True, "help": "JSON lines of tasks, which the benchmark writes"})
    output: Path = field(metadata={"positional": True, "help": "JSON lines of answers, which the benchmark reads"})
    model: str | None = field(
        default=None, metadata={"help": "checkpoint folder or Hub id (default: the nano checkpoint of the package)"}
    )
    judge: str | None = field(default=None, metadata={"help": "name of a judge, in place of a model"})
    judges_file: str | None = field(default=None, metadata={"help": "YAML of judges in place of configs/judges.yaml"})
    judge_options: list[str] = field(
        default_factory=list, metadata={"help": "KEY=VALUE in place of the judge's settings in the file"}
    )
    device: str | None = field(
        default=None, metadata={"help": "device of a model, such as cuda:0 (default: an accelerator if there is one)"}
    )
    columns: Path | None = field(
        default=None, metadata={"help": "YAML of the names of columns in tasks and answers (default: docs/audit.md)"}
    )
    root: str | None = field(default=None, metadata={"help": "folder of the recordings (default: BENCHMARK_ROOT)"})


def run(args: SpeechJudgeAuditArguments) -> None:
    """Answer the tasks; tell how many have no answer."""
    from sdiareward.eval import choose_evaluated
    from sdiareward.evaluation.arguments import EvalArguments
    from sdiareward.judges.speech_judge_audit import ROOT_VARIABLE, answer_tasks, read_layout

    root = args.root or os.environ.get(ROOT_VARIABLE)
    if not root:
        raise UserError(f"{ROOT_VARIABLE} is not set; the benchmark sets it, or give the folder with --root.")
    chosen = {name: getattr(args, name) for name in ("model", "judge", "judges_file", "judge_options", "device")}
    evaluated = choose_evaluated(EvalArguments(dataset=str(args.tasks), output_dir=str(args.output), **chosen))
    with lock_folder(args.output.with_name(f"{args.output.name}.run")):
        num_missing = answer_tasks(evaluated, args.tasks, args.output, root, read_layout(args.columns))
    if num_missing:
        sys.stderr.write(f"{num_missing} tasks have no answer; {args.output} has the reasons.\n")
