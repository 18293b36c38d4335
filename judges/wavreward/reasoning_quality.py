"""Have another judge rate WavReward's thoughts as Good or Poor (appendix I).

    sdiareward wavreward reasoning --predictions runs/w --dataset runs/chatreward --judge gemini-2.5-pro

The judge hears the recording and answers the four questions of the paper's prompt; thoughts are Good if all four
answers are yes. It does not see the gold score, because it rates the thoughts. An answer without thoughts is Poor
without asking the judge. Samples without a usable answer of the judge are skipped and reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic
from cyclopts import Parameter

from sdiareward.common.files import write_file
from sdiareward.common.hub import DatasetRevision
from sdiareward.common.llm import ChatClient, EndpointError
from sdiareward.common.locks import lock_folder
from sdiareward.common.provenance import write_provenance
from sdiareward.common.tables import render_table
from sdiareward.evaluation.summary import describe_changed, format_interval, format_percent, render_reasons
from sdiareward.pairs.messages import make_audio_content
from sdiareward.pairs.prompts import PromptSet, read_prompt_file

from ..settings import choose_endpoint
from .answers import parse_thoughts
from .predictions import OUT_OF_DOMAIN_FILE, PREDICTIONS_FILE, read_predictions
from .scores import Samples, measure_share, read_out_of_domain, read_samples


class Verdict(pydantic.BaseModel, strict=True):
    """The judge's answer; the prompt holds the questions."""

    is_complete: bool
    is_right_on_content: bool
    is_right_on_sound: bool
    is_faithful: bool
    reason: str


QUESTIONS = tuple(name for name in Verdict.model_fields if name != "reason")
PROMPT = "reasoning_quality"
GOOD, POOR = "Good", "Poor"
_RESULTS = {PREDICTIONS_FILE: "reasoning_quality", OUT_OF_DOMAIN_FILE: "reasoning_quality_out_of_domain"}


@Parameter(name="*")
@dataclass(kw_only=True)
class ReasoningArguments(DatasetRevision):
    predictions: Path = field(metadata={"help": "output_dir of a finished evaluation"})
    dataset: str = field(metadata={"help": "folder of the data that was evaluated"})
    split: str = field(default="test", metadata={"help": "split of the data set"})
    out_of_domain: bool = field(default=False, metadata={"help": "examine the samples evaluated as out of domain"})
    judge: str = field(metadata={"help": "name of an endpoint whose model takes audio"})
    judges_file: Path | None = field(default=None, metadata={"help": "YAML of judges (default: configs/judges.yaml)"})
    judge_options: list[str] = field(
        default_factory=list, metadata={"metavar": "KEY=VALUE", "help": "options instead of the file's"}
    )
    cache_dir: Path | None = field(
        default=None, metadata={"help": "folder of the judge's answers (default: in the evaluation's folder)"}
    )
    limit: int | None = field(default=None, metadata={"help": "examine only the first samples, this number"})


def run(args: ReasoningArguments) -> int:
    """Have the thoughts rated; return 1 if the judge failed on a sample, else 0."""
    with lock_folder(args.predictions):
        return _rate(args)


def _rate(args: ReasoningArguments) -> int:
    name = OUT_OF_DOMAIN_FILE if args.out_of_domain else PREDICTIONS_FILE
    predictions = read_predictions(args.predictions, name)[: args.limit]
    read = read_out_of_domain if args.out_of_domain else read_samples
    samples = read(args.dataset, args.split)
    settings = choose_endpoint(args.judge, args.judges_file, args.judge_options)
    client = ChatClient(settings, args.cache_dir or args.predictions / "reasoning_answers")
    results = examine(predictions, samples, client, read_prompt_file(settings.prompt_file))
    path, report = args.predictions / _RESULTS[name], render_results(results)
    write_provenance(path.with_suffix(".json"), **results)
    write_file(path.with_suffix(".md"), report)
    print(report, end="")
    return int(bool(results["failures"]))


def examine(
    predictions: Sequence[Mapping[str, Any]], samples: Samples, client: ChatClient, prompts: PromptSet | None = None
) -> dict[str, Any]:
    """Rate the thoughts of every prediction; `share_good` is 0-1, higher is better. `prompts` replace shipped ones."""
    if not predictions:
        raise ValueError("there are no predictions to examine; evaluate at least one sample.")
    rows = samples.find_rows([record["sample_id"] for record in predictions])
    thoughtful = [record for record in predictions if parse_thoughts(record["text"])]
    prompts = prompts or PromptSet()
    system = prompts.fill(PROMPT)
    asked = client.map(
        lambda record: _ask(record, samples[rows[record["sample_id"]]], client, system),
        thoughtful,
        description="examining",
    )
    verdicts: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    for record, found in zip(thoughtful, asked, strict=True):
        if isinstance(found, Exception):
            failures[record["sample_id"]] = str(found)
        else:
            verdicts[record["sample_id"]] = found
    examined = [record for record in predictions if record["sample_id"] not in failures]
    if not examined:
        raise EndpointError(f"the judge gave no usable answer; the first failure: {next(iter(failures.values()))}")
    judge = {"judge": client.settings.model, "prompt_version": prompts.compute_version(PROMPT)}
    about = {"failures": failures, **judge, "usage": client.usage}
    return {**_summarise(examined, verdicts), **about}


def _ask(record: Mapping[str, Any], sample: Mapping[str, Any], client: ChatClient, system: str) -> dict[str, Any]:
    thoughts, score = parse_thoughts(record["text"]), record["predicted"]
    given = "no score" if score is None else f"the score {score}"
    content = [
        make_audio_content(sample["audio"], name=f"sample {record['sample_id']}"),
        {"type": "text", "text": f"The judge's thoughts:\n{thoughts}\n\nIt gave {given}. Answer in JSON alone."},
    ]
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": content}]
    found = client.ask_json(messages, Verdict.model_validate).model_dump()
    return {"quality": GOOD if all(found[name] for name in QUESTIONS) else POOR, **found}


def _summarise(examined: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    is_good = [verdicts.get(record["sample_id"], {}).get("quality") == GOOD for record in examined]
    good = measure_share(is_good, examined)
    yes = {name: [verdict[name] for verdict in verdicts.values()] for name in QUESTIONS}
    return {
        "num_examined": len(examined),
        "num_scenarios": good["num_groups"],
        "num_without_thoughts": len(examined) - len(verdicts),
        "num_good": sum(is_good),
        "share_good": good["share"],
        "interval": good["interval"],
        "shares": {name: sum(answers) / len(answers) if answers else None for name, answers in yes.items()},
        "verdicts": dict(verdicts),
    }


def render_results(results: Mapping[str, Any]) -> str:
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
