"""`sdiareward human`: draw pairs, or scores of two judges, for people to rate blindly on a page; score the answers."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from .arguments import InputError, count


if TYPE_CHECKING:
    from sdiareward.human.page.server import RatingSession

_SIZES = {
    "high": "correctly ordered pairs with large margins",
    "low": "correctly ordered pairs with the smallest margins",
    "random": "pairs from all the rest",
    "wrong": "pairs that the model orders wrongly",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own commands to its parser."""
    steps = parser.add_subparsers(required=True, metavar="STEP", dest="step")
    _add_sample(steps.add_parser("sample", help="draw a study from a finished evaluation", allow_abbrev=False))
    _add_ab(steps.add_parser("ab", help="draw a study of the scores of two judges (WavReward)", allow_abbrev=False))
    _add_rate(steps.add_parser("rate", help="open a study for one rater on a local page", allow_abbrev=False))
    _add_score(steps.add_parser("score", help="compute agreement or wins from the answers", allow_abbrev=False))


def _add_sample(parser: argparse.ArgumentParser) -> None:
    from sdiareward.human.study import SIZES

    parser.set_defaults(do=_sample)
    parser.add_argument("eval_dir", type=Path, help="output_dir of a finished evaluation, by eval.py")
    parser.add_argument("--dataset", help="pairs that were evaluated (default: where the evaluation read them)")
    parser.add_argument("--split", help="of the data set (default: the evaluation's)")
    parser.add_argument("--name", help="configuration of the data set (default: the evaluation's)")
    parser.add_argument("--output", type=Path, required=True, help="folder of the study; new or empty")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default: %(default)s)")
    for name, meaning in _SIZES.items():
        parser.add_argument(f"--{name}", type=count, default=SIZES[name], help=f"{meaning} (default: %(default)s)")
    parser.add_argument("--no-tie", action="store_true", help="raters must choose: there is no `cannot tell`")


def _add_ab(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(do=_ab)
    parser.add_argument("first_dir", type=Path, help="evaluation of the judge whose wins are counted")
    parser.add_argument("second_dir", type=Path, help="evaluation of the other judge, on the same samples")
    parser.add_argument(
        "--dataset", help="samples that were evaluated (default: where the first evaluation read them)"
    )
    parser.add_argument("--split", help="of the data set (default: the first evaluation's)")
    parser.add_argument("--out-of-domain", action="store_true", help="draw from what was evaluated as out of domain")
    parser.add_argument("--output", type=Path, required=True, help="folder of the study; new or empty")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default: %(default)s)")
    parser.add_argument("--size", type=count, default=120, help="samples to draw (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="also draw samples that both judges score the same")
    parser.add_argument("--no-tie", action="store_true", help="raters must choose: there is no `cannot tell`")


def _add_rate(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(do=_rate)
    parser.add_argument("study_dir", type=Path, help="folder of the study; key.json need not be in it")
    parser.add_argument("--rater", required=True, help="who rates; the same name goes on where it stopped")
    parser.add_argument("--port", type=int, default=0, help="of the page on this machine (default: a free one)")


def _add_score(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(do=_score)
    parser.add_argument("study_dir", type=Path, help="folder of the study, with the raters' files in answers/")
    parser.add_argument("--key", type=Path, help="the study's key.json, if it is kept elsewhere")


def run(args: argparse.Namespace) -> int:
    """Do one step of a study; return the exit status."""
    try:
        return args.do(args)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error


def _sample(args: argparse.Namespace) -> int:
    from sdiareward.evaluation.results_files import read_evaluation
    from sdiareward.human.study import sample_study
    from sdiareward.pairs.loading import load_pairs

    evaluation = read_evaluation(args.eval_dir)
    dataset = args.dataset or evaluation.config.get("dataset")
    split = args.split or evaluation.run.get("split")
    if not dataset or not split:
        raise InputError("the evaluation does not say which pairs it read; name them with --dataset and --split.")
    pairs = load_pairs(dataset, split, name=args.name or evaluation.config.get("dataset_name"))
    sizes = {name: getattr(args, name) for name in _SIZES}
    key = sample_study(evaluation, pairs, args.output, seed=args.seed, sizes=sizes, allow_tie=not args.no_tie)
    for name, asked in sizes.items():
        drawn = [truth for truth in key["items"].values() if truth["stratum"] == name]
        print(_describe(name, drawn, asked))
    print(f"{args.output}: {len(key['items'])} items; keep key.json away from the raters")
    return 0


def _ab(args: argparse.Namespace) -> int:
    from sdiareward.judges.wavreward.ab_study import pair_scores, sample_ab_study
    from sdiareward.judges.wavreward.predictions import OUT_OF_DOMAIN_FILE, PREDICTIONS_FILE, read_predictions
    from sdiareward.judges.wavreward.score_samples import read_out_of_domain, read_samples

    file = OUT_OF_DOMAIN_FILE if args.out_of_domain else PREDICTIONS_FILE
    predictions = [read_predictions(folder, file) for folder in (args.first_dir, args.second_dir)]
    pairs, counts = pair_scores(*predictions, include_equal=args.all)
    config = json.loads((args.first_dir / "results.json").read_text(encoding="utf-8"))["config"]
    read = read_out_of_domain if args.out_of_domain else read_samples
    dataset = args.dataset or config["out_of_domain" if args.out_of_domain else "dataset"]
    samples = read(dataset, args.split or config["split"])
    options: dict[str, Any] = {"seed": args.seed, "size": args.size, "allow_tie": not args.no_tie, **counts}
    names = (str(args.first_dir), str(args.second_dir))
    key = sample_ab_study(pairs, samples, args.output, judges=names, **options)
    by_column = sorted(Counter(truth["subset"] for truth in key["items"].values()).items())
    print(f"{counts['num_shared']} samples judged by both, {len(pairs)} to draw from")
    print(", ".join(f"{column} {count}" for column, count in by_column))
    print(f"{args.output}: {len(key['items'])} items; keep key.json away from the raters")
    return 0


def _describe(name: str, drawn: list[dict[str, Any]], asked: int) -> str:
    parts = [f"{name:<6} {len(drawn):>3}" + (f" of {asked}: there are no more" if len(drawn) < asked else "")]
    if drawn:
        counts = sorted(Counter(truth["subset"] for truth in drawn).items())
        parts.append(", ".join(f"{subset} {count}" for subset, count in counts))
        parts.append(f"average margin {mean(truth['margin'] for truth in drawn):+.3f}")
    return "; ".join(parts)


def _rate(args: argparse.Namespace) -> int:
    from sdiareward.human.page.server import RatingServer, RatingSession

    session = RatingSession(args.study_dir, args.rater)
    server = RatingServer(session, args.port)
    print(f"{server.url} for {args.rater}: {_progress(session)}; Ctrl+C ends", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(f"sdiareward: {_progress(session)}", file=sys.stderr)
    finally:
        server.server_close()
    return 0


def _progress(session: RatingSession) -> str:
    return f"{len(session.answers)} of {len(session.items)} answered"


def _score(args: argparse.Namespace) -> int:
    from sdiareward.human.agreement import is_score_study, render_study, score_study

    if is_score_study(args.study_dir):
        from sdiareward.judges.wavreward.ab_study import render_ab_study, score_ab_study

        print(render_ab_study(score_ab_study(args.study_dir, args.key)), end="")
    else:
        print(render_study(score_study(args.study_dir, args.key)), end="")
    return 0
