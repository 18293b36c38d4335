"""The result of a cross-validation: heads beside the model they begin from and two baselines, each fold held out.

`folds.json` has the numbers. `render_folds` makes one text of them, for the terminal and for the model's card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdiareward.common.tables import (
    ABSENT,
    format_interval,
    format_percent,
    format_points,
    format_range,
    format_signed,
    render_table,
)
from sdiareward.pairs.schema import SIDES

from .baselines import KINDS, cross_fit_baseline
from .scores import is_right
from .statistics import Clusters, compare, deal_folds
from .summary import Labels, Record, Scores, compute_accuracy, find_overlap, select_column


if TYPE_CHECKING:
    import datasets

# In the order of the table.
_TITLES = {
    "heads": "heads, each without its fold",
    "start": "start model",
    "acoustic": "acoustic baseline (no words)",
    "text": "text baseline (no sound)",
}
_HEAD = ("", "accuracy %", "95% interval", "heads minus this", "mean margin", "ties")
_MANY_GROUPS = 50
_MAX_P_VALUE = 0.05
_OPTIONS: Record = {"num_bootstrap": 1000, "seed": 0}


def deal_units(units: Sequence[str], labels: Labels, num_folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each pair: whole units, with the units of each criterion spread evenly."""
    return deal_folds([f"seed {seed}, {unit}" for unit in units], [label["criterion"] for label in labels], num_folds)


def summarise_folds(
    pairs: datasets.Dataset,
    labels: Labels,
    units: Sequence[str],
    folds: NDArray[np.int64],
    rewards: Mapping[str, NDArray[np.float64]],
    start_model: str,
) -> tuple[Record, list[Record]]:
    """Return `folds.json` and the rewards of each pair: of `heads` and `start`, and of baselines on the same folds."""
    criteria, pair_ids = ([label[name] for label in labels] for name in ("criterion", "pair_id"))
    # What pairs share joins them, whether they have a group_id or not.
    labels = [{**label, "group_id": unit} for label, unit in zip(labels, units, strict=True)]
    found, num_train = dict(rewards), {}
    for kind in KINDS:
        found[kind], num_train[kind] = cross_fit_baseline(kind, pairs, criteria, folds)
    by_scorer: dict[str, Scores] = {
        name: {i: dict(zip(SIDES, row, strict=True)) for i, row in zip(pair_ids, sides.tolist(), strict=True)}
        for name, sides in found.items()
    }
    overlap = find_overlap(start_model, pairs, labels, by_scorer["start"], _OPTIONS)
    names = sorted(set(criteria))
    parts = [[label for label in labels if label["criterion"] == name] for name in names] if len(names) > 1 else []
    record = {
        "num_folds": len(set(folds.tolist())),
        "num_pairs": len(labels),
        "num_groups": len(set(units)),
        "is_start_new": not np.any(rewards["start"]),
        "num_known": None if overlap is None else overlap["num_pairs"] - overlap["others"]["num_pairs"],
        "num_train": num_train,
        "all": _measure(labels, by_scorer),
        "by_criterion": {part[0]["criterion"]: _measure(part, by_scorer) for part in parts},
    }
    rows = zip(pair_ids, units, folds.tolist(), strict=True)
    scored = [{"pair_id": i, "group": u, "fold": f, **{n: by[i] for n, by in by_scorer.items()}} for i, u, f in rows]
    return record, scored


def _measure(labels: Labels, by_scorer: Mapping[str, Scores]) -> Record:
    """Return for each scorer accuracy, mean margin, and by how much the heads are right more often."""
    units, strata = ([label[name] for label in labels] for name in ("group_id", "subset"))
    scores = {name: [by_pair[label["pair_id"]] for label in labels] for name, by_pair in by_scorer.items()}
    clusters, rights = Clusters(units, strata), {name: list(map(is_right, found)) for name, found in scores.items()}
    measured: Record = {}
    for name, found in scores.items():
        column = select_column(compute_accuracy(labels, by_scorer[name], _OPTIONS), "overall_micro")
        margin = clusters.measure([score["chosen"] - score["rejected"] for score in found])
        measured[name] = {"num_pairs": len(labels), **column, "margin": margin["mean"]}
        measured[name]["margin_interval"] = margin["interval"]
        if name != "heads":
            difference = compare(rights["heads"], rights[name], units, strata)
            bounds = difference["interval"] and np.clip(difference["interval"], -1, 1).tolist()
            measured[name] |= {key: difference[key] for key in ("difference", "p_value")}
            measured[name]["difference_interval"] = bounds
    return measured


def render_folds(record: Mapping[str, Any]) -> str:
    """Return the result in words and tables, as Markdown."""
    pairs, groups, num_folds = (record[name] for name in ("num_pairs", "num_groups", "num_folds"))
    share = format_percent(1 - 1 / num_folds, 0)
    sentences = [
        f"Cross-validation over {pairs} pairs in {groups} groups with {num_folds} folds.",
        "Pairs that share a `group_id`, a prompt or a recording are in one group.",
        "Each pair is scored by a head trained on the other folds only, like the saved head and from the same start.",
        f"The saved head was trained on all pairs. The numbers describe the {num_folds} heads, each trained on about",
        f"{share}% of the pairs, not the saved head.",
    ]
    text = ["\n".join(sentences)]
    for title, found in {"": record["all"], **record["by_criterion"]}.items():
        text.append("\n".join(_render_table(found, title)))
    return "\n\n".join([*text, "\n".join(f"- {note}" for note in _list_notes(record))]).strip()


def _render_table(found: Record, criterion: str) -> list[str]:
    rows = [
        [
            title,
            format_percent(found[name]["accuracy"], 1),
            format_interval(found[name]["interval"]),
            _format_difference(found[name]) if name != "heads" else ABSENT,
            # A baseline's scores have another scale.
            ABSENT if name in KINDS else format_signed(found[name]["margin"]),
            found[name]["num_ties"],
        ]
        for name, title in _TITLES.items()
    ]
    count = f"{found['heads']['num_pairs']} pairs"
    return render_table([f"{criterion}, {count}" if criterion else count, *_HEAD[1:]], rows, pad=True)


def _format_difference(measured: Record) -> str:
    bounds = measured["difference_interval"]
    of = f" ({format_range(bounds, format_points)})" if bounds else ""
    return f"{format_points(measured['difference'])}{of}"


def _list_notes(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what these pairs do not show."""
    found = record["all"]
    others = [name for name in _TITLES if name != "heads"]
    unclear = [_TITLES[n] for n in others if found[n]["difference"] <= 0 or found[n]["p_value"] >= _MAX_P_VALUE]
    if unclear:
        yield f"The heads are not clearly better than: {', '.join(unclear)}."
    if (groups := record["num_groups"]) < _MANY_GROUPS and (bounds := found["heads"]["interval"]):
        width = format_percent(bounds[1] - bounds[0], 0)
        fitted = min(record["num_train"].values())
        what = f"the interval of the heads spans {width} points, and a baseline was fitted on {fitted} pairs"
        yield f"{groups} groups are few: {what}."
    if shared := record["shared_by_most"]:
        yield f"Different groups still share what most pairs share{shared}."
    if record["is_start_new"]:
        yield "The start model has no trained head: all of its pairs tie."
    elif record["num_known"] is None:
        yield "The training pairs of the start model are not recorded: it may have been trained on these pairs."
    elif record["num_known"]:
        what = "share a side, a prompt, a recording or a group with the training pairs of the start model"
        yield f"{record['num_known']} pairs {what}: they are not new to it, nor to the heads."
