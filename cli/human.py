"""`sdiareward human`: draw pairs, or scores of two judges, for people to rate blindly on a page; score the answers."""

from __future__ import annotations

import json
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from cyclopts.types import NonNegativeInt

from sdiareward.common.commands import PAIR_HELP, make_app
from sdiareward.common.errors import UserError
from sdiareward.common.files import lock_folder
from sdiareward.common.hub import resolve_revision
from sdiareward.scoring.model_spec import DATASET, DatasetArguments


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
    """Draw a study from the pairs of a finished evaluation.

    Args:
        eval_dir: output_dir of a finished evaluation, by `sdiareward eval`.
        output_dir: Folder of the study; new or empty.
        seed: Seed of everything that is drawn.
        high: Correctly ordered pairs with large margins.
        low: Correctly ordered pairs with the smallest margins.
        random: Pairs from the rest.
        wrong: Pairs that the model orders wrongly.
        tie: Let raters answer `cannot tell`.
        texts: YAML with `instructions` and `consent`, in place of the texts that raters read before they begin.
    """
    from sdiareward.evaluation.human.study import read_texts, sample_study
    from sdiareward.evaluation.scores import read_evaluation
    from sdiareward.pairs.loading import load_pairs

    written = read_texts(texts)
    evaluation = read_evaluation(eval_dir)
    config = evaluation.config
    dataset = data.dataset or config.get("dataset")
    if not dataset:
        raise UserError("the evaluation does not record its data set; give it with --dataset and --split.")
    name, root = data.dataset_config or config.get("dataset_config"), data.audio_root or config.get("audio_root")
    pairs = load_pairs(dataset, data.split or evaluation.run.get("split"), name=name, audio_root=root)
    sizes = {"high": high, "low": low, "random": random, "wrong": wrong}
    key = sample_study(evaluation, pairs, output_dir, seed=seed, sizes=sizes, allow_tie=tie, texts=written)
    for name, asked in sizes.items():
        drawn = [truth for truth in key["items"].values() if truth["stratum"] == name]
        parts = [f"{name:<6} {len(drawn):>3}" + (f" of {asked}: there are no more" if len(drawn) < asked else "")]
        if drawn:
            parts += [_count_subsets(drawn), f"average margin {mean(truth['margin'] for truth in drawn):+.3f}"]
        print("; ".join(parts))
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
    from sdiareward.evaluation.human.study import SCORES, read_texts
    from sdiareward.judges.wavreward.ab_study import pair_scores, sample_ab_study
    from sdiareward.judges.wavreward.evaluate import OUT_OF_DOMAIN_FILE, PREDICTIONS_FILE, read_predictions
    from sdiareward.judges.wavreward.scores import read_out_of_domain, read_samples

    folders = (first_dir, second_dir)
    file = OUT_OF_DOMAIN_FILE if out_of_domain else PREDICTIONS_FILE
    pairs, counts = pair_scores(*(read_predictions(folder, file) for folder in folders), include_equal=all)
    config = json.loads((first_dir / "results.json").read_text(encoding="utf-8"))["config"]
    read = read_out_of_domain if out_of_domain else read_samples
    dataset = resolve_revision(dataset, dataset_revision, "dataset")
    samples = read(dataset or config["out_of_domain" if out_of_domain else "dataset"], split or config["split"])
    options: dict[str, Any] = {"seed": seed, "size": size, "judges": [*map(str, folders)], **counts}
    key = sample_ab_study(pairs, samples, output_dir, allow_tie=tie, texts=read_texts(texts, SCORES), **options)
    print(f"{counts['num_shared']} samples scored by both judges, {len(pairs)} to draw from")
    print(_count_subsets(key["items"].values()))
    print(f"{output_dir}: {len(key['items'])} items; keep key.json away from the raters")


def _count_subsets(drawn: Iterable[Mapping[str, Any]]) -> str:
    counts = Counter(truth["subset"] for truth in drawn)
    return ", ".join(f"{subset} {count}" for subset, count in sorted(counts.items()))


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
        rater: Name of the only rater; the same name resumes. By default raters enter their names on the page.
        port: Port of the page; a free one by default.
        host: Address to listen on, such as 0.0.0.0 for raters elsewhere, who then need a key.
        key_file: File with the key in the raters' address; by default, with --host, a new key at every start.
        public_url: Address at which raters reach the page, such as the address of a proxy with TLS.
    """
    from sdiareward.evaluation.human.server import LOCAL_HOSTS, RatingServer

    key = None if host in LOCAL_HOSTS else secrets.token_urlsafe(24)
    if key_file is not None:
        if not key_file.is_file():
            raise FileNotFoundError(f"{key_file}: no such file; write a key into it, or omit --key_file to make one.")
        key = key_file.read_text(encoding="utf-8").strip()
    with lock_folder(study_dir):
        server = RatingServer(study_dir, rater, port, host=host, key=key, public_url=public_url)

        def describe_progress() -> str:
            num_items, num_answered = len(server.study.items), len(server.study.answers.get(rater or "", ()))
            return f"{num_items} items" if rater is None else f"{num_answered} of {num_items} answered"

        # The content of a key file is the user's secret; a new key is known from here only.
        address = server.url if key_file is None else f"{server.page}?key=(the key in {key_file})"
        print(f"{address} for {rater or 'raters, each under a name'}: {describe_progress()}; Ctrl+C ends", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(f"sdiareward: {describe_progress()}", file=sys.stderr)


@HUMAN.command
def score(study_dir: Path, /, *, key: Path | None = None) -> None:
    """Compute agreement or wins from the answers.

    Args:
        study_dir: Folder of the study, with the answers.
        key: The study's key.json, if it is in another folder.
    """
    from sdiareward.evaluation.human.study import SCORES, Study, score_study
    from sdiareward.judges.wavreward.ab_study import score_ab_study

    score_form = score_ab_study if Study(study_dir).content["form"] == SCORES else score_study
    score_form(study_dir, key)
    print((study_dir / "results.md").read_text(encoding="utf-8"), end="")
