"""Describe how well `sigmoid(margin)` is calibrated, before and after a temperature from other recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sdiareward.evaluation.columns import SUBSET_LABELS

from .. import summary
from .reliability import (
    Floats,
    cross_fit_temperatures,
    deal_folds,
    expected_calibration_error,
    fit_temperature,
    fold,
    make_equal_mass_bins,
    negative_log_likelihood,
)


Records = Sequence[Mapping[str, Any]]
Scores = Mapping[str, Mapping[str, Any]]


def describe_calibration(records: Records, scores: Scores, options: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the calibration of one model before and after temperatures from folds of other recordings."""
    pairs = [scores[record["pair_id"]] for record in records]
    margins = np.array([pair["chosen"] - pair["rejected"] for pair in pairs], dtype=np.float64)
    folds = deal_folds(summary.list_groups(records), [record["subset"] for record in records])
    by_pair = cross_fit_temperatures(margins, folds)
    after = None if by_pair is None else _describe(margins / by_pair, records, scores, options)
    return {
        "num_pairs": len(records),
        "num_wrong": int((margins <= 0).sum()),
        "temperature": fit_temperature(margins),
        "fold_temperatures": None if by_pair is None else [float(by_pair[folds == k][0]) for k in np.unique(folds)],
        "before": _describe(margins, records, scores, options),
        "after": after,
    }


def _describe(margins: Floats, records: Records, scores: Scores, options: Mapping[str, Any]) -> dict[str, Any]:
    confidence, _ = fold(margins)
    bins = []
    for rows in make_equal_mass_bins(confidence):
        bounds = {"low": float(confidence[rows].min()), "high": float(confidence[rows].max())}
        accuracy = summary.describe_accuracy([records[row] for row in rows], scores, options)
        bins.append({**accuracy, "confidence": float(confidence[rows].mean()), **bounds})
    subsets = np.array([record["subset"] for record in records])
    by_subset = {
        name: {
            "num_pairs": int((subsets == name).sum()),
            "confidence": float(confidence[subsets == name].mean()),
            "error": expected_calibration_error(margins[subsets == name]),
        }
        for name in SUBSET_LABELS
        if (subsets == name).any()
    }
    return {
        "confidence": float(confidence.mean()),
        "error": expected_calibration_error(margins),
        "negative_log_likelihood": negative_log_likelihood(margins),
        "bins": bins,
        "by_subset": by_subset,
    }
