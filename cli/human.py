"""`sdiareward human`: draw pairs, or scores of two judges, for people to rate blindly on a page; score the answers."""

from __future__ import annotations

import json
import secrets
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from sdiareward.common.hub import DatasetRevision
from sdiareward.common.user_errors import UserError
from sdiareward.evaluation.human.strata import SIZES


if TYPE_CHECKING:
    from sdiareward.evaluation.human.page.sessions import Raters

_STRATA = ("high", "low", "random", "wrong")
_SEED = {"help": "seed of everything that is drawn"}
_STUDY = {"flag": "output_dir", "help": "folder of the study; new or empty"}
_TIE = {"help": "let raters answer `cannot tell`"}
_TEXTS = {
    "metavar": "FILE",
    "help": "YAML with `instructions` and `consent`, in place of the texts that raters read before they begin",
}


@dataclass(kw_only=True)
class SampleArguments(DatasetRevision):
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
    output: Path = field(metadata=_STUDY)
    seed: int = field(default=0, metadata=_SEED)
    high: int = field(
        default=SIZES["high"], metadata={"help": "correctly ordered pairs with large margins", "minimum": 0}
    )
    low: int = field(
        default=SIZES["low"], metadata={"help": "correctly ordered pairs with the smallest margins", "minimum": 0}
    )
    random: int = field(default=SIZES["random"], metadata={"help": "pairs from all the rest", "minimum": 0})
    wrong: int = field(default=SIZES["wrong"], metadata={"help": "pairs that the model orders wrongly", "minimum": 0})
    tie: bool = field(default=True, metadata=_TIE)
    texts: Path | None = field(default=None, metadata=_TEXTS)


def sample(args: SampleArguments) -> None:
    from sdiareward.evaluation.human.study import sample_study
    from sdiareward.evaluation.human.texts import read_texts
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
    sizes = {name: getattr(args, name) for name in _STRATA}
    options: dict[str, Any] = {"seed": args.seed, "sizes": sizes, "allow_tie": args.tie, "texts": texts}
    key = sample_study(evaluation, pairs, args.output, **options)
    for name, asked in sizes.items():
        drawn = [truth for truth in key["items"].values() if truth["stratum"] == name]
        print(_render_stratum(name, drawn, asked))
    print(f"{args.output}: {len(key['items'])} items; keep key.json away from the raters")


@dataclass(kw_only=True)
class CompareArguments(DatasetRevision):
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
    output: Path = field(metadata=_STUDY)
    seed: int = field(default=0, metadata=_SEED)
    size: int = field(default=120, metadata={"help": "samples to draw", "minimum": 0})
    all: bool = field(default=False, metadata={"help": "also draw samples that both judges score the same"})
    tie: bool = field(default=True, metadata=_TIE)
    texts: Path | None = field(default=None, metadata=_TEXTS)


def compare(args: CompareArguments) -> None:
    from sdiareward.evaluation.human.texts import read_texts
    from sdiareward.judges.wavreward.ab_study import pair_scores, sample_ab_study
    from sdiareward.judges.wavreward.evaluate import OUT_OF_DOMAIN_FILE, PREDICTIONS_FILE, read_predictions
    from sdiareward.judges.wavreward.scores import read_out_of_domain, read_samples

    file = OUT_OF_DOMAIN_FILE if args.out_of_domain else PREDICTIONS_FILE
    predictions = [read_predictions(folder, file) for folder in (args.first_dir, args.second_dir)]
    pairs, counts = pair_scores(*predictions, include_equal=args.all)
    config = json.loads((args.first_dir / "results.json").read_text(encoding="utf-8"))["config"]
    read = read_out_of_domain if args.out_of_domain else read_samples
    dataset = args.dataset or config["out_of_domain" if args.out_of_domain else "dataset"]
    samples = read(dataset, args.split or config["split"])
    texts = read_texts(args.texts, of_scores=True)
    options: dict[str, Any] = {"seed": args.seed, "size": args.size, "allow_tie": args.tie, "texts": texts, **counts}
    names = (str(args.first_dir), str(args.second_dir))
    key = sample_ab_study(pairs, samples, args.output, judges=names, **options)
    by_column = sorted(Counter(truth["subset"] for truth in key["items"].values()).items())
    print(f"{counts['num_shared']} samples scored by both judges, {len(pairs)} to draw from")
    print(", ".join(f"{column} {count}" for column, count in by_column))
    print(f"{args.output}: {len(key['items'])} items; keep key.json away from the raters")


def _render_stratum(name: str, drawn: list[dict[str, Any]], asked: int) -> str:
    parts = [f"{name:<6} {len(drawn):>3}" + (f" of {asked}: there are no more" if len(drawn) < asked else "")]
    if drawn:
        counts = sorted(Counter(truth["subset"] for truth in drawn).items())
        parts.append(", ".join(f"{subset} {count}" for subset, count in counts))
        parts.append(f"average margin {mean(truth['margin'] for truth in drawn):+.3f}")
    return "; ".join(parts)


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
    from sdiareward.evaluation.human.page.server import HOST, RatingServer
    from sdiareward.evaluation.human.page.sessions import Raters

    raters = Raters(args.study_dir, args.rater)
    needs_key = args.key_file is not None or args.host not in (HOST, "localhost")
    key = _choose_key(args.key_file) if needs_key else None
    server = RatingServer(raters, args.port, host=args.host, key=key, public_url=args.public_url)
    # The content of a key file is the user's secret; a new key is known from here only.
    address = server.url if args.key_file is None else f"{server.page}?key=(the key in {args.key_file})"
    print(
        f"{address} for {args.rater or 'raters, each under a name'}: {_render_progress(raters)}; Ctrl+C ends",
        flush=True,
    )
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(f"sdiareward: {_render_progress(raters)}", file=sys.stderr)


def _choose_key(path: Path | None) -> str:
    if path is None:
        return secrets.token_urlsafe(24)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; write a key into it, or omit --key_file to have one made.")
    return path.read_text(encoding="utf-8").strip()


def _render_progress(raters: Raters) -> str:
    num_items = len(raters.study["items"])
    if raters.only is None:
        return f"{num_items} items"
    return f"{len(raters.find(raters.only).answers)} of {num_items} answered"


@dataclass(kw_only=True)
class AgreementArguments:
    study_dir: Path = field(
        metadata={"positional": True, "help": "folder of the study, with the raters' files in answers/"}
    )
    key: Path | None = field(default=None, metadata={"help": "the study's key.json, if it is kept elsewhere"})


def score(args: AgreementArguments) -> None:
    from sdiareward.evaluation.human.agreement import is_score_study, render_study, score_study

    if is_score_study(args.study_dir):
        from sdiareward.judges.wavreward.ab_study import render_ab_study, score_ab_study

        print(render_ab_study(score_ab_study(args.study_dir, args.key)), end="")
    else:
        print(render_study(score_study(args.study_dir, args.key)), end="")
