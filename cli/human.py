"""`sdiareward human`: draw pairs, or scores of two judges, for people to rate blindly on a page; score the answers."""

from __future__ import annotations

import json
import secrets
import sys
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from cyclopts.types import NonNegativeInt

from sdiareward.common.commands import make_app
from sdiareward.common.data_help import PAIR_HELP
from sdiareward.common.hub import resolve_revision
from sdiareward.common.locks import lock_folder
from sdiareward.common.user_errors import UserError
from sdiareward.scoring.arguments import DATASET, DatasetArguments


if TYPE_CHECKING:
    from sdiareward.evaluation.human.page.sessions import Raters

HUMAN = make_app("human", "Let people rate pairs blindly, and measure agreement.")


@HUMAN.command(help_epilogue=PAIR_HELP)
def sample(
    eval_dir: Path,
    /,
    *,
    output_dir: Path,
    seed: int = 0,
    high: NonNegativeInt = 20,
    low: NonNegativeInt = 20,
    random: NonNegativeInt = 20,
    wrong: NonNegativeInt = 15,
    tie: bool = True,
    texts: Path | None = None,
    data: DatasetArguments = DATASET,
) -> None:
    """Draw a study from a finished evaluation; its pairs are read again, or those of --dataset.

    Args:
        eval_dir: output_dir of a finished evaluation, by `sdiareward eval`.
        output_dir: Folder of the study; new or empty.
        seed: Seed of everything that is drawn.
        high: Correctly ordered pairs with large margins.
        low: Correctly ordered pairs with the smallest margins.
        random: Pairs from all the rest.
        wrong: Pairs that the model orders wrongly.
        tie: Let raters answer `cannot tell`.
        texts: YAML with `instructions` and `consent`, in place of the texts that raters read before they begin.
    """
    from sdiareward.evaluation.human.study import sample_study
    from sdiareward.evaluation.human.texts import read_texts
    from sdiareward.evaluation.results_files import read_evaluation
    from sdiareward.pairs.loading import load_pairs

    written = read_texts(texts)
    evaluation = read_evaluation(eval_dir)
    config = evaluation.config
    dataset = data.dataset or config.get("dataset")
    if not dataset:
        raise UserError("the evaluation does not say which pairs it read; name them with --dataset and --split.")
    name, root = data.dataset_config or config.get("dataset_name"), data.audio_root or config.get("audio_root")
    pairs = load_pairs(dataset, data.split or evaluation.run.get("split"), name=name, audio_root=root)
    sizes = {"high": high, "low": low, "random": random, "wrong": wrong}
    key = sample_study(evaluation, pairs, output_dir, seed=seed, sizes=sizes, allow_tie=tie, texts=written)
    for name, asked in sizes.items():
        drawn = [truth for truth in key["items"].values() if truth["stratum"] == name]
        print(_render_stratum(name, drawn, asked))
    print(f"{output_dir}: {len(key['items'])} items; keep key.json away from the raters")


