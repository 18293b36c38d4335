"""Plan and compare leave-one-out folds, from labels and rewards alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdiareward.evaluation.columns import CRITERION_COLUMNS
from sdiareward.evaluation.statistics import compare
from sdiareward.evaluation.summary import Labels, compute_accuracy, list_groups, select_column
from sdiareward.pairs.labels import split_synthesizers

from .statistics import compute_margins, is_in_column


_SINGLE = ("synthesizer", "source")
# Of a fold that holds out a synthesizer and a source, named with `_CROSS` between them.
BOTH = "synthesizer and source"
KINDS = (*_SINGLE, BOTH)
_CROSS = " x "
SPLITS = ("train", "validation", "test")
SCORERS = ("head", "acoustic")
LEFT_OUT, REST = "left_out", "rest"
Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Fold:
    """The pairs that are held out of training.

    Args:
        kind (`str`, *optional*): One of `KINDS`; None for the fold that holds nothing out.
        name (`str`, *optional*): Name of the synthesizer or source, or of both.
        criteria (`tuple[str, ...]`): Criteria with enough pairs.
    """

    kind: str | None
    name: str | None
    criteria: tuple[str, ...]

    @property
    def held_out(self) -> dict[str, str]:
        """The synthesizer, the source or both, by kind."""
        if self.kind is None or self.name is None:
            return {}
        names = self.name.split(_CROSS, 1) if self.kind == BOTH else [self.name]
        return dict(zip(_SINGLE if self.kind == BOTH else [self.kind], names, strict=True))

    def leaves_out(self, label: Mapping[str, Any]) -> bool:
        """Return whether training lacks a pair: a side is spoken by the synthesizer, or it is of the source."""
        held_out = self.held_out
        is_spoken = held_out.get("synthesizer") in split_synthesizers(label["synthesizer"])
        return is_spoken or ("source" in held_out and label["source"] == held_out["source"])

    def measures(self, label: Mapping[str, Any]) -> bool:
        """Return whether a pair is of all that is held out, and of no other synthesizer."""
        return all(label[kind] == name for kind, name in self.held_out.items())


def plan_folds(labels: Mapping[str, Labels], min_pairs: int) -> tuple[list[Fold], list[dict[str, Any]]]:
    """Find the synthesizers and sources that can be held out.

    Args:
        labels (`Mapping[str, Sequence]`): Labels of the pairs of each split, from `labels.describe_pairs`.
        min_pairs (`int`): The smallest number of pairs of a criterion to train on, and to measure on.

    Returns:
        `tuple[list[Fold], list[dict]]`: The fold that holds nothing out, then one for each synthesizer and source of
        the test pairs, and for each synthesizer with each source of these; and `kind`, `name`, `criterion` and
        `reason` of combinations that cannot be measured.
    """
    names = {kind: sorted({label[kind] for label in labels["test"] if label[kind]}) for kind in _SINGLE}
    # What two synthesizers spoke is held out with either.
    names["synthesizer"] = [name for name in names["synthesizer"] if len(split_synthesizers(name)) == 1]
    folds, refused = _try_plans(
        [(None, None), *((kind, name) for kind in _SINGLE for name in names[kind])], labels, min_pairs
    )
    known = {kind: [fold.name for fold in folds if fold.kind == kind] for kind in _SINGLE}
    crossed = [(BOTH, f"{one}{_CROSS}{other}") for one in known["synthesizer"] for other in known["source"]]
    of_both = _try_plans(crossed, labels, min_pairs)
    return folds + of_both[0], refused + of_both[1]


def _try_plans(
    plans: Sequence[tuple[str | None, str | None]], labels: Mapping[str, Labels], min_pairs: int
) -> tuple[list[Fold], list[dict[str, Any]]]:
    """Return the folds that can be measured, and what cannot with the reason."""
    folds, refused = [], []
    for kind, name in plans:
        candidates = Fold(kind, name, ())
        measured = []
        for criterion in sorted({label["criterion"] for label in labels["test"] if candidates.measures(label)}):
            reason = _refuse(candidates, criterion, labels, min_pairs)
            if reason is None:
                measured.append(criterion)
            else:
                refused.append({"kind": kind, "name": name, "criterion": criterion, "reason": reason})
        if measured:
            folds.append(Fold(kind, name, tuple(measured)))
    return folds, refused


def _refuse(fold: Fold, criterion: str, labels: Mapping[str, Labels], min_pairs: int) -> str | None:
    """Return why a criterion cannot be measured, or None."""
    of_criterion = {split: [label for label in labels[split] if label["criterion"] == criterion] for split in SPLITS}
    num_test = sum(fold.measures(label) for label in of_criterion["test"])
    left = {split: sum(not fold.leaves_out(label) for label in of_criterion[split]) for split in SPLITS[:2]}
    if num_test < min_pairs:
        return f"{num_test} test pairs; at least {min_pairs} are needed"
    if left["train"] < min_pairs:
        return f"{left['train']} training pairs are left without it; at least {min_pairs} are needed"
    return None if left["validation"] else "no validation pair is left without it"


def describe_folds(records: Records, labels: Labels, **options: Any) -> dict[str, Any]:
    """Compare each fold's head with the head that held nothing out, on the same pairs.

    Args:
        records (`Sequence[Mapping]`): `kind`, `name`, `backbone_saw` of each fold, and by `pair_id` the `chosen` and
            `rejected` scores of the `head` and of the `acoustic` baseline; one fold has the kind None.
        labels (`Sequence[Mapping]`): Labels of each test pair.
        **options: Options of `pairwise_accuracy`.

    Returns:
        `dict`: `rows`, for each fold and criterion one of the held-out pairs (`pairs` `"left_out"`) and one
        of the `"rest"`: `kind`, `name`, `criterion`, `pairs`, `num_pairs`, `backbone_saw`; `head` and `acoustic`, and,
        when nothing was held out, `head_heard` and `acoustic_heard`, each with `accuracy`, `num_ties`, `num_groups`,
        `interval`, ...; `change` of the head's accuracy, -1 to 1, and its `interval`. And `summary`, by kind and over
        its rows of held-out pairs: mean `head`, `head_heard`, `acoustic` and `acoustic_heard` accuracy, and the
        `lowest` accuracy of a head with its `name` and `criterion`; None without rows.
    """
    whole = next((record for record in records if record["kind"] is None), None)
    rows = []
    for record in records:
        if record is whole or whole is None:
            continue
        for criterion, column in CRITERION_COLUMNS.items():
            for pairs in (LEFT_OUT, REST):
                members = [label for label in labels if _is_member(record, whole, label, column, pairs)]
                if members:
                    about = {key: record[key] for key in ("kind", "name", "backbone_saw")}
                    about |= {"criterion": criterion, "pairs": pairs, "num_pairs": len(members)}
                    rows.append({**about, **_describe_row(members, record, whole, column, options)})
    return {"rows": rows, "summary": {kind: _summarise(rows, kind) for kind in KINDS}}


def _is_member(
    record: Mapping[str, Any], whole: Mapping[str, Any], label: Mapping[str, Any], column: str, pairs: str
) -> bool:
    if label["pair_id"] not in record["head"] or label["pair_id"] not in whole["head"]:
        return False
    fold = Fold(record["kind"], record["name"], ())
    is_of_pairs = fold.measures(label) if pairs == LEFT_OUT else not fold.leaves_out(label)
    return is_in_column(label["subset"], column) and is_of_pairs


def _describe_row(
    labels: Labels, record: Mapping[str, Any], whole: Mapping[str, Any], column: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for scorer in SCORERS:
        found[scorer] = select_column(compute_accuracy(labels, record[scorer], options), column)
        found[f"{scorer}_heard"] = select_column(compute_accuracy(labels, whole[scorer], options), column)
    without, heard = (compute_margins(labels, scores["head"]) > 0 for scores in (record, whole))
    change = compare(without, heard, list_groups(labels), [label["subset"] for label in labels], **options)
    return {**found, "change": {"difference": change["difference"], "interval": change["interval"]}}


def _summarise(rows: Records, kind: str) -> dict[str, Any] | None:
    members = [row for row in rows if (row["kind"], row["pairs"]) == (kind, LEFT_OUT)]
    if not members:
        return None
    names = [name for scorer in SCORERS for name in (scorer, f"{scorer}_heard")]
    lowest = min(members, key=lambda row: row["head"]["accuracy"])
    return {
        **{name: float(np.mean([row[name]["accuracy"] for row in members])) for name in names},
        "lowest": {"accuracy": lowest["head"]["accuracy"], "name": lowest["name"], "criterion": lowest["criterion"]},
    }
