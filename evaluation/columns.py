"""Titles of the columns of a result, in the order of Table 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sdiareward.esdr_accuracy.pairwise import COLUMNS, NO_SUBSET, SUBSETS


TITLES = {
    "wild": "wild",
    "semi_wild": "semi-wild",
    "scripted": "scripted",
    "modality_micro": "modality micro",
    "modality_macro": "modality macro",
    "colloquialness": "colloq.",
    "overall_micro": "overall micro",
    "overall_macro": "overall macro",
    NO_SUBSET: "all",
}
# The column that holds all pairs of one criterion.
CRITERION_COLUMNS = {"modality": "modality_micro", "colloquialness": "colloquialness"}
_ALL_PAIRS = ("overall_micro",)
# Every value of the label `subset`: pairs of other data have none of the paper's.
SUBSET_LABELS = (*SUBSETS, NO_SUBSET)


def choose_columns(num_pairs: Mapping[str, int]) -> tuple[str, ...]:
    """Return the columns of Table 2, or that of all pairs alone if no pair is in a subset."""
    return COLUMNS if any(num_pairs[name] for name in SUBSETS) else _ALL_PAIRS


def title_columns(columns: Sequence[str]) -> dict[str, str]:
    """Return the titles of columns; the column of all pairs has that title if it stands alone."""
    return {**TITLES, "overall_micro": TITLES[NO_SUBSET]} if tuple(columns) == _ALL_PAIRS else TITLES


def group_by_criterion(subsets: Iterable[str]) -> dict[str, str]:
    """Return the column of all pairs of each criterion; without subsets, the column of all pairs."""
    others = {NO_SUBSET: "overall_micro"} if NO_SUBSET in set(subsets) else {}
    return {**CRITERION_COLUMNS, **others}


def is_of_criterion(subset: str, criterion: str) -> bool:
    """Return whether pairs with this label belong to a key of `group_by_criterion`."""
    if NO_SUBSET in (subset, criterion):
        return subset == criterion
    return (subset == "colloquialness") == (criterion == "colloquialness")
