"""Evaluate WavReward or any other model on ChatReward: Table 1 with intervals, baselines, order and form.

    sdiareward eval --recipe wavreward --model runs/wavreward --dataset runs/chatreward --output_dir runs/w

Samples are judged in chunks of fixed positions, each with its own seed: sampled answers are the same whether or not a
run was interrupted. `docs/wavreward.md` is the guide.

    sdiareward eval --recipe wavreward_reasoning --predictions runs/w --dataset runs/chatreward --judge gemini-2.5-pro

Another judge rates thoughts as Good or Poor (appendix I). It hears the recording and answers the four questions of the
paper's prompt; thoughts are Good if all four answers are yes. It does not see the gold score. An answer without
thoughts is Poor without asking. Samples without a usable answer of the judge are skipped and reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import pydantic
from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.checkpoint_io.models import describe_model
from sdiareward.common.commands import YAML_ONLY
from sdiareward.common.errors import Skipped, check_extra
from sdiareward.common.files import JsonLines, format_line, lock_folder, write_file
from sdiareward.common.hub import DatasetRevision, ModelRevision
from sdiareward.common.llm import ChatClient, ChatError, EndpointError
from sdiareward.common.machine import describe_run, write_provenance
from sdiareward.common.parts import Make, PartFolder, run_parts
from sdiareward.common.tables import format_interval, format_percent, render_table
from sdiareward.evaluation.summary import describe_changed, list_reasons, render_reasons
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.messages import make_audio_content
from sdiareward.pairs.prompts import PromptSet, read_prompt_file
from sdiareward.scoring.outcomes import UNREADABLE

from ..settings import MAX_ANSWER_TOKENS, read_endpoint
from . import scores
from .judge import EndpointJudge, Judgement, WavRewardJudge, choose_prompt, parse_thoughts


PREDICTIONS_FILE, OUT_OF_DOMAIN_FILE = "predictions.jsonl", "out_of_domain.jsonl"
# A kill costs one chunk at most.
_CHUNK_SAMPLES = 32
# How a judge is asked.
_ASKING = ("num_samples", "temperature", "expected", "max_new_tokens", "seed")
Records = list[dict[str, Any]]


@Parameter(name="*")
@dataclass(kw_only=True)
class EvaluateArguments(ModelRevision, DatasetRevision):
    """What to evaluate on what.

    Args:
        dataset: Folder or Hub id of ChatReward.
        output_dir: Folder of answers and results; the same command resumes a run.
        model: Folder or Hub id of the thinker.
        judge: Name of an endpoint, instead of a model.
        judges_file: YAML of judges instead of configs/judges.yaml.
        judge_options: KEY=VALUE in place of the judge's settings in the file.
        split: Split to evaluate.
        train_split: Split to fit the baselines on.
        baselines: Also measure the baselines.
        out_of_domain: Folder with a list of file,score, or a data set.
        reasoning: Ask for thoughts before the score.
        num_samples: Answers per recording; the majority of their scores counts.
        temperature: Temperature of sampling; 0 is greedy.
        expected: Also compute the expected score.
        max_new_tokens: Longest answer of a model; of an endpoint, max_tokens in the file of judges.
        batch_size: Recordings in one batch.
        prompt_file: YAML of prompts or JSON of a JudgingPrompt, instead of the judge's own or the package's.
        dtype: Dtype of the model, such as bfloat16.
        device: Device, such as cuda:0; by default an accelerator if there is one.
        max_samples: Number of samples to evaluate, the first ones.
        num_bootstrap: Bootstrap draws for the intervals.
        seed: Seed of sampling and of the bootstrap.
        strict: Exit with 1 if a sample was skipped.
    """

    dataset: str
    output_dir: str
    model: str | None = None
    judge: str | None = None
    judges_file: str | None = None
    judge_options: list[str] = field(default_factory=list)
    split: str = "test"
    train_split: Annotated[str, YAML_ONLY] = "train"
    baselines: bool = True
    out_of_domain: str | None = None
    reasoning: bool = True
    num_samples: PositiveInt = 1
    temperature: NonNegativeFloat = 0.0
    expected: bool = False
    max_new_tokens: PositiveInt = MAX_ANSWER_TOKENS
    batch_size: int = 8
    prompt_file: str | None = None
    dtype: str | None = None
    device: str | None = None
    max_samples: PositiveInt | None = None
    num_bootstrap: Annotated[int, YAML_ONLY] = 1000
    seed: int = 0
    strict: bool = False

    def __post_init__(self) -> None:
        if (self.model is None) == (self.judge is None):
            raise ValueError("give a model or a judge to evaluate: one of the two, not both.")
        if self.judge is None and (self.judges_file or self.judge_options):
            raise ValueError("judges_file and judge_options need a judge: name one, or omit them.")
        if self.num_samples > 1 and self.temperature == 0:
            raise ValueError(f"num_samples is {self.num_samples}: without a temperature all answers are the same.")


def run(args: EvaluateArguments) -> int:
    """Evaluate and print the report; return 1 if `strict` and a sample was skipped, else 0."""
    check_extra("eval")
    results = evaluate(args)
    print((Path(args.output_dir) / "results.md").read_text(encoding="utf-8"), end="")
    return int(args.strict and bool(results["skipped"]))


def evaluate(args: EvaluateArguments) -> dict[str, Any]:
    """Judge the samples that the folder lacks, measure, and write predictions and results."""
    folder = Path(args.output_dir)
    sets = {PREDICTIONS_FILE: scores.read_samples(args.dataset, args.split)}
    if args.out_of_domain is not None:
        sets[OUT_OF_DOMAIN_FILE] = scores.read_out_of_domain(args.out_of_domain, args.split)
    sets = {name: samples.take_first(args.max_samples) for name, samples in sets.items()}
    train = _read_training_samples(args, sets) if args.baselines else None
    whose, load_judge = _choose_judge(args)
    asking = {name: getattr(args, name) for name in _ASKING}
    samples = {name: fingerprint_pairs(samples.labels, samples.rows) for name, samples in sets.items()}
    run = {**whose, "reasoning": args.reasoning, **asking, "split": args.split, "samples": samples}
    judged, skipped = {}, []
    for name, found in sets.items():
        size = max(_CHUNK_SAMPLES, args.batch_size)
        judged[name], lost = predict(load_judge, found, folder, name, run, asking, size)
        skipped += lost
    draws: dict[str, Any] = {"num_bootstrap": args.num_bootstrap, "seed": args.seed}
    scorers = {scores.JUDGE: scores.summarise_scores(*judged.values(), **draws)}
    for kind in scores.KINDS if train is not None else ():
        scorers[kind] = scores.summarise_scores(*_predict(kind, train, sets, judged), **draws)
    records = [record for found in judged.values() for record in found]
    results = {
        "scorers": scorers,
        "num_train": train and len(train),
        "skipped": skipped,
        "run": run,
        "problems": list_reasons([record for record in records if record["problem"]]),
        "changed_parameters": {k: v for record in records for k, v in record["changed_parameters"].items()},
        "config": asdict(args),
        **describe_run(),
    }
    write_file(folder / "results.md", scores.render_evaluation(results))
    # Written last: a folder with this file is complete.
    write_file(folder / "results.json", json.dumps(results, indent=2) + "\n")
    return results


def _choose_judge(args: EvaluateArguments) -> tuple[dict[str, Any], Callable[[], EndpointJudge | WavRewardJudge]]:
    """Return what the answers of the judge depend on, and how it is loaded."""
    if args.model is not None:
        options = {name: getattr(args, name) for name in ("dtype", "device", "batch_size", "reasoning", "prompt_file")}
        whose = {"model": describe_model(args.model), "dtype": args.dtype}
        prompt = choose_prompt(args.model, args.prompt_file)
        load: Any = partial(WavRewardJudge.from_pretrained, args.model, **options)
    else:
        defaults = {"max_tokens": MAX_ANSWER_TOKENS}
        settings = read_endpoint(str(args.judge), args.judges_file, args.judge_options, defaults)
        whose = {"judge": args.judge, "model": settings.model, **settings.parameters}
        prompt = choose_prompt(None, args.prompt_file or settings.prompt_file)
        cache = Path(args.output_dir) / "cache"
        load = partial(EndpointJudge, settings, cache, reasoning=args.reasoning, prompt=prompt)
    return {**whose, "prompt_version": prompt.version}, load


def predict(
    load_judge: Callable[[], EndpointJudge | WavRewardJudge],
    samples: scores.Samples,
    folder: Path,
    name: str,
    meta: Mapping[str, Any],
    asking: Mapping[str, Any],
    size: int = _CHUNK_SAMPLES,
) -> tuple[Records, Records]:
    """Judge the samples that the folder lacks; return predictions and skipped samples, which are also written.

    `name` names the file of predictions: one folder holds several sets of samples.
    """
    parts, rows = PartFolder(folder, meta), range(len(samples))
    chunks = {f"{name} {start}, {size}": rows[start : start + size] for start in rows[::size]}

    def load() -> Make:
        judge = load_judge()

        def make(pending: Iterable[Sequence[str]]) -> Iterator[Records]:
            for (item,) in pending:
                yield [{"item": item, "records": json.dumps(_judge_chunk(judge, samples, chunks[item], asking))}]

        return make

    def is_stale(chunk: Mapping[str, Any]) -> bool:
        """Return whether a recording that could not be read can be read now."""
        found = zip(chunks[chunk["item"]], json.loads(chunk["records"]), strict=True)
        return any("kind" in record and not isinstance(_hear(samples, row), Skipped) for row, record in found)

    pending = parts.find_pending(chunks, lambda finished: map(is_stale, finished), "records")
    run_parts(parts, pending, load, 1, label="judging", unit="chunk")
    done = {each["item"]: json.loads(each["records"]) for each in parts.iter_rows()}
    records = [record for item in chunks for record in done[item]]
    predictions = [record for record in records if "kind" not in record]
    skipped = [record for record in records if "kind" in record]
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / name, "".join(map(format_line, predictions)))
    write_file(folder / f"skipped_{name}", "".join(json.dumps(record) + "\n" for record in skipped))
    return predictions, skipped


def _hear(samples: scores.Samples, row: int) -> Any:
    """Return the recording of a sample, or why it is skipped."""
    sample_id = samples.labels[row]["sample_id"]
    try:
        return read_audio(samples[row]["audio"], name=f"sample {sample_id}")
    except (AudioError, FileNotFoundError) as error:
        return Skipped(sample_id, UNREADABLE, str(error))


def _judge_chunk(judge: Any, samples: scores.Samples, rows: Sequence[int], asking: Mapping[str, Any]) -> Records:
    """Return the labels of each row with its judgement, or with the reason why it is skipped."""
    recordings = [_hear(samples, row) for row in rows]
    heard = [each for each in recordings if not isinstance(each, Skipped)]
    judgements = iter(judge.judge(heard, **{**asking, "seed": asking["seed"] + rows[0]}) if heard else ())
    found = [each.explain() if isinstance(each, Skipped) else _describe(next(judgements)) for each in recordings]
    return [{**samples.labels[row], **each} for row, each in zip(rows, found, strict=True)]


def _describe(judgement: Judgement) -> dict[str, Any]:
    """Return the columns of a prediction; of several texts the first is kept."""
    record = asdict(judgement)
    return {"predicted": record.pop("score"), "text": record.pop("texts")[0], **record}


def read_predictions(folder: str | Path, name: str = PREDICTIONS_FILE) -> Records:
    folder = Path(folder)
    for file in (name, "results.json"):
        # Results are written last, so a folder with results is complete.
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder}: has no {file}; give the output_dir of a finished evaluation.")
    return JsonLines(folder / name).read()


def _read_training_samples(args: EvaluateArguments, sets: Mapping[str, scores.Samples]) -> scores.Samples:
    """Read the samples to fit baselines on; raise if they share a scenario with the evaluated ones."""
    train = scores.read_samples(args.dataset, args.train_split)
    evaluated = {scores.find_scenario(label) for samples in sets.values() for label in samples.labels}
    if shared := evaluated & {scores.find_scenario(label) for label in train.labels}:
        found = f"{args.train_split!r} and the evaluated samples share {len(shared)} scenarios"
        first = min(map(str, shared))
        raise ValueError(f"{found}, such as {first!r}; give another train_split, or turn baselines off.")
    return train


def _predict(kind: Any, train: Any, sets: Mapping[str, Any], judged: Mapping[str, Records]) -> Iterator[Records]:
    """Yield the predictions of a baseline on the samples that the judge heard."""
    for name, samples in sets.items():
        if kind == "most_frequent" or samples.has_texts:
            heard = {record["sample_id"] for record in judged[name]}
            predicted = zip(samples.labels, scores.predict_scores(kind, train, samples), strict=True)
            yield [{**label, "predicted": each} for label, each in predicted if label["sample_id"] in heard]


class Verdict(pydantic.BaseModel, strict=True):
    """The judge's answer; the prompt holds the questions."""

    is_complete: bool
    is_right_on_content: bool
    is_right_on_sound: bool
    is_faithful: bool
    reason: str


