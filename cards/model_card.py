"""Render the card of a checkpoint, in its folder or in a repository on the Hub, from the files beside it.

An `about.md` beside the checkpoint holds the facts that only a person knows (purpose, misuse, licence): YAML for the
header of the card, then prose with `$fields` for every number. The default is `model_about.md`, which holds for every
model of this package. Results are also written for the Hub's leaderboards, as `.eval_results/*.yaml`; other tools read
them in the header.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from string import Template
from typing import TYPE_CHECKING, Any, Literal

import yaml

from sdiareward.auditing.report import describe_sample, list_findings
from sdiareward.auditing.verdicts import FAIL, read_audit, show_limit, show_value
from sdiareward.checkpoint_io.files import ADAPTER_WEIGHTS, FOLDS, iter_tensors, list_weight_files, read_json
from sdiareward.checkpoint_io.training_record import describe_stages, list_stages
from sdiareward.common.files import write_file
from sdiareward.common.hub import split_commit
from sdiareward.common.package import CARDS
from sdiareward.common.tables import escape_code, escape_markdown, render_markdown_table
from sdiareward.esdr_accuracy.pairwise import COLUMNS
from sdiareward.evaluation.folds import render_folds
from sdiareward.evaluation.report.figures import FIGURE
from sdiareward.evaluation.report.sections import render_markdown
from sdiareward.evaluation.summary import (
    ALL_LEFT_OUT,
    ALL_SEEN,
    CRITERION_COLUMNS,
    TITLES,
    describe_overlap,
    format_percent,
    phrase_interval,
)
from sdiareward.pairs.labels import TRAINED_ON
from sdiareward.pairs.loading import name_data


if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

ABOUT = "about.md"
AUDIT = "audit.json"
_TAGS = ["reward-model", "reward-trainer", "spoken-dialogue", "sdiareward"]
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
# The fields of a run's record that are needed to repeat it.
_ARGUMENTS = ("train", "model_name_or_path", "dataset", "pooling_mode")
_TRAINING = ("learning_rate", "center_rewards_coefficient", "seed")
# Table 2 of the paper: data are ESDR-Bench if they are called so and have these pairs, scored or skipped.
_BENCHMARK_NAME = re.compile(r"esdr[-_]?bench", re.IGNORECASE)
_BENCHMARK_PAIRS = {"wild": 824, "semi_wild": 186, "scripted": 466, "colloquialness": 250, "overall_micro": 1726}
# The builder gives every data set folder this name.
_BUILT = "sdiareward"
_COUNTS = ("num_pairs", "num_groups", "num_ties", "interval")
_DIGITS = 6


@dataclass(frozen=True)
class ModelRelease:
    """The facts that a card is rendered from; base and data sets by their names on the Hub."""

    checkpoint: Path
    kind: Literal["model", "lora", "head"] = "model"
    results: Mapping[str, Any] | None = None  # `results.json` of the evaluation.
    run: Mapping[str, Any] | None = None  # `run.json` of the training.
    name: str | None = None  # None for a card that stays in the folder.
    revision: str | None = None
    base_model: str | None = None
    datasets: tuple[str, ...] = ()
    has_figure: bool = False

    @property
    def title(self) -> str:
        return (self.name or self.checkpoint.resolve().name).rpartition("/")[2]


def write_model_card(checkpoint: Path) -> None:
    """Write the card of a trained checkpoint into its folder, from its `run.json` and `about.md`."""
    run = read_json(checkpoint / "run.json")
    names = (run.get("arguments", {}).get(name) for name in ("model_name_or_path", "dataset"))
    base, data = (name if is_hub_id(name) else None for name in names)
    release = ModelRelease(checkpoint, run=run, base_model=base, datasets=(data,) if data else ())
    write_file(checkpoint / "README.md", render_model_card(release))


def is_hub_id(name: Any) -> bool:
    """Return whether a name may name a repository: no such file or folder exists."""
    return isinstance(name, str) and _HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def render_model_card(release: ModelRelease) -> str:
    from huggingface_hub import ModelCard

    about, prose = read_about(release.checkpoint)
    results, checkpoint = release.results, release.checkpoint
    is_figure_here = release.has_figure or (release.name is None and (checkpoint / FIGURE).is_file())
    # Without its title, the headings one level lower.
    report = re.sub(r"^##", "###", render_markdown(results).partition("\n")[2] if results else "", flags=re.MULTILINE)
    place = checkpoint.resolve()
    is_ours = place.is_relative_to(CARDS.parent)
    card = ModelCard.from_template(
        _make_header(release, about),
        template_path=str(CARDS / "model_card.md"),
        about=_fill_about(release, prose),
        kind=release.kind,
        name=release.name or (place.relative_to(CARDS.parent).as_posix() if is_ours else checkpoint.name),
        pin=f', revision="{release.revision or "main"}"' if release.name else "",
        base_model=release.base_model or about.get("base_model"),
        data=escape_markdown(name_data(name_evaluated(results), find_split(results))) if results else "",
        folds=render_folds(read_json(checkpoint / FOLDS)) if (checkpoint / FOLDS).is_file() else "",
        num_pairs=results["accuracies"]["model"]["num_pairs"]["overall_micro"] if results else 0,
        results=report.strip(),
        has_figure=is_figure_here and results,
        audit=render_findings(read_audit(checkpoint / AUDIT)) if (checkpoint / AUDIT).is_file() else "",
        training=_render_training(release.run) if release.run else "",
    )
    return f"{card}\n"


def read_about(checkpoint: Path) -> tuple[dict[str, Any], str]:
    """Return header and prose of the `about.md` beside a checkpoint, or of the default."""
    path = checkpoint / ABOUT if (checkpoint / ABOUT).is_file() else CARDS / "model_about.md"
    text = path.read_text(encoding="utf-8")
    if not text.startswith("---\n"):
        return {}, text
    header, _, prose = text.removeprefix("---\n").partition("\n---\n")
    try:
        found = dict(yaml.safe_load(header))
    except (yaml.YAMLError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: its header is not YAML with names and values ({reason}); correct it.") from error
    # As on the Hub, one name needs no list.
    for name in ("datasets", "tags"):
        if (value := found.get(name)) and isinstance(value, str):
            found[name] = [value]
    return found, prose


def _fill_about(release: ModelRelease, prose: str) -> str:
    """Return the prose of `about.md` with its numbers."""
    config = read_json(release.checkpoint / "config.json")
    parameters, size_bytes = _measure_size(release)
    fields: dict[str, Any] = {
        "name": release.title,
        "num_parameters": f"{parameters:,}",
        "size_mb": f"{size_bytes / 1e6:.1f}",
        **{name: config[name] for name in ("pooling_mode", "prompt_version")},
        "max_turn_s": f"{config['max_turn_s']:g}",
    }
    if results := release.results:
        named = {row["synthesizer"] for row in results["by_synthesizer"] if row["criterion"] == "modality"}
        seen = named - {ALL_SEEN, ALL_LEFT_OUT, *(results["left_out_synthesizers"] or ())}
        fields |= {"num_synthesizers": len(seen), "synthesizers": ", ".join(sorted(seen))}
        if acoustic := results.get("baselines", {}).get("acoustic"):
            fields["num_train"] = sum(acoustic["num_train"].values())
    try:
        return Template(prose).substitute(fields).strip()
    except (KeyError, ValueError) as error:
        known = f"known fields are {sorted(fields)}, and $$ is a dollar"
        raise ValueError(f"{release.checkpoint / ABOUT}: has an unknown field {error}; {known}.") from error


def _measure_size(release: ModelRelease) -> tuple[int, int]:
    """Return the number of parameters that are published, and the size of the files that hold them, in bytes."""
    checkpoint = release.checkpoint
    names = [ADAPTER_WEIGHTS] if release.kind == "lora" else list_weight_files(checkpoint)
    sizes = {name: math.prod(tensor.get_shape()) for name, tensor in iter_tensors(checkpoint, names)}
    if release.kind == "head":
        parameters = sum(size for name, size in sizes.items() if name.startswith(("score.", "pooler.")))
        # A head is in float32.
        return parameters, 4 * parameters
    return sum(sizes.values()), sum((checkpoint / name).stat().st_size for name in names)


def _make_header(release: ModelRelease, about: Mapping[str, Any]) -> ModelCardData:
    """Return the header of the card; what `about.md` says comes first."""
    from huggingface_hub import ModelCardData

    known = {key: value for key, value in about.items() if key not in ("tags", "datasets", "base_model")}
    if release.kind != "model":
        known["base_model_relation"] = "adapter"
    return ModelCardData(
        library_name="transformers" if release.kind == "model" else "peft",
        pipeline_tag="audio-classification",
        tags=[*_TAGS, *(about.get("tags") or ())],
        base_model=release.base_model or about.get("base_model"),
        datasets=list(release.datasets) or about.get("datasets"),
        metrics=["esdr_accuracy"],
        model_name=release.title if release.results else None,
        eval_results=make_model_index(release.results) if release.results else None,
        **known,
    )


def _render_training(run: Mapping[str, Any]) -> str:
    """Return the record of a run as a table, without local folders; what all stages heard is in it."""
    training, stages = run.get("training", {}), list_stages(run)
    length = "max_steps" if training.get("max_steps", 0) > 0 else "num_train_epochs"
    last, whole = run.get(TRAINED_ON, {}), describe_stages(stages)
    found = {
        **{name: run.get("arguments", {}).get(name) for name in _ARGUMENTS},
        **{name: training.get(name) for name in (length, *_TRAINING)},
        "stages": len(stages) if len(stages) > 1 else None,
        **{name: _format_value(value) for name, value in {**last, **whole}.items()},
        **{name: version for name, version in run.get("versions", {}).items() if version},
        "git_revision": run.get("git_revision"),
    }
    for name, value in whole.items():
        if value is None and len(stages) > 1 and (words := _format_value(last.get(name))):
            found[name] = f"{words}; not known of the stages before"
    rows = [[escape_code(k), escape_markdown(_format_value(v))] for k, v in found.items() if v is not None]
    return "\n".join(render_markdown_table(["", ""], rows, num_left=2))


def _format_value(value: Any) -> Any:
    """Return a list as text, None without entries, and the name alone of a local path."""
    if isinstance(value, list):
        return ", ".join(value) or None
    is_path = isinstance(value, str) and (PurePath(value).is_absolute() or value.startswith(("~", "..")))
    return PurePath(value).name if is_path else value


def render_findings(audit: Mapping[str, Any]) -> str:
    """Return the findings of an audit in words, its sample, and a table of the failed checks."""
    rows = [
        [escape_markdown(each["title"]), show_value(each["value"], each["unit"]), show_limit(each)]
        for each in audit["verdicts"]
        if each["status"] == FAIL
    ]
    parts = [" ".join(map(escape_markdown, list_findings(audit))), describe_sample(audit)]
    table = render_markdown_table(["failed check", "value", "limit"], rows)
    return "\n\n".join([*parts, "\n".join(table)] if rows else parts)


def name_evaluated(results: Mapping[str, Any]) -> str:
    """Return the name of the evaluated data: on the Hub, or of a file or folder without its place."""
    config, model, skipped = results["config"], results["accuracies"]["model"], results.get("num_skipped") or {}
    found = {name: model["num_pairs"].get(name, 0) + skipped.get(name, 0) for name in _BENCHMARK_PAIRS}
    is_named = any(_BENCHMARK_NAME.search(config.get(name) or "") for name in ("dataset", "dataset_config"))
    if is_named and found == _BENCHMARK_PAIRS:
        return "ESDR-Bench"
    parts = PurePath(config["dataset"]).parts
    name = find_hub_id(results) or "/".join(parts[-2:] if parts[-1] == _BUILT else parts[-1:])
    return f"{name}, {config['dataset_config']}" if config.get("dataset_config") else name


def find_split(results: Mapping[str, Any]) -> str | None:
    """Return the split of the evaluated data; a file has none."""
    is_file = PurePath(results["config"]["dataset"]).suffix in (".csv", ".tsv", ".json", ".jsonl", ".parquet")
    return None if is_file else results["config"]["split"]


def find_hub_id(results: Mapping[str, Any]) -> str | None:
    """Return the repository that the evaluated data were read from."""
    return split_commit(results["config"]["dataset"])[0] if results.get("is_from_hub") else None


def make_model_index(results: Mapping[str, Any]) -> list[EvalResult]:
    """Return the accuracies of a model with number of pairs, ties and interval."""
    from huggingface_hub import EvalResult

    name, model = name_evaluated(results), results["accuracies"]["model"]
    trained_on = {"trained_on": overlap} if (overlap := describe_overlap(results)) else {}
    columns = {
        TITLES[column]: {"accuracy": model[column], **{count: model[count][column] for count in _COUNTS}}
        for column in COLUMNS
        if model[column] is not None
    }
    names = ", ".join(results["left_out_synthesizers"] or ())
    for row in results["by_synthesizer"]:
        if row["synthesizer"] == ALL_LEFT_OUT and row["model"]["accuracy"] is not None:
            title = f"{row['criterion']}, synthesizers held out of training ({names})"
            columns[title] = {**row["model"], "num_pairs": row["num_pairs"]}
    return [
        EvalResult(
            task_type="audio-classification",
            task_name="Preference between two spoken dialogues",
            # Not the name alone: data of somebody else on the Hub may have it.
            dataset_type=find_hub_id(results) or f"{name}, not read from the Hub",
            dataset_name=name,
            dataset_config=results["config"].get("dataset_config"),
            dataset_revision=split_commit(results["config"]["dataset"])[1],
            dataset_split=find_split(results),
            metric_type="esdr_accuracy",
            metric_name=f"accuracy, {title}",
            metric_value=round(found["accuracy"], _DIGITS),
            metric_args={count: found[count] for count in _COUNTS} | trained_on,
        )
        for title, found in columns.items()
    ]


def name_results_file(results: Mapping[str, Any]) -> str:
    return f".eval_results/{re.sub(r'[^a-z0-9]+', '_', name_evaluated(results).rpartition('/')[2].lower())}.yaml"


def render_eval_results(results: Mapping[str, Any], dataset_id: str) -> str:
    """Return the content of a file of `.eval_results`: one entry for each column that has pairs."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    model = results["accuracies"]["model"]
    entries = [
        EvalResultEntry(
            dataset_id=dataset_id,
            dataset_revision=split_commit(results["config"]["dataset"])[1],
            task_id=column,
            value=round(model[column], _DIGITS),
            notes=_render_notes(results, column),
        )
        for column in COLUMNS
        if model[column] is not None
    ]
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True, width=120)


