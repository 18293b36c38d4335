"""Titles of the columns of a result, in the order of Table 2."""

from __future__ import annotations


TITLES = {
    "wild": "wild",
    "semi_wild": "semi-wild",
    "scripted": "scripted",
    "modality_micro": "modality micro",
    "modality_macro": "modality macro",
    "colloquialness": "colloq.",
    "overall_micro": "overall micro",
    "overall_macro": "overall macro",
}
# The column that holds all pairs of one criterion.
CRITERION_COLUMNS = {"modality": "modality_micro", "colloquialness": "colloquialness"}