QUESTIONS = tuple(name for name in Verdict.model_fields if name != "reason")
PROMPT = "reasoning_quality"
_RESULTS = {PREDICTIONS_FILE: "reasoning_quality", OUT_OF_DOMAIN_FILE: "reasoning_quality_out_of_domain"}


@Parameter(name="*")
@dataclass(kw_only=True)
class ReasoningArguments(DatasetRevision):
    """Which thoughts to rate, and who rates them.

    Args:
        predictions: output_dir of a finished evaluation.
        dataset: Folder of the data that was evaluated.
        split: Split of the data set.
        out_of_domain: Examine the samples evaluated as out of domain.
        judge: Name of an endpoint whose model takes audio.
        judges_file: YAML of judges instead of configs/judges.yaml.
        judge_options: KEY=VALUE in place of the judge's settings in the file.
        cache_dir: Folder of the judge's answers; by default in the evaluation's folder.
        max_samples: Number of samples to examine, the first ones.
    """

    predictions: Path
    dataset: str
    split: str = "test"
    out_of_domain: bool = False
    judge: str
    judges_file: Path | None = None
    judge_options: list[str] = field(default_factory=list)
    cache_dir: Path | None = None
    max_samples: PositiveInt | None = None


def run_reasoning(args: ReasoningArguments) -> int:
    """Have the thoughts rated; return 1 if the judge failed on a sample, else 0."""
    name = OUT_OF_DOMAIN_FILE if args.out_of_domain else PREDICTIONS_FILE
    read = scores.read_out_of_domain if args.out_of_domain else scores.read_samples
    with lock_folder(args.predictions):
        predictions = read_predictions(args.predictions, name)[: args.max_samples]
        settings = read_endpoint(args.judge, args.judges_file, args.judge_options)
        client = ChatClient(settings, args.cache_dir or args.predictions / "reasoning_answers")
        prompts = read_prompt_file(settings.prompt_file)
        results = examine(predictions, read(args.dataset, args.split), client, prompts)
        path, report = args.predictions / _RESULTS[name], render_reasoning(results)
        write_provenance(path.with_suffix(".json"), **results)
        write_file(path.with_suffix(".md"), report)
    print(report, end="")
    return int(bool(results["failures"]))


