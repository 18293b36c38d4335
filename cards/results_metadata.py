"""Write the results of an evaluation in the Hub's formats: `model-index` of a card, and `.eval_results/*.yaml`.

`model-index` is the older format, which other tools read; the Hub's leaderboards read `.eval_results`. Both come from
`results.json` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from sdiareward.common.hub import split_commit
from sdiareward.esdr_accuracy.pairwise import COLUMNS
from sdiareward.evaluation.summary import (
    ALL_LEFT_OUT,
    CRITERION_COLUMNS,
    TITLES,
    describe_overlap,
    format_percent,
    phrase_interval,
)


if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_TASK, _TASK_NAME = "audio-classification", "Preference between two spoken dialogues"
_METRIC = "esdr_accuracy"
_DIGITS = 6
# Table 2 of the paper: data are ESDR-Bench if they are called so and have these pairs, scored or skipped.
_BENCHMARK, _BENCHMARK_NAME = "ESDR-Bench", re.compile(r"esdr[-_]?bench", re.IGNORECASE)
_BENCHMARK_PAIRS = {"wild": 824, "semi_wild": 186, "scripted": 466, "colloquialness": 250}
# The builder gives every data set folder this name.
_BUILT = "sdiareward"


def name_evaluated(results: Mapping[str, Any]) -> str:
    """Return the name of the evaluated data: on the Hub, or that of a file or folder without where it is."""
    config = results["config"]
    if _is_benchmark(results):
        return _BENCHMARK
    parts = PurePath(config["dataset"]).parts
    name = find_hub_id(results) or "/".join(parts[-2:] if parts[-1] == _BUILT else parts[-1:])
    return f"{name}, {config['dataset_name']}" if config.get("dataset_name") else name


def find_split(results: Mapping[str, Any]) -> str | None:
    """Return the split of the evaluated data; older results name one for a file, which has none."""
    config = results["config"]
    is_file = PurePath(config["dataset"]).suffix in (".json", ".jsonl", ".parquet")
    return None if is_file else config["split"]


def find_hub_id(results: Mapping[str, Any]) -> str | None:
    """Return the repository that the evaluated data were read from."""
    return split_commit(results["config"]["dataset"])[0] if results.get("is_from_hub") else None


def name_results_file(results: Mapping[str, Any]) -> str:
    return f".eval_results/{re.sub(r'[^a-z0-9]+', '_', name_evaluated(results).rpartition('/')[2].lower())}.yaml"


def _is_benchmark(results: Mapping[str, Any]) -> bool:
    config, counts = results["config"], (results["accuracies"]["model"]["num_pairs"], results.get("num_skipped") or {})
    is_named = any(_BENCHMARK_NAME.search(config.get(name) or "") for name in ("dataset", "dataset_name"))
    found = {name: sum(each.get(name, 0) for each in counts) for name in (*_BENCHMARK_PAIRS, "overall_micro")}
    return is_named and found == {**_BENCHMARK_PAIRS, "overall_micro": sum(_BENCHMARK_PAIRS.values())}


def make_model_index(results: Mapping[str, Any]) -> list[EvalResult]:
    """Return the accuracies of a model with number of pairs, ties and interval."""
    from huggingface_hub import EvalResult

    name, trained_on = name_evaluated(results), describe_overlap(results)
    return [
        EvalResult(
            task_type=_TASK,
            task_name=_TASK_NAME,
            # Not the name alone, which may be that of somebody's data on the Hub.
            dataset_type=find_hub_id(results) or f"{name}, not read from the Hub",
            dataset_name=name,
            dataset_config=results["config"].get("dataset_name"),
            dataset_revision=split_commit(results["config"]["dataset"])[1],
            dataset_split=find_split(results),
            metric_type=_METRIC,
            metric_name=f"accuracy, {title}",
            metric_value=round(found["accuracy"], _DIGITS),
            metric_args={
                **{name: found[name] for name in ("num_pairs", "num_groups", "num_ties", "interval")},
                **({"trained_on": trained_on} if trained_on else {}),
            },
        )
        for title, found in [*_iter_columns(results), *_iter_left_out(results)]
    ]


def render_eval_results(results: Mapping[str, Any], dataset_id: str) -> str:
    """Return the content of a file of `.eval_results`: one entry for each column that has pairs."""
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(
            dataset_id=dataset_id,
            dataset_revision=split_commit(results["config"]["dataset"])[1],
            task_id=column,
            value=round(results["accuracies"]["model"][column], _DIGITS),
            notes=_render_notes(results, column),
        )
        for column in COLUMNS
        if results["accuracies"]["model"][column] is not None
    ]
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True, width=120)


def _iter_columns(results: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield title and values of every column that has pairs."""
    model = results["accuracies"]["model"]
    for column in COLUMNS:
        if model[column] is not None:
            found = {name: model[name][column] for name in ("num_pairs", "num_groups", "num_ties", "interval")}
            yield TITLES[column], {"accuracy": model[column], **found}


def _iter_left_out(results: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield title and values of the pairs by synthesizers that training held out."""
    names = ", ".join(results["left_out_synthesizers"] or ())
    for row in results["by_synthesizer"]:
        if row["synthesizer"] == ALL_LEFT_OUT and row["model"]["accuracy"] is not None:
            title = f"{row['criterion']}, synthesizers held out of training ({names})"
            yield title, {**row["model"], "num_pairs": row["num_pairs"]}


def _render_notes(results: Mapping[str, Any], column: str) -> str:
    """Return the context of a number: counts, interval, baselines, held-out synthesizers."""
    by_scorer = results["accuracies"]
    model = by_scorer["model"]
    parts = [
        f"In percent: {format_percent(model[column])}, "
        f"{phrase_interval(model['interval'][column], model['num_groups'][column])}, of "
        f"{model['num_pairs'][column]} pairs; {model['num_ties'][column]} ties, which are wrong"
    ]
    baselines = [name for name in by_scorer if name != "model"]
    if baselines:
        found = (
            f"{name} {format_percent(by_scorer[name][column])} ({by_scorer[name]['num_ties'][column]} ties)"
            for name in baselines
        )
        parts.append(f"baselines on the same pairs: {', '.join(found)}")
    for row in results["by_synthesizer"]:
        if row["synthesizer"] == ALL_LEFT_OUT and CRITERION_COLUMNS.get(row["criterion"]) == column:
            names = ", ".join(results["left_out_synthesizers"])
            found = (f"{name} {format_percent(row[name]['accuracy'])}" for name in by_scorer)
            parts.append(
                f"{row['num_pairs']} pairs by synthesizers held out of training ({names}): {', '.join(found)}"
            )
    return " ".join(filter(None, [f"{'; '.join(parts)}.", describe_overlap(results)]))