def _render_notes(results: Mapping[str, Any], column: str) -> str:
    """Return the context of a number: counts, interval, baselines, held-out synthesizers."""
    baselines = dict(results["accuracies"])
    model = baselines.pop("model")
    bounds = phrase_interval(model["interval"][column], model["num_groups"][column])
    counts = f"{model['num_pairs'][column]} pairs; {model['num_ties'][column]} ties, which are wrong"
    parts = [f"In percent: {format_percent(model[column])}, {bounds}, of {counts}"]
    if baselines:
        found = (
            f"{name} {format_percent(of[column])} ({of['num_ties'][column]} ties)" for name, of in baselines.items()
        )
        parts.append(f"baselines on the same pairs: {', '.join(found)}")
    for row in results["by_synthesizer"]:
        if row["synthesizer"] == ALL_LEFT_OUT and CRITERION_COLUMNS.get(row["criterion"]) == column:
            names = ", ".join(results["left_out_synthesizers"])
            found = (f"{name} {format_percent(row[name]['accuracy'])}" for name in results["accuracies"])
            held_out = f"by synthesizers held out of training ({names})"
            parts.append(f"{row['num_pairs']} pairs {held_out}: {', '.join(found)}")
    return " ".join(filter(None, [f"{'; '.join(parts)}.", describe_overlap(results)]))
