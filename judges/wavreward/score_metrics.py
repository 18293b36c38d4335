"""Metrics of scores: exact accuracy by column of Table 1, errors, order within a scenario, form of the answers.

A sample counts in one column: `content`, `implicit`, the attribute of an explicit instruction, or `out_of_domain` for
other data sets. An answer without a score is wrong: skipping it would favour a judge that often gives none. Intervals
are over whole scenarios, because the answers to one question are not independent. The interval of a macro average
combines those of its independent columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any

from sdiareward.esdr_accuracy.pairwise import combine_intervals
from sdiareward.evaluation.statistics import Clusters, describe_share

from .answers import SCORES


# In the order of Table 1.
ATTRIBUTES = ("age", "accent", "language", "gender", "emotion", "pitch", "speed", "volume", "audio")
IN_DOMAIN = ("content", *ATTRIBUTES, "implicit")
OUT_OF_DOMAIN = "out_of_domain"
COLUMNS = (*IN_DOMAIN, OUT_OF_DOMAIN)
INVALID = "invalid"
# Options of the bootstrap behind every interval.
DRAWS = {"num_bootstrap": 1000, "seed": 0}
# Where no answer is usable.
_NO_SHARE = {"share": None, "interval": None}

Record = Mapping[str, Any]
Records = Sequence[Record]


def find_column(record: Record) -> str:
    """Return the column of Table 1 that a sample of ChatReward counts in."""
    part, attribute = record["part"], record["attribute"]
    if part in ("content", "implicit"):
        return str(part)
    if attribute not in ATTRIBUTES:
        raise ValueError(
            f"sample {record['sample_id']}: its part is {part!r} and its attribute {attribute!r}; an explicit "
            f"instruction needs one of {list(ATTRIBUTES)}."
        )
    return str(attribute)


def find_scenario(record: Record) -> Hashable:
    """Return the scenario of a sample; a sample without one is its own scenario."""
    return record.get("scenario_id") or record["sample_id"]


def summarise_scores(
    predictions: Records, out_of_domain: Records = (), *, num_bootstrap: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Compute all metrics of one scorer."""
    if not predictions:
        raise ValueError("there are no predictions; at least one sample is needed.")
    options = {"num_bootstrap": num_bootstrap, "seed": seed}
    members: dict[str, list[Record]] = {name: [] for name in COLUMNS}
    for record in predictions:
        members[find_column(record)].append(record)
    members[OUT_OF_DOMAIN] = list(out_of_domain)
    columns = {name: measure_accuracy(records, options) if records else None for name, records in members.items()}
    inside = [column for name in IN_DOMAIN if (column := columns[name])]
    outside = columns[OUT_OF_DOMAIN]
    return {
        "columns": columns,
        "overall_micro": measure_accuracy(predictions, options),
        "overall_macro": average_columns(inside),
        # The average of the paper's abstract.
        "all_columns_macro": average_columns([*inside, outside]) if outside else None,
        "in_domain": measure_answers(predictions, options),
        "out_of_domain": measure_answers(out_of_domain, options) if out_of_domain else None,
    }


def measure_accuracy(records: Records, options: Mapping[str, Any]) -> dict[str, Any]:
    """Count the scores that are exactly right; an answer without a score is wrong, but None if no answer has one."""
    is_correct = [record["predicted"] == record["score"] for record in records]
    is_usable = any(record["predicted"] is not None for record in records)
    found = measure_share(is_correct, records, options) if is_usable else _NO_SHARE
    return {
        "num_samples": len(records),
        "num_scenarios": len({find_scenario(record) for record in records}),
        "num_correct": sum(is_correct),
        "num_invalid": sum(record["predicted"] is None for record in records),
        "num_cut": sum(record["predicted"] is None and bool(record.get("num_cut")) for record in records),
        "accuracy": found["share"],
        "interval": found["interval"],
    }


def measure_share(values: Sequence[bool], records: Records, options: Mapping[str, Any] = DRAWS) -> dict[str, Any]:
    """Return `describe_share` of a value for each record, over whole scenarios."""
    return describe_share(values, *_list_clusters(records), **options)


def _list_clusters(records: Records) -> tuple[list[Hashable], list[str]]:
    columns = [find_column(record) if record["part"] else OUT_OF_DOMAIN for record in records]
    return [find_scenario(record) for record in records], columns


