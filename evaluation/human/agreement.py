"""Measure the agreement of raters with the labels of the data and with each other (Table 3 of the paper).

An answer counts 1 for the chosen side, 0 for the other, 0.5 for "cannot tell". Agreement is averaged over an item's
raters, then over items, so that strata count by their sizes, as in the paper. `interval` is over recordings, because
items of one recording are not independent, and within strata overall, because the study fixes their sizes.
`se_binomial`, `sqrt(p (1 - p) / n)` over items, reproduces every value of the paper. Krippendorff's alpha is nominal
and over the answers (A, B, cannot tell): over right and wrong, mostly right answers would look like chance.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.tables import render_table

from ..statistics import describe_share
from ..summary import format_interval
from .files import read_key, read_study
from .study import ANSWERS_FOLDER, SCORES_FORM, SIZES


TIE = "tie"
CHOICES = ("a", "b", TIE)
_TITLES = {
    "high": "High confidence",
    "low": "Low confidence",
    "random": "Random sampling",
    "wrong": "Model wrong",
}
# The last answer to each item, by rater.
Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class RatedItem:
    """An item with at least one answer: its entry of `key.json`, and the raters' choices."""

    truth: Mapping[str, Any]
    choices: list[str]

    @property
    def agreement(self) -> float:
        return fmean(compute_agreement(choice, self.truth["chosen_is"]) for choice in self.choices)

    @property
    def cluster(self) -> Hashable:
        """The recording of the item; an item of unknown origin is its own cluster."""
        return self.truth.get("group_id") or self.truth["pair_id"]


def compute_agreement(choice: str, chosen_is: str) -> float:
    """Return 1 for the chosen side, 0 for the other, 0.5 for a rater who cannot tell."""
    return 0.5 if choice == TIE else float(choice == chosen_is)