@HUMAN.command(name="ab")
def compare(
    first_dir: Path,
    second_dir: Path,
    /,
    *,
    output_dir: Path,
    dataset: str | None = None,
    dataset_revision: str | None = None,
    split: str | None = None,
    out_of_domain: bool = False,
    seed: int = 0,
    size: NonNegativeInt = 120,
    all: bool = False,
    tie: bool = True,
    texts: Path | None = None,
) -> None:
    """Draw a study of the scores of two judges (WavReward).

    Args:
        first_dir: Evaluation of the judge whose wins are counted.
        second_dir: Evaluation of the other judge, on the same samples.
        output_dir: Folder of the study; new or empty.
        dataset: Samples that were evaluated; the first evaluation's by default.
        dataset_revision: Branch, tag or commit of the data set on the Hub; main by default.
        split: Split of the data set; the first evaluation's by default.
        out_of_domain: Draw from the samples evaluated as out of domain.
        seed: Seed of everything that is drawn.
        size: Samples to draw.
        all: Also draw samples that both judges score the same.
        tie: Let raters answer `cannot tell`.
        texts: YAML with `instructions` and `consent`, in place of the texts that raters read before they begin.
    """
    from sdiareward.evaluation.human.texts import read_texts
    from sdiareward.judges.wavreward.ab_study import pair_scores, sample_ab_study
    from sdiareward.judges.wavreward.predictions import OUT_OF_DOMAIN_FILE, PREDICTIONS_FILE, read_predictions
    from sdiareward.judges.wavreward.scores import read_out_of_domain, read_samples

    file = OUT_OF_DOMAIN_FILE if out_of_domain else PREDICTIONS_FILE
    predictions = [read_predictions(folder, file) for folder in (first_dir, second_dir)]
    pairs, counts = pair_scores(*predictions, include_equal=all)
    config = json.loads((first_dir / "results.json").read_text(encoding="utf-8"))["config"]
    read = read_out_of_domain if out_of_domain else read_samples
    dataset = resolve_revision(dataset, dataset_revision, "dataset")
    samples = read(dataset or config["out_of_domain" if out_of_domain else "dataset"], split or config["split"])
    written = read_texts(texts, of_scores=True)
    options: dict[str, Any] = {"seed": seed, "size": size, "allow_tie": tie, "texts": written, **counts}
    key = sample_ab_study(pairs, samples, output_dir, judges=(str(first_dir), str(second_dir)), **options)
    by_column = sorted(Counter(truth["subset"] for truth in key["items"].values()).items())
    print(f"{counts['num_shared']} samples scored by both judges, {len(pairs)} to draw from")
    print(", ".join(f"{column} {count}" for column, count in by_column))
    print(f"{output_dir}: {len(key['items'])} items; keep key.json away from the raters")


def _render_stratum(name: str, drawn: list[dict[str, Any]], asked: int) -> str:
    parts = [f"{name:<6} {len(drawn):>3}" + (f" of {asked}: there are no more" if len(drawn) < asked else "")]
    if drawn:
        counts = sorted(Counter(truth["subset"] for truth in drawn).items())
        parts.append(", ".join(f"{subset} {count}" for subset, count in counts))
        parts.append(f"average margin {mean(truth['margin'] for truth in drawn):+.3f}")
    return "; ".join(parts)


@HUMAN.command
def rate(
    study_dir: Path,
    /,
    *,
    rater: str | None = None,
    port: int = 0,
    host: str = "127.0.0.1",
    key_file: Path | None = None,
    public_url: str | None = None,
) -> None:
    """Open a study for raters on a page.

    Args:
        study_dir: Folder of the study; key.json need not be in it.
        rater: Name of the only rater; the same name resumes; by default raters give theirs on the page.
        port: Port of the page; a free one by default.
        host: Address to listen at, such as 0.0.0.0 for raters elsewhere; another one needs a key.
        key_file: File with the key in the raters' address; by default, with --host, a new key at every start.
        public_url: Address by which raters reach the page, such as that of a proxy with TLS.
    """
    from sdiareward.evaluation.human.page.server import HOST, RatingServer
    from sdiareward.evaluation.human.page.sessions import Raters

    with lock_folder(study_dir):
        raters = Raters(study_dir, rater)
        needs_key = key_file is not None or host not in (HOST, "localhost")
        key = _choose_key(key_file) if needs_key else None
        server = RatingServer(raters, port, host=host, key=key, public_url=public_url)
        # The content of a key file is the user's secret; a new key is known from here only.
        address = server.url if key_file is None else f"{server.page}?key=(the key in {key_file})"
        who = rater or "raters, each under a name"
        print(f"{address} for {who}: {_render_progress(raters)}; Ctrl+C ends", flush=True)
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


@HUMAN.command
def score(study_dir: Path, /, *, key: Path | None = None) -> None:
    """Compute agreement or wins from the answers.

    Args:
        study_dir: Folder of the study, with the raters' files in answers/.
        key: The study's key.json, if it is kept elsewhere.
    """
    from sdiareward.evaluation.human.agreement import is_score_study, render_study, score_study

    if is_score_study(study_dir):
        from sdiareward.judges.wavreward.ab_study import render_ab_study, score_ab_study

        print(render_ab_study(score_ab_study(study_dir, key)), end="")
    else:
        print(render_study(score_study(study_dir, key)), end="")