def average_columns(columns: Sequence[Record]) -> dict[str, Any]:
    """Return the plain mean of the accuracies of independent columns, with its interval."""
    if any(column["accuracy"] is None for column in columns):
        return {"num_columns": len(columns), "accuracy": None, "interval": None}
    accuracy = mean(column["accuracy"] for column in columns)
    bounds = combine_intervals([(column["accuracy"], column["interval"]) for column in columns])
    return {"num_columns": len(columns), "accuracy": accuracy, "interval": bounds}


def measure_answers(records: Records, options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the distance from the gold scores, the order within scenarios, and the form of at least one answer."""
    has_expected = any(record.get("expected_score") is not None for record in records)
    return {
        "confusion": confusion_matrix(records),
        "mean_absolute_error": mean_absolute_error(records, options),
        "order": measure_order(records, options),
        "expected_order": measure_order(records, options, "expected_score") if has_expected else None,
        "form": measure_form(records) if "follows_format" in records[0] else None,
    }


def confusion_matrix(records: Records) -> dict[str, dict[str, int]]:
    """Count predictions: by gold score, then by predicted score or `"invalid"`."""
    answers = [*map(str, SCORES), INVALID]
    counts = {str(gold): dict.fromkeys(answers, 0) for gold in SCORES}
    for record in records:
        predicted = INVALID if record["predicted"] is None else str(record["predicted"])
        counts[str(record["score"])][predicted] += 1
    return counts


def mean_absolute_error(records: Records, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean distance from the gold score over the answers that have a score; lower is better."""
    valid = [record for record in records if record["predicted"] is not None]
    if not valid:
        return {"num_samples": 0, "num_scenarios": 0, "error": None, "interval": None}
    errors = [abs(record["predicted"] - record["score"]) for record in valid]
    found = Clusters(*_list_clusters(valid), **options).measure(errors)
    found["error"], found["num_scenarios"] = found.pop("mean"), found.pop("num_groups")
    return {"num_samples": len(valid), **found}


def measure_order(records: Records, options: Mapping[str, Any], field: str = "predicted") -> dict[str, Any]:
    """Count how the three gold scores of a scenario are ordered: strictly, tied (none inverted) or inverted."""
    by_scenario: dict[Hashable, list[Record]] = defaultdict(list)
    for record in records:
        by_scenario[find_scenario(record)].append(record)
    outcomes, members = [], []
    num_incomplete = 0
    for samples in by_scenario.values():
        levels = [[r for r in samples if r["score"] == gold] for gold in sorted({r["score"] for r in samples})]
        if len(levels) != 3:
            num_incomplete += 1
            continue
        for triple in product(*levels):
            outcomes.append(_order(*(record[field] for record in triple)))
            members.append(triple[0])
    counts = {f"num_{name}": outcomes.count(name) for name in ("ordered", "tied", "inverted", "invalid")}
    is_ordered = [outcome == "ordered" for outcome in outcomes]
    ordered = measure_share(is_ordered, members, options) if {*outcomes} - {INVALID} else _NO_SHARE
    num_scenarios = len({find_scenario(record) for record in members})
    found = {"num_triples": len(outcomes), "num_scenarios": num_scenarios, **counts, "share_ordered": ordered["share"]}
    return {**found, "interval": ordered["interval"], "num_left_out": num_incomplete}


def _order(low: float | None, middle: float | None, high: float | None) -> str:
    if low is None or middle is None or high is None:
        return INVALID
    if low < middle < high:
        return "ordered"
    return "tied" if low <= middle <= high else "inverted"


def measure_form(records: Records) -> dict[str, Any]:
    """Measure form and cost; `real_time_factor` is seconds per second of audio (Table 5), lower is better."""
    seconds, audio_s = (sum(record[name] for record in records) for name in ("seconds", "duration_s"))
    return {
        "share_follows_format": mean(bool(record["follows_format"]) for record in records),
        "share_valid": mean(record["predicted"] is not None for record in records),
        "mean_tokens": mean(record["num_tokens"] for record in records),
        "seconds": seconds,
        "audio_s": audio_s,
        "real_time_factor": seconds / audio_s if audio_s else None,
    }
