"""Evaluate WavReward or any other model on ChatReward: Table 1 with intervals, baselines, order and form.

    sdiareward wavreward eval --model runs/wavreward --dataset runs/chatreward --output_dir runs/w

Predictions are written after each chunk, and the same command resumes after a kill. `docs/wavreward.md` is the guide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from sdiareward.checkpoint_io.models import describe_model
from sdiareward.common.files import write_file
from sdiareward.common.hub import DatasetRevision, ModelRevision
from sdiareward.common.optional_dependencies import check_extra
from sdiareward.common.provenance import describe_run
from sdiareward.common.run_identity import claim_run_dir
from sdiareward.evaluation.summary import list_reasons
from sdiareward.pairs.content import fingerprint_pairs

from ..settings import EndpointSettings, choose_endpoint
from .answers import MAX_ANSWER_TOKENS
from .judge import EndpointJudge, WavRewardJudge
from .predictions import OUT_OF_DOMAIN_FILE, PREDICTIONS_FILE, Asking, predict
from .prompts import JudgingPrompt, choose_prompt
from .scores import (
    JUDGE,
    KINDS,
    Samples,
    find_scenario,
    predict_scores,
    read_out_of_domain,
    read_samples,
    render_evaluation,
    summarise_scores,
)


Records = list[dict[str, Any]]


@Parameter(name="*")
@dataclass
class EvaluateArguments(ModelRevision, DatasetRevision):
    dataset: str = field(metadata={"help": "Folder of ChatReward."})
    output_dir: str = field(
        metadata={"help": "Folder for answers and results; the same command resumes a killed run."}
    )
    model: str | None = field(default=None, metadata={"help": "Folder or Hub name of the thinker."})
    judge: str | None = field(default=None, metadata={"help": "Name of an endpoint, instead of a model."})
    judges_file: str | None = field(default=None, metadata={"help": "YAML of judges instead of configs/judges.yaml."})
    judge_options: list[str] = field(
        default_factory=list, metadata={"help": "KEY=VALUE instead of the options in the file."}
    )
    split: str = field(default="test", metadata={"help": "Split to evaluate."})
    train_split: str = field(default="train", metadata={"help": "Split the baselines are fitted on."})
    baselines: bool = field(default=True, metadata={"help": "Also measure the baselines."})
    out_of_domain: str | None = field(
        default=None, metadata={"help": "Folder of recordings with a list of file,score, or another data set."}
    )
    reasoning: bool = field(default=True, metadata={"help": "Ask for thoughts before the score."})
    num_samples: int = field(
        default=1, metadata={"help": "Answers to each recording; the majority of their scores counts."}
    )
    temperature: float = field(default=0.0, metadata={"help": "Temperature of sampling; 0 is greedy."})
    expected: bool = field(default=False, metadata={"help": "Also compute the expected score."})
    max_new_tokens: int = field(
        default=MAX_ANSWER_TOKENS,
        metadata={"help": "Longest answer of a model, in tokens; an endpoint has max_tokens in the file of judges."},
    )
    batch_size: int = field(default=8, metadata={"help": "Recordings in one batch."})
    prompt_file: str | None = field(
        default=None,
        metadata={"help": "YAML of prompts or JSON of a JudgingPrompt, instead of the judge's own or the package's."},
    )
    dtype: str | None = field(default=None, metadata={"help": "Dtype of the model, such as bfloat16."})
    device: str | None = field(
        default=None, metadata={"help": "Device, such as cuda:0; by default an accelerator if there is one."}
    )
    limit: int | None = field(default=None, metadata={"help": "Evaluate only the first samples, this number."})
    num_bootstrap: int = field(default=1000, metadata={"help": "Bootstrap draws for the intervals."})
    seed: int = field(default=0, metadata={"help": "Seed of sampling and of the bootstrap."})
    strict: bool = field(default=False, metadata={"help": "Exit with 1 if a sample was skipped."})

    def __post_init__(self) -> None:
        if (self.model is None) == (self.judge is None):
            raise ValueError("give a model or a judge to evaluate: one of the two, not both.")
        if self.judge is None and (self.judges_file or self.judge_options):
            raise ValueError("judges_file and judge_options need a judge: name one, or omit them.")

    @property
    def asking(self) -> Asking:
        return Asking(self.num_samples, self.temperature, self.expected, self.max_new_tokens, self.seed)


def run(args: EvaluateArguments) -> int:
    """Evaluate and print the report; return 1 if `strict` and a sample was skipped, else 0."""
    check_extra("eval")
    results = evaluate(args)
    print((Path(args.output_dir) / "results.md").read_text(encoding="utf-8"), end="")
    return int(args.strict and bool(results["skipped"]))


def evaluate(args: EvaluateArguments) -> dict[str, Any]:
    folder = Path(args.output_dir)
    sets = _read_sets(args)
    run = _identity(args, sets)
    claim_run_dir(folder, run)
    train = _read_training_samples(args, sets) if args.baselines else None
    judged, skipped = {}, []
    for name, samples in sets.items():
        options: dict[str, Any] = {"batch_size": args.batch_size}
        judged[name], lost = predict(lambda: _load_judge(args), samples, folder / name, args.asking, **options)
        skipped += lost
    draws: dict[str, Any] = {"num_bootstrap": args.num_bootstrap, "seed": args.seed}
    scorers = {JUDGE: summarise_scores(*judged.values(), **draws)}
    if train is not None:
        scorers |= _measure_baselines(train, sets, judged, draws)
    records = [record for found in judged.values() for record in found]
    results: dict[str, Any] = {"scorers": scorers, "num_train": train and len(train), "skipped": skipped, "run": run}
    results["problems"] = list_reasons([record for record in records if record["problem"]])
    results["changed_parameters"] = {k: v for record in records for k, v in record["changed_parameters"].items()}
    results |= {"config": asdict(args), **describe_run()}
    write_file(folder / "results.md", render_evaluation(results))
    # Written last: a folder with this file is complete.
    write_file(folder / "results.json", json.dumps(results, indent=2) + "\n")
    return results


def _read_sets(args: EvaluateArguments) -> dict[str, Samples]:
    """Read the samples by file of predictions: the benchmark, then the out-of-domain samples."""
    sets = {PREDICTIONS_FILE: read_samples(args.dataset, args.split)}
    if args.out_of_domain is not None:
        sets[OUT_OF_DOMAIN_FILE] = read_out_of_domain(args.out_of_domain, args.split)
    return {name: samples.take_first(args.limit) for name, samples in sets.items()}


def _identity(args: EvaluateArguments, sets: Mapping[str, Samples]) -> dict[str, Any]:
    if args.model is not None:
        whose = {"model": describe_model(args.model), "dtype": args.dtype}
    else:
        request = _choose_endpoint(args).request([])
        whose = {"judge": args.judge, **{name: request[name] for name in request if name != "messages"}}
    return {
        **whose,
        "reasoning": args.reasoning,
        **asdict(args.asking),
        "prompt_version": _choose_prompt(args).version,
        "split": args.split,
        "samples": {name: fingerprint_pairs(samples.labels, samples.rows) for name, samples in sets.items()},
    }


def _choose_endpoint(args: EvaluateArguments) -> EndpointSettings:
    defaults = {"max_tokens": MAX_ANSWER_TOKENS}
    return choose_endpoint(str(args.judge), args.judges_file, args.judge_options, defaults=defaults)


def _choose_prompt(args: EvaluateArguments) -> JudgingPrompt:
    own = None if args.model is not None else _choose_endpoint(args).prompt_file
    return choose_prompt(args.model, args.prompt_file or own)


def _load_judge(args: EvaluateArguments) -> EndpointJudge | WavRewardJudge:
    if args.model is None:
        cache, prompt = Path(args.output_dir) / "cache", _choose_prompt(args)
        return EndpointJudge(_choose_endpoint(args), cache, reasoning=args.reasoning, prompt=prompt)
    options: dict[str, Any] = {"dtype": args.dtype, "device": args.device, "batch_size": args.batch_size}
    options["prompt_file"] = args.prompt_file
    return WavRewardJudge.from_pretrained(args.model, reasoning=args.reasoning, **options)


def _read_training_samples(args: EvaluateArguments, sets: Mapping[str, Samples]) -> Samples:
    """Read the samples to fit baselines on; raise if they share a scenario with the evaluated ones."""
    train = read_samples(args.dataset, args.train_split)
    evaluated = {find_scenario(label) for samples in sets.values() for label in samples.labels}
    if shared := evaluated & {find_scenario(label) for label in train.labels}:
        raise ValueError(
            f"{args.train_split!r} and the evaluated samples share {len(shared)} scenarios, such as "
            f"{min(map(str, shared))!r}; give another train_split, or turn baselines off."
        )
    return train


def _measure_baselines(
    train: Samples, sets: Mapping[str, Samples], judged: Mapping[str, Records], draws: Mapping[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in KINDS:
        predictions = []
        for name, samples in sets.items():
            if kind == "most_frequent" or samples.has_texts:
                heard = {record["sample_id"] for record in judged[name]}
                scored = zip(samples.labels, predict_scores(kind, train, samples), strict=True)
                predictions.append(
                    [{**each, "predicted": score} for each, score in scored if each["sample_id"] in heard]
                )
        found[kind] = summarise_scores(*predictions, **draws)
    return found
