"""Pairwise preference accuracy, per subset of ESDR-Bench, and as micro and macro averages.

The accuracy is the fraction of pairs in which the chosen dialogue's reward is strictly greater than the rejected one's
(Table 2 of the SDiaReward paper).
"""

from inspect import cleandoc
from typing import Any

import datasets
import evaluate

# `evaluate` copies this file and relative imports on single lines.
from .pairwise import NO_SUBSET, pairwise_accuracy


_CITATION = """
@misc{sdiareward,
    title = {Modeling and Benchmarking Spoken Dialogue Rewards with Modality and Colloquialness},
    note = {ACL submission},
}
"""


class EsdrAccuracy(evaluate.Metric):
    """
    Args:
        chosen (`list[float]`): Rewards of the preferred dialogues, one per pair.
        rejected (`list[float]`): Rewards of the other dialogues, in the same order.
        subset (`list[str]`, optional): Column of each pair: "wild", "semi_wild", "scripted" or "colloquialness"; by
            default "all", which counts only in "overall_micro".
        group_id (`list[str]`, optional): Original recording of each pair; intervals are over recordings.
        nan, missing, num_bootstrap, seed, confidence: See `pairwise.pairwise_accuracy`.

    Returns:
        `dict`: Accuracies in 0-1 (higher is better; None for an absent subset) under "wild", "semi_wild", "scripted",
        "modality_micro", "modality_macro", "colloquialness", "overall_micro" and "overall_macro"; by the same names
        "num_pairs", "num_correct", "num_ties", "num_invalid", "num_groups", "interval" and "interval_method"; and
        "missing_subsets".

    Examples:
        >>> metric = evaluate.load("esdr_accuracy")
        >>> result = metric.compute(chosen=[1.0, 0.2], rejected=[0.0, 0.2], subset=["wild", "scripted"])
        >>> result["wild"], result["scripted"], result["num_ties"]["scripted"], result["semi_wild"]
        (1.0, 0.0, 1, None)
    """  # noqa: D205, D212, D415 (shown by `evaluate` after the description)

    def _info(self) -> evaluate.MetricInfo:
        reward = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=__doc__,
            citation=_CITATION,
            inputs_description=cleandoc(EsdrAccuracy.__doc__ or ""),
            features=datasets.Features({"chosen": reward, "rejected": reward, "subset": datasets.Value("string")}),
        )

    # `evaluate` adds its own text to this docstring.
    def compute(self, chosen: Any = None, rejected: Any = None, subset: Any = None, **options: Any) -> Any:
        """Compute the accuracies; raise if a column is missing."""
        columns = {"chosen": chosen, "rejected": rejected, "subset": subset}
        missing = [name for name in ("chosen", "rejected") if columns[name] is None]
        # Without columns, the values from `add` and `add_batch` are used.
        if missing and (len(missing) == 1 or subset is not None):
            raise ValueError(f"{', '.join(missing)} is missing; give a list with one entry per pair.")
        if subset is None and not missing and hasattr(chosen, "__len__"):
            columns["subset"] = [NO_SUBSET] * len(chosen)
        return super().compute(**({} if missing else columns), **options)

    def _compute(self, **columns: Any) -> dict[str, Any]:
        return pairwise_accuracy(**columns)
