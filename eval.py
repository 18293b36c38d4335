"""Evaluate a reward model on preference pairs: score, measure, report.

    python eval.py --model runs/demo/model --dataset runs/demo/sdiareward --output_dir runs/eval

Each flag is also a key of the YAML that `--config` names; flags override it, unknown keys fail. A pair's line is
written as soon as both of its sides are scored, and the same command goes on after a kill. Beside the model, two
baselines are measured on the same pairs: one that hears no words, one that hears nothing but words. `--report` makes a
page of it all, `report/index.html`; `docs/evaluation.md` is the guide.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast


if TYPE_CHECKING:
    import datasets

    from sdiareward.scoring import Scorer

Labels = list[dict[str, Any]]


@dataclass
class EvalArguments:
    """What to evaluate on what; each is a flag and a key of the YAML given with `--config`."""

    model: str = field(metadata={"help": "Folder or Hub name of the checkpoint."})
    dataset: str = field(metadata={"help": "Folder or Hub name of the pairs, or a .json, .jsonl or .parquet file."})
    output_dir: str = field(metadata={"help": "Where scores and results go; a run that was killed goes on there."})
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
    nan: Literal["error", "wrong"] = field(default="error", metadata={"help": "What a NaN reward is."})
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
            raise ValueError("compare and training are shown on the page alone: add --report, or leave them out.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 1 if `strict` and a pair was skipped, else 0."""
    from trl import TrlParser

    # The cast: TRL annotates its dataclasses with a type that no class has.
    (args,) = TrlParser(cast(Any, EvalArguments), allow_abbrev=False).parse_args_and_config(argv)
    return evaluate(args)


def evaluate(args: EvalArguments) -> int:
    """Score, measure and report; see `main`."""
    from sdiareward import pair_scores, provenance, records, reporting
    from sdiareward.report import inputs, write_page

    others = [inputs.read_evaluation(path) for path in args.compare]
    training = inputs.read_training_runs(args.training)
    pairs, labels = _load_pairs(args, args.split, args.limit)
    train, train_labels = _load_training_pairs(args, labels) if args.baselines else (None, None)
    folder = Path(args.output_dir)
    run = _identity(args, labels)
    records.open_run(folder, run)
    scores, skipped = pair_scores.score_with_model(lambda: _load_scorer(args), pairs, labels, folder)
    rows = [row for row, label in enumerate(labels) if label["pair_id"] in scores]
    if not rows:
        raise ValueError(f"none of {len(labels)} pairs could be scored; {folder / 'skipped.jsonl'} has the reasons.")
    pairs, labels = pairs.select(rows), [labels[row] for row in rows]
    by_scorer, fitted = {"model": scores}, {}
    for kind in ("acoustic", "text") if args.baselines else ():
        found = pair_scores.score_with_baseline(kind, train, train_labels or [], pairs, labels, folder)
        by_scorer[kind], fitted[kind] = found
    options = {"nan": args.nan, "num_bootstrap": args.num_bootstrap, "seed": args.seed}
    results = reporting.summarise(labels, by_scorer, train_labels, skipped, **options)
    timing = reporting.total_timing(records.JsonLines(folder / "sessions.jsonl").read())
    results |= {"baselines": fitted, "timing": timing, "run": run, "config": asdict(args), **provenance.describe_run()}
    reporting.write_report(results, [scores[label["pair_id"]] for label in labels], folder)
    print(reporting.render_report(results))
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


def _identity(args: EvalArguments, labels: Labels) -> dict[str, Any]:
    """Return what a model's scores depend on."""
    from sdiareward.prompt_files import read_prompts
    from sdiareward.records import fingerprint_model, fingerprint_pairs

    model = f"{args.model} ({fingerprint_model(args.model)})"
    identity: dict[str, Any] = {
        "model": model,
        "dtype": args.dtype,
        "split": args.split,
        "pairs": fingerprint_pairs(labels),
    }
    if args.prompt_file is not None:
        identity["prompts"] = read_prompts(args.prompt_file)
    return identity


def _load_scorer(args: EvalArguments) -> Scorer:
    from sdiareward.prompt_files import read_prompts
    from sdiareward.scoring import Scorer

    prompts = None if args.prompt_file is None else read_prompts(args.prompt_file)
    return Scorer.from_pretrained(
        args.model, dtype=args.dtype, device=args.device, prompts=prompts, batch_tokens=args.batch_tokens
    )


def _load_training_pairs(args: EvalArguments, labels: Labels) -> tuple[datasets.Dataset, Labels]:
    """Load what the baselines are fitted on; raise if it overlaps with what is evaluated."""
    train, train_labels = _load_pairs(args, args.train_split)
    for name in ("pair_id", "group_id"):
        shared = ({label[name] for label in labels} & {label[name] for label in train_labels}) - {None}
        if shared:
            raise ValueError(
                f"{args.train_split!r} and {args.split!r} share {len(shared)} {name}, such as {min(shared)!r}; "
                "baselines need a training split of other recordings: give train_split, or turn them off."
            )
    return train, train_labels


if __name__ == "__main__":
    sys.exit(main())