def examine(
    predictions: Sequence[Mapping[str, Any]], samples: scores.Samples, client: ChatClient, prompts: PromptSet
) -> dict[str, Any]:
    """Rate the thoughts of every prediction; `share_good` is 0-1, higher is better."""
    rows = samples.find_rows([record["sample_id"] for record in predictions])
    system = prompts.fill(PROMPT)

    def ask(record: Mapping[str, Any]) -> dict[str, Any] | ChatError:
        given = "no score" if record["predicted"] is None else f"the score {record['predicted']}"
        thoughts = f"The judge's thoughts:\n{parse_thoughts(record['text'])}\n\nIt gave {given}. Answer in JSON alone."
        audio = make_audio_content(samples[rows[record["sample_id"]]]["audio"], name=f"sample {record['sample_id']}")
        content = [audio, {"type": "text", "text": thoughts}]
        messages: Any = [{"role": "system", "content": system}, {"role": "user", "content": content}]
        try:
            found = client.ask_json(messages, Verdict.model_validate).model_dump()
        except ChatError as error:
            return error
        return {"quality": "Good" if all(found[name] for name in QUESTIONS) else "Poor", **found}

    thoughtful = [record for record in predictions if parse_thoughts(record["text"])]
    asked = [record["sample_id"] for record in thoughtful]
    answers = dict(zip(asked, client.map(ask, thoughtful, "examining"), strict=True))
    verdicts: dict[str, Any] = {key: each for key, each in answers.items() if not isinstance(each, ChatError)}
    failures = {key: str(each) for key, each in answers.items() if isinstance(each, ChatError)}
    examined = [record for record in predictions if record["sample_id"] not in failures]
    if not examined:
        reason = next(iter(failures.values()), "there are no predictions")
        raise EndpointError(f"the judge gave no usable answer; the first failure: {reason}")
    is_good = [verdicts.get(record["sample_id"], {}).get("quality") == "Good" for record in examined]
    good = scores.measure_share(is_good, examined)
    return {
        "num_examined": len(examined),
        "num_scenarios": good["num_groups"],
        "num_without_thoughts": len(examined) - len(verdicts),
        "num_good": sum(is_good),
        "share_good": good["share"],
        "interval": good["interval"],
        "shares": {name: fmean(each[name] for each in verdicts.values()) if verdicts else None for name in QUESTIONS},
        "verdicts": verdicts,
        "failures": failures,
        "judge": client.settings.model,
        "prompt_version": prompts.compute_version(PROMPT),
        "usage": client.usage,
    }


def render_reasoning(results: Mapping[str, Any]) -> str:
    rows = [["**Good**", format_percent(results["share_good"]), format_interval(results["interval"])]]
    rows += [[name.replace("_", " "), format_percent(share), ""] for name, share in results["shares"].items()]
    counts = (
        f"{results['num_examined']} samples of {results['num_scenarios']} scenarios examined by {results['judge']}; "
        f"{results['num_without_thoughts']} have no thoughts and are Poor; on {len(results['failures'])} others "
        "it gave no usable answer."
    )
    table = "\n".join(render_table(["", "%", "95%"], rows))
    reasons = render_reasons([{"problem": reason} for reason in results["failures"].values()])
    notes = [reasons, *describe_changed(results["usage"].get("changed_parameters", {}))]
    return "\n\n".join(["# Quality of the thoughts", counts, table, *filter(None, notes)]) + "\n"
