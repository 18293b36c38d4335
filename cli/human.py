"""`sdiareward human`: draw pairs, or scores of two judges, for people to rate blindly on a page; score the answers."""

from __future__ import annotations

import json
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from sdiareward.common.hub import DatasetRevision
from sdiareward.common.user_errors import UserError


def _count(default: int, text: str) -> Any:
    return field(default=default, metadata={"help": text, "minimum": 0})


@dataclass(kw_only=True)
class StudyArguments(DatasetRevision):
    output: Path = field(metadata={"flag": "output_dir", "help": "folder of the study; new or empty"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    tie: bool = field(default=True, metadata={"help": "let raters answer `cannot tell`"})
    texts: Path | None = field(
        default=None,
        metadata={
            "metavar": "FILE",
            "help": "YAML with `instructions` and `consent`, in place of the texts that raters read before they begin",
        },
    )


@dataclass(kw_only=True)
class SampleArguments(StudyArguments):
    eval_dir: Path = field(
        metadata={"positional": True, "help": "output_dir of a finished evaluation, by `sdiareward eval`"}
    )
    dataset: str | None = field(
        default=None, metadata={"help": "pairs that were evaluated (default: the evaluation's)"}
    )
    split: str | None = field(default=None, metadata={"help": "split of the data set (default: the evaluation's)"})
    name: str | None = field(
        default=None,
        metadata={
            "flag": "dataset_config",
            "aliases": ("--dataset_name",),
            "help": "configuration of the data set (default: the evaluation's)",
        },
    )
    high: int = _count(20, "correctly ordered pairs with large margins")
    low: int = _count(20, "correctly ordered pairs with the smallest margins")
    random: int = _count(20, "pairs from all the rest")
    wrong: int = _count(15, "pairs that the model orders wrongly")


def sample(args: SampleArguments) -> None:
    from sdiareward.evaluation.human.study import SIZES, read_texts, sample_study
    from sdiareward.evaluation.results_files import read_evaluation
    from sdiareward.pairs.loading import load_pairs

    texts = read_texts(args.texts)
    evaluation = read_evaluation(args.eval_dir)
    dataset = args.dataset or evaluation.config.get("dataset")
    split = args.split or evaluation.run.get("split")
    if not dataset:
        raise UserError("the evaluation does not say which pairs it read; name them with --dataset and --split.")
    name, root = args.name or evaluation.config.get("dataset_name"), evaluation.config.get("audio_root")
    pairs = load_pairs(dataset, split, name=name, audio_root=root)
    sizes = {name: getattr(args, name) for name in SIZES}
    key = sample_study(evaluation, pairs, args.output, seed=args.seed, sizes=sizes, allow_tie=args.tie, texts=texts)
    for name, asked in sizes.items():
        drawn = [truth for truth in key["items"].values() if truth["stratum"] == name]
        parts = [f"{name:<6} {len(drawn):>3}" + (f" of {asked}: there are no more" if len(drawn) < asked else "")]
        if drawn:
            parts += [_count_subsets(drawn), f"average margin {mean(truth['margin'] for truth in drawn):+.3f}"]
        print("; ".join(parts))
    print(f"{args.output}: {len(key['items'])} items; keep key.json away from the raters")


def _count_subsets(drawn: Iterable[Mapping[str, Any]]) -> str:
    counts = Counter(truth["subset"] for truth in drawn)
    return ", ".join(f"{subset} {count}" for subset, count in sorted(counts.items()))


@dataclass(kw_only=True)
class CompareArguments(StudyArguments):
    first_dir: Path = field(metadata={"positional": True, "help": "evaluation of the judge whose wins are counted"})
    second_dir: Path = field(
        metadata={"positional": True, "help": "evaluation of the other judge, on the same samples"}
    )
    dataset: str | None = field(
        default=None, metadata={"help": "samples that were evaluated (default: the first evaluation's)"}
    )
    split: str | None = field(
        default=None, metadata={"help": "split of the data set (default: the first evaluation's)"}
    )
    out_of_domain: bool = field(default=False, metadata={"help": "draw from the samples evaluated as out of domain"})
    size: int = _count(120, "samples to draw")
    all: bool = field(default=False, metadata={"help": "also draw samples that both judges score the same"})


def compare(args: CompareArguments) -> None:
    from sdiareward.evaluation.human.study import SCORES, read_texts
    from sdiareward.judges.wavreward.ab_study import pair_scores, sample_ab_study
    from sdiareward.judges.wavreward.evaluate import OUT_OF_DOMAIN_FILE, PREDICTIONS_FILE, read_predictions
    from sdiareward.judges.wavreward.scores import read_out_of_domain, read_samples

    folders = (args.first_dir, args.second_dir)
    file = OUT_OF_DOMAIN_FILE if args.out_of_domain else PREDICTIONS_FILE
    pairs, counts = pair_scores(*(read_predictions(folder, file) for folder in folders), include_equal=args.all)
    config = json.loads((args.first_dir / "results.json").read_text(encoding="utf-8"))["config"]
    read = read_out_of_domain if args.out_of_domain else read_samples
    dataset = args.dataset or config["out_of_domain" if args.out_of_domain else "dataset"]
    samples = read(dataset, args.split or config["split"])
    options: dict[str, Any] = {"seed": args.seed, "size": args.size, "judges": [*map(str, folders)], **counts}
    options |= {"allow_tie": args.tie, "texts": read_texts(args.texts, SCORES)}
    key = sample_ab_study(pairs, samples, args.output, **options)
    print(f"{counts['num_shared']} samples scored by both judges, {len(pairs)} to draw from")
    print(_count_subsets(key["items"].values()))
    print(f"{args.output}: {len(key['items'])} items; keep key.json away from the raters")


@dataclass(kw_only=True)
class RateArguments:
    study_dir: Path = field(metadata={"positional": True, "help": "folder of the study; key.json need not be in it"})
    rater: str | None = field(
        default=None,
        metadata={"help": "name of the only rater; the same name resumes (default: raters give theirs on the page)"},
    )
    port: int = field(default=0, metadata={"help": "port of the page (default: a free one)"})
    host: str = field(
        default="127.0.0.1",
        metadata={"help": "address to listen at, such as 0.0.0.0 for raters elsewhere; another one needs a key"},
    )
    key_file: Path | None = field(
        default=None,
        metadata={"help": "file with the key in the raters' address (default: with --host, a new key at every start)"},
    )
    public_url: str | None = field(
        default=None, metadata={"help": "address by which raters reach the page, such as that of a proxy with TLS"}
    )


def rate(args: RateArguments) -> None:
    from sdiareward.evaluation.human.server import LOCAL_HOSTS, RatingServer

    path, key = args.key_file, None if args.host in LOCAL_HOSTS else secrets.token_urlsafe(24)
    if path is not None:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; write a key into it, or omit --key_file to have one made.")
        key = path.read_text(encoding="utf-8").strip()
    options: dict[str, Any] = {"host": args.host, "key": key, "public_url": args.public_url}
    server = RatingServer(args.study_dir, args.rater, args.port, **options)

    def describe_progress() -> str:
        num_items = len(server.study.items)
        num_answered = len(server.study.answers.get(args.rater or "", ()))
        return f"{num_items} items" if args.rater is None else f"{num_answered} of {num_items} answered"

    # The content of a key file is the user's secret; a new key is known from here only.
    address = server.url if path is None else f"{server.page}?key=(the key in {path})"
    raters = args.rater or "raters, each under a name"
    print(f"{address} for {raters}: {describe_progress()}; Ctrl+C ends", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(f"sdiareward: {describe_progress()}", file=sys.stderr)


@dataclass(kw_only=True)
class AgreementArguments:
    study_dir: Path = field(metadata={"positional": True, "help": "folder of the study, with the answers"})
    key: Path | None = field(default=None, metadata={"help": "the study's key.json, if it is kept elsewhere"})


def score(args: AgreementArguments) -> None:
    from sdiareward.evaluation.human.study import SCORES, Study, score_study
    from sdiareward.judges.wavreward.ab_study import score_ab_study

    score_form = score_ab_study if Study(args.study_dir).content["form"] == SCORES else score_study
    score_form(args.study_dir, args.key)
    print((args.study_dir / "results.md").read_text(encoding="utf-8"), end="")