def read_answers(folder: Path, items: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the last answer to each of a study's items, by rater and item."""
    answers = {}
    known = set(items)
    for path in sorted((folder / ANSWERS_FOLDER).glob("*.jsonl")):
        records = JsonLines(path).read()
        for record in records:
            if not _is_answer(record, known):
                raise ValueError(
                    f"{path}: {record} is no answer to this study; each needs one of its items and a choice among "
                    f"{', '.join(CHOICES)}: remove the line, or the file if it is of another study."
                )
        answers[path.stem] = {record["item"]: record for record in records}
    return answers


def _is_answer(record: Mapping[str, Any], known: set[str]) -> bool:
    heard = record.get("heard", [])
    is_heard = isinstance(heard, list) and all(isinstance(part, str) for part in heard)
    return is_heard and str(record.get("item")) in known and record.get("choice") in CHOICES


def score_study(folder: str | Path, key_file: str | Path | None = None) -> dict[str, Any]:
    """Score the answers and write `results.json` and `results.md`."""
    results = summarise_study(*read_rated_study(folder, key_file))
    write_results(Path(folder), results, render_study(results))
    return results


def read_rated_study(
    folder: str | Path, key_file: str | Path | None = None
) -> tuple[dict[str, Any], dict[str, dict[str, dict[str, Any]]]]:
    folder = Path(folder)
    study, key = read_study(folder), read_key(folder, key_file)
    if study["study"] != key["study"]:
        raise ValueError(
            f"{folder}: is study {study['study']}, the key is of {key['study']}; give the key of this study."
        )
    answers = read_answers(folder, list(key["items"]))
    if not any(answers.values()):
        raise FileNotFoundError(f"{folder}: holds no answers; rate with sdiareward human rate first.")
    return key, answers


def is_score_study(folder: str | Path) -> bool:
    """Tell whether raters compare two scores of one dialogue, instead of two dialogues."""
    return read_study(Path(folder)).get("form") == SCORES_FORM


def write_results(folder: Path, results: Mapping[str, Any], report: str) -> None:
    write_file(folder / "results.json", json.dumps(results, indent=2) + "\n")
    write_file(folder / "results.md", report)


def summarise_study(key: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    by_item = _group_by_item({rater: _collect_choices(given) for rater, given in answers.items()})
    rated = [RatedItem(truth, by_item[item]) for item, truth in key["items"].items() if item in by_item]
    strata = {name: [each for each in rated if each.truth["stratum"] == name] for name in SIZES}
    names = sorted({truth["subset"] for truth in key["items"].values()})
    subsets = {name: [each for each in rated if each.truth["subset"] == name] for name in names}
    return {
        "study": key["study"],
        "num_items": len(key["items"]),
        "num_rated": len(rated),
        "asked": key["asked"],
        "drawn": key["drawn"],
        "strata": {name: summarise_items([items]) for name, items in strata.items() if key["drawn"][name]},
        "overall": summarise_items(list(strata.values())),
        "subsets": {name: summarise_items([items]) for name, items in subsets.items()},
        **describe_raters(key, answers),
    }


def _collect_choices(given: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {item: answer["choice"] for item, answer in given.items()}


def _group_by_item(choices: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    by_item: dict[str, list[str]] = defaultdict(list)
    for given in choices.values():
        for item, choice in given.items():
            by_item[item].append(choice)
    return dict(by_item)


def summarise_items(strata: Sequence[Sequence[RatedItem]]) -> dict[str, Any]:
    """Return a row of Table 3 over the items of one or several strata; agreement is higher-is-better."""
    items = [item for stratum in strata for item in stratum]
    counts = {
        "num_items": len(items),
        "num_answers": sum(len(item.choices) for item in items),
        "num_cannot_tell": sum(item.choices.count(TIE) for item in items),
    }
    if not items:
        empty = ("average_margin", "agreement", "interval", "se_binomial")
        return {**counts, "num_groups": 0, **dict.fromkeys(empty)}
    by_stratum = [[item.agreement for item in stratum] for stratum in strata if stratum]
    agreement = fmean(chain(*by_stratum))
    within = [agreement + shift for found in by_stratum for shift in (np.array(found) - fmean(found)).tolist()]
    found = describe_share(within, [item.cluster for item in items])
    return {
        **counts,
        "num_groups": found["num_groups"],
        "average_margin": fmean(item.truth["margin"] for item in items),
        "agreement": agreement,
        "interval": found["interval"],
        "se_binomial": math.sqrt(agreement * (1 - agreement) / len(items)),
    }


def describe_raters(key: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    """Return the progress of each rater (`num_not_heard`: answers before all was played) and their agreement."""
    num_parts = 1 if key.get("form") == SCORES_FORM else 2
    return {
        "raters": {name: _describe_rater(given, key["items"], num_parts) for name, given in answers.items()},
        "inter_rater": measure_raters({name: _collect_choices(given) for name, given in answers.items()}),
    }


def _describe_rater(
    given: Mapping[str, Mapping[str, Any]], items: Mapping[str, Any], num_parts: int
) -> dict[str, Any]:
    agreements = [compute_agreement(answer["choice"], items[item]["chosen_is"]) for item, answer in given.items()]
    return {
        "num_answered": len(given),
        "num_missing": len(items) - len(given),
        "num_cannot_tell": sum(answer["choice"] == TIE for answer in given.values()),
        "num_not_heard": sum(len(set(answer.get("heard", ("a", "b")))) < num_parts for answer in given.values()),
        "agreement": fmean(agreements) if agreements else None,
    }


def measure_raters(choices: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return Krippendorff's alpha (1 is full agreement, 0 chance) and percent agreement, also by pair of raters."""
    pairs: list[dict[str, Any]] = []
    for one, other in combinations(choices, 2):
        shared = choices[one].keys() & choices[other].keys()
        equal = sum(choices[one][item] == choices[other][item] for item in shared)
        pairs.append({"raters": [one, other], "num_items": len(shared), "num_equal": equal})
    num_shared = sum(pair["num_items"] for pair in pairs)
    undefined = _find_undefined_reason(choices)
    return {
        "krippendorff_alpha": None if undefined else _compute_alpha(choices),
        "undefined": undefined,
        "percent_agreement": sum(pair["num_equal"] for pair in pairs) / num_shared if num_shared else None,
        "pairs": pairs,
    }


def _find_undefined_reason(choices: Mapping[str, Mapping[str, str]]) -> str | None:
    paired = [choice for answers in _group_by_item(choices).values() if len(answers) > 1 for choice in answers]
    if not paired:
        return "no item has answers of two raters"
    return None if len(set(paired)) > 1 else "all answers are the same"


def _compute_alpha(choices: Mapping[str, Mapping[str, str]]) -> float:
    import krippendorff

    items = sorted({item for given in choices.values() for item in given})
    codes = {choice: code for code, choice in enumerate(CHOICES)}
    table = np.array([[codes.get(given.get(item, ""), np.nan) for item in items] for given in choices.values()])
    return float(krippendorff.alpha(reliability_data=table, level_of_measurement="nominal"))


def render_study(results: Mapping[str, Any]) -> str:
    rows = [(_TITLES[name], row) for name, row in results["strata"].items()]
    rows.append(("**Overall (weighted)**", results["overall"]))
    parts = [
        "# Human verification",
        f"{results['num_rated']} of {results['num_items']} items rated. Agreement with the label of the data in "
        "percent, higher is better; 95% intervals over recordings, and the binomial SE of the paper.",
        _render_rows("sample", rows),
        _render_rows("subset", list(results["subsets"].items())),
        render_raters(results, "answered without hearing both", "human agree."),
    ]
    drawn = {name: (results["drawn"].get(name, 0), asked) for name, asked in results["asked"].items()}
    if short := [f"{name} ({count} of {asked})" for name, (count, asked) in drawn.items() if count < asked]:
        parts.insert(2, f"Fewer pairs than asked for: {', '.join(short)}.")
    return "\n\n".join(parts) + "\n"


def _render_rows(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    head = [title, "items", "recordings", "answers", "cannot tell", "avg. margin", "human agree.", "95%", "SE"]
    cells = []
    for name, row in rows:
        counts = [row[count] for count in ("num_items", "num_groups", "num_answers", "num_cannot_tell")]
        if row["agreement"] is None:
            cells.append([name, *counts, "-", "-", "-", "-"])
            continue
        shares = [_format_percent(row["agreement"]), format_interval(row["interval"])]
        se = f"± {_format_percent(row['se_binomial'])}" if row["se_binomial"] else "-"
        cells.append([name, *counts, f"{row['average_margin']:.2f}", *shares, se])
    return "\n".join(render_table(head, cells))


def _format_percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def render_raters(results: Mapping[str, Any], unheard: str, agreement: str) -> str:
    """Render the result of `describe_raters`; `unheard` and `agreement` are heads of its columns."""
    among = results["inter_rater"]
    lines = ["## Raters", ""]
    if among["krippendorff_alpha"] is None:
        lines.append(f"Krippendorff's alpha is not defined: {among['undefined']}.")
    else:
        lines.append(f"Krippendorff's alpha (nominal): {among['krippendorff_alpha']:.3f}.")
    if among["percent_agreement"] is not None:
        lines.append(
            f"Two raters give the same answer to {_format_percent(among['percent_agreement'])}% of the items."
        )
    rows = []
    for name, rater in results["raters"].items():
        answered = f"{rater['num_answered']} of {rater['num_answered'] + rater['num_missing']}"
        answered += " (incomplete)" if rater["num_missing"] else ""
        rows.append(
            [name, answered, rater["num_cannot_tell"], rater["num_not_heard"], _format_percent(rater["agreement"])]
        )
    lines += ["", *render_table(["rater", "answered", "cannot tell", unheard, agreement], rows)]
    return "\n".join(lines)
