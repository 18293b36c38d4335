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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sdiareward.extras import required_by
from sdiareward.hindrances import HinderedError, hindrances_said, sole_writer
from sdiareward.printed_text import printable


if TYPE_CHECKING:
    import datasets

    from sdiareward.judges.zero_shot.settings import JudgeChoice
    from sdiareward.pair_scores import ModelChoice

Labels = list[dict[str, Any]]
_OF_MODELS = ("dtype", "device", "batch_tokens", "prompt_file")
_OF_JUDGES = ("judges_file", "judge_options", "retry_failed")


@dataclass
class EvalArguments:
    """What to evaluate on what; each is a flag and a key of the YAML given with `--config`."""

    dataset: str = field(metadata={"help": "Folder or Hub name of the pairs, or a .json, .jsonl or .parquet file."})
    output_dir: str = field(metadata={"help": "Where scores and results go; a run that was killed goes on there."})
    model: str | None = field(default=None, metadata={"help": "Folder or Hub name of the checkpoint."})
    judge: str | None = field(default=None, metadata={"help": "Name of a judge, in place of a model."})
    judges_file: str | None = field(default=None, metadata={"help": "YAML of judges, not our configs/judges.yaml."})
    judge_options: list[str] = field(
        default_factory=list, metadata={"help": "KEY=VALUE in place of what the file says of the judge."}
    )
    retry_failed: bool = field(default=False, metadata={"help": "Ask the judge again what it gave no verdict on."})
    dataset_name: str | None = field(default=None, metadata={"help": "Configuration of the data set."})
    split: str = field(default="test", metadata={"help": "Split to evaluate."})
    train_split: str = field(default="train", metadata={"help": "Split the baselines are fitted on."})
    baselines: bool = field(default=True, metadata={"help": "Also measure the acoustic and the text baseline."})
    batch_tokens: int | None = field(default=None, metadata={"help": "Tokens in one forward pass."})
    prompt_file: str | None = field(default=None, metadata={"help": "System prompts instead of the checkpoint's."})
    dtype: str | None = field(default=None, metadata={"help": "Of the backbone, such as bfloat16."})
    device: str | None = field(default=None, metadata={"help": "Such as cuda:0; by default an accelerator if any."})
    limit: int | None = field(default=None, metadata={"help": "Evaluate the first so many pairs only."})
    num_bootstrap: int = field(default=1000, metadata={"help": "Draws behind the intervals."})
    seed: int = field(default=0, metadata={"help": "Seed of those draws."})
    nan: Literal["error", "wrong"] | None = field(
        default=None, metadata={"help": "What a missing reward is; an error of a model, wrong of a judge."}
    )
    strict: bool = field(default=False, metadata={"help": "Exit with 1 if a pair had to be skipped."})
    report: bool = field(default=False, metadata={"help": "Also write report/index.html, a page to look at."})
    compare: list[str] = field(
        default_factory=list, metadata={"help": "output_dirs of other evaluations of these pairs, for the page."}
    )
    training: list[str] = field(
        default_factory=list, metadata={"help": "run.json files of train.py whose rewards the page shows."}
    )
    embed_audio: Literal["open", "all", "none"] = field(
        default="open", metadata={"help": "Recordings the page plays: those that may be passed on, all, or none."}
    )

    def __post_init__(self) -> None:
        if (self.compare or self.training) and not self.report:
            raise ValueError("compare and training are shown in the report alone: add --report, or leave them out.")
        if (self.model is None) == (self.judge is None):
            raise ValueError("give a model or a judge to evaluate: one of the two, not both.")
        foreign = _OF_MODELS if self.judge else _OF_JUDGES
        if given := [name for name in foreign if getattr(self, name)]:
            kind, remedy = ("model", "give judge_options") if self.judge else ("judge", "leave it out")
            raise ValueError(f"{', '.join(given)} can be set for a {kind} alone; {remedy}.")
        self.nan = self.nan or ("error" if self.judge is None else "wrong")


