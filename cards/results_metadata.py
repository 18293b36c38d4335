"""Write the results of an evaluation in the Hub's formats: `model-index` of a card, and `.eval_results/*.yaml`.

`model-index` is the older format, which other tools read; the Hub's leaderboards read `.eval_results`. Both come from
`results.json` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sdiareward.esdr_accuracy.pairwise import COLUMNS
from sdiareward.evaluation.columns import CRITERION_COLUMNS, TITLES
from sdiareward.evaluation.summary import ALL_LEFT_OUT, format_interval, format_percent


if TYPE_CHECKING:
    from huggingface_hub import EvalResult

RESULTS_FILE = ".eval_results/esdr_bench.yaml"
_TASK, _TASK_NAME = "audio-classification", "Preference between two spoken dialogues"
_BENCHMARK, _CONFIG, _METRIC = "ESDR-Bench", "esdr_bench", "esdr_accuracy"
_DIGITS = 6


def make_model_index(results: Mapping[str, Any], dataset_id: str | None = None) -> list[EvalResult]:
    """Return the accuracies of a model with number of pairs, ties and interval."""
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type=_TASK,
            task_name=_TASK_NAME,
            dataset_type=dataset_id or _BENCHMARK,
            dataset_name=_BENCHMARK,
            dataset_config=_CONFIG,
            dataset_split=results["config"]["split"],
            metric_type=_METRIC,
            metric_name=f"accuracy, {title}",
            metric_value=round(found["accuracy"], _DIGITS),
            metric_args={name: found[name] for name in ("num_pairs", "num_ties", "interval")},
        )
        for title, found in [*_iter_columns(results), *_iter_left_out(results)]
    ]


def render_eval_results(results: Mapping[str, Any], dataset_id: str) -> str:
    """Return the content of `.eval_results/esdr_bench.yaml`: one entry for each column that has pairs."""
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(
            dataset_id=dataset_id,
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
            found = {name: model[name][column] for name in ("num_pairs", "num_ties", "interval")}
            yield TITLES[column], {"accuracy": model[column], **found}


def _iter_left_out(results: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield title and values of the pairs by synthesizers that training held out."""
    names = ", ".join(results["left_out_synthesizers"] or ())
    for row in results["by_synthesizer"]:
        if row["synthesizer"] == ALL_LEFT_OUT:
            title = f"{row['criterion']}, synthesizers held out of training ({names})"
            yield title, {**row["model"], "num_pairs": row["num_pairs"]}


def _render_notes(results: Mapping[str, Any], column: str) -> str:
    """Return the context of a number: counts, interval, baselines, held-out synthesizers."""
    by_scorer = results["accuracies"]
    model = by_scorer["model"]
    parts = [
        f"In percent: {format_percent(model[column])}, 95% interval {format_interval(model['interval'][column])}, of "
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
    return "; ".join(parts) + "."