@hindrances_said("sdiareward-eval")
@required_by("sdiareward-eval", "eval")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if `strict` and a pair was skipped, 2 if a judge cannot be reached, else 0."""
    from sdiareward.trl_arguments import parse_arguments

    (args,) = parse_arguments((EvalArguments,), argv, prog="eval.py", description=__doc__)
    from sdiareward.chat_settings import EndpointError

    try:
        with sole_writer(args.output_dir):
            return evaluate(args)
    except EndpointError as error:
        print(f"eval.py: {error} What was answered is kept: the same command goes on.", file=sys.stderr)
        return 2


def evaluate(args: EvalArguments) -> int:
    """Score, measure and report; see `main`."""
    from sdiareward import pair_scores, provenance, records, reporting
    from sdiareward.baselines import KINDS
    from sdiareward.report import inputs, write_page
    from sdiareward.report.disagreements import find_disagreements

    others = [inputs.read_evaluation(path) for path in args.compare]
    training = inputs.read_training_runs(args.training)
    choice = _choose(args)
    pairs, labels = _load_pairs(args, args.split, args.limit)
    train, train_labels = _load_training_pairs(args, labels) if args.baselines else (None, None)
    folder = Path(args.output_dir)
    run = {**choice.identity(), "split": args.split, "pairs": records.fingerprint_pairs(labels)}
    records.open_run(folder, run)
    scores, skipped = pair_scores.score_pairs(
        lambda: choice.load(folder), pairs, labels, folder, retry_failed=args.retry_failed
    )
    rows = [row for row, label in enumerate(labels) if label["pair_id"] in scores]
    if not rows:
        raise ValueError(f"none of {len(labels)} pairs could be scored; {folder / 'skipped.jsonl'} has the reasons.")
    pairs, labels = pairs.select(rows), [labels[row] for row in rows]
    by_scorer, fitted = {"model": scores}, {}
    for kind in KINDS if args.baselines else ():
        found = pair_scores.score_with_baseline(kind, train, train_labels or [], pairs, labels, folder)
        by_scorer[kind], fitted[kind] = found
    draws = {"num_bootstrap": args.num_bootstrap, "seed": args.seed}
    results = reporting.summarise(labels, by_scorer, train_labels, skipped, nan=args.nan, **draws)
    results |= choice.describe(labels, scores, folder, **draws)
    if others:
        results["disagreements"] = find_disagreements(labels, scores, others, str(args.nan))
    timing = reporting.total_timing(records.JsonLines(folder / "sessions.jsonl").read())
    results |= {"baselines": fitted, "timing": timing, "run": run, "config": asdict(args), **provenance.describe_run()}
    reporting.write_report(results, [scores[label["pair_id"]] for label in labels], folder)
    print(printable(reporting.render_report(results)))
    if args.report:
        page = write_page(
            folder, results, pairs, labels, by_scorer, others=others, training=training, embed_audio=args.embed_audio
        )
        print(f"Page: {page}")
    return int(args.strict and bool(skipped))


def _load_pairs(args: EvalArguments, split: str, limit: int | None = None) -> tuple[datasets.Dataset, Labels]:
    from sdiareward.pairs import load_pairs
    from sdiareward.records import describe_pairs

    pairs = load_pairs(args.dataset, split, name=args.dataset_name)
    if limit is not None:
        pairs = pairs.select(range(min(limit, len(pairs))))
    return pairs, describe_pairs(pairs)


def _choose(args: EvalArguments) -> ModelChoice | JudgeChoice:
    """Return what is to be evaluated, not loaded yet."""
    if args.judge is not None:
        from sdiareward.judges.zero_shot.settings import choose_judge

        return choose_judge(args.judge, args.judges_file, args.judge_options)
    from sdiareward.pair_scores import ModelChoice

    return ModelChoice(str(args.model), **{name: getattr(args, name) for name in _OF_MODELS})


def _load_training_pairs(args: EvalArguments, labels: Labels) -> tuple[datasets.Dataset, Labels]:
    """Load what the baselines are fitted on; raise if it overlaps with what is evaluated."""
    from sdiareward.pairs import PairsError
    from sdiareward.records import require_other_recordings

    try:
        train, train_labels = _load_pairs(args, args.train_split)
    except PairsError as error:
        remedy = "name another split with --train_split, or leave the baselines out with --no_baselines"
        raise HinderedError(
            f"{args.dataset}: the baselines have nothing to be fitted on ({error}); {remedy}."
        ) from error
    require_other_recordings(labels, train_labels, args.split, args.train_split)
    return train, train_labels


if __name__ == "__main__":
    sys.exit(main())
