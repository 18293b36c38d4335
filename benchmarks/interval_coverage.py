"""How often 95% intervals hold the true value, by the number of recordings.

    python -m benchmarks.interval_coverage

Each repetition draws recordings and their pairs, and computes the interval as the commands do. The share of right
pairs is 0.5, 0.7 or 0.9; the correlation of pairs of one recording (ICC) is 0 or 0.1; recordings have 20 pairs each,
or 5, 10, 35 and 30 in turn. A cell of the table is the lowest coverage among the four settings of ICC and sizes, each
over all shares. Repetitions without an interval do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sdiareward.common.commands import parse_options
from sdiareward.common.files import write_file
from sdiareward.common.provenance import write_provenance
from sdiareward.common.tables import render_markdown_table
from sdiareward.esdr_accuracy.pairwise import pairwise_accuracy, percentile_interval
from sdiareward.evaluation.human.study import summarise_items
from sdiareward.evaluation.statistics import Clusters, compare


NUM_GROUPS = (2, 3, 5, 10, 20, 50, 100)
SHARES = (0.5, 0.7, 0.9)
SETTINGS = tuple(product(SHARES, (0.0, 0.1), (True, False)))
_UNEQUAL = (5, 10, 35, 30)
_SUBSETS = ("wild", "scripted", "colloquialness")
Bounds = Sequence[float] | None


class Sample(NamedTuple):
    """The recording of each pair, and whether two scorers of the same accuracy are right."""

    groups: list[int]
    is_right: NDArray[np.bool_]
    other_is_right: NDArray[np.bool_]


def draw(generator: np.random.Generator, num_groups: int, share: float, icc: float, is_equal: bool) -> Sample:
    sizes = np.full(num_groups, 20) if is_equal else np.resize(_UNEQUAL, num_groups)
    groups = np.repeat(np.arange(num_groups), sizes)
    both = []
    for _ in range(2):
        scale = (1 - icc) / icc if icc else 0
        rates = generator.beta(share * scale, (1 - share) * scale, num_groups) if icc else np.full(num_groups, share)
        both.append(generator.random(len(groups)) < rates[groups])
    is_alike = generator.random(len(groups)) < 0.5
    return Sample(groups.tolist(), both[0], np.where(is_alike, both[0], both[1]))


def _measure_accuracy(sample: Sample) -> Bounds:
    return _measure_pairs(sample, ["wild"] * len(sample.groups), "wild")


def _measure_macro(sample: Sample) -> Bounds:
    subsets = [_SUBSETS[group % len(_SUBSETS)] for group in sample.groups]
    return _measure_pairs(sample, subsets, "overall_macro")


def _measure_pairs(sample: Sample, subsets: Sequence[str], column: str) -> Bounds:
    bounds: Bounds = pairwise_accuracy(
        sample.is_right.astype(np.float64), np.full(len(subsets), 0.5), subsets, sample.groups
    )["interval"][column]
    return bounds


def _measure_difference(sample: Sample) -> Bounds:
    groups = sample.groups
    bounds: Bounds = compare(sample.is_right, sample.other_is_right, groups, ["wild"] * len(groups))["interval"]
    return bounds


def _measure_agreement(sample: Sample) -> Bounds:
    """Of one rater; items are dealt out to four strata."""
    groups = [f"g{group}" for group in sample.groups]
    columns = {"stratum": np.arange(len(groups)) % 4, "agreement": sample.is_right.astype(float), "group_id": groups}
    items = pd.DataFrame({**columns, "margin": 0.0, "num_answers": 1, "num_cannot_tell": 0, "pair_id": ""})
    bounds: Bounds = summarise_items(items)["interval"]
    return bounds


def _bootstrap(sample: Sample) -> Bounds:
    """Return percentiles of accuracies of drawn recordings, whatever their number."""
    clusters = Clusters(sample.groups)
    right, sizes = clusters.add_up(sample.is_right), np.bincount(clusters.members)
    return percentile_interval((clusters.draws @ right) / (clusters.draws @ sizes))


class Kind(NamedTuple):
    measure: Callable[[Sample], Bounds]
    # Recordings in relation to those of the table, and what the interval is to hold.
    factor: int = 1
    find_truth: Callable[[float], float] = lambda share: share


KINDS = {
    "accuracy": Kind(_measure_accuracy),
    "macro average": Kind(_measure_macro, len(_SUBSETS)),
    "difference": Kind(_measure_difference, find_truth=lambda share: 0.0),
    "human agreement": Kind(_measure_agreement),
    "accuracy, bootstrap alone": Kind(_bootstrap),
}


def cover(kind: Kind, num_groups: int, setting: tuple[float, float, bool], repetitions: int, seed: int = 0) -> float:
    """Return the share of the intervals that hold the true value."""
    generator = np.random.default_rng(seed)
    truth = kind.find_truth(setting[0])
    found = (kind.measure(draw(generator, kind.factor * num_groups, *setting)) for _ in range(repetitions))
    return float(np.mean([bounds[0] <= truth <= bounds[1] for bounds in found if bounds]))


@dataclass
class Arguments:
    repetitions: int = field(default=300, metadata={"help": "repetitions of each setting"})
    output: Path = field(
        default=Path("benchmarks/results/interval_coverage.json"), metadata={"help": "where to write"}
    )


def render(result: Mapping[str, Any]) -> str:
    rows = [
        [
            str(row["num_groups"]),
            *(
                f"{100 * np.reshape(row['coverage'][name], (len(SHARES), -1)).mean(axis=0).min():.1f}"
                for name in KINDS
            ),
        ]
        for row in result["rows"]
    ]
    return "\n".join(render_markdown_table(["recordings", *KINDS], rows))


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_options(Arguments, argv, prog="python -m benchmarks.interval_coverage", description=__doc__)
    rows = []
    for num_groups in NUM_GROUPS:
        coverage = {
            name: [cover(kind, num_groups, setting, args.repetitions) for setting in SETTINGS]
            for name, kind in KINDS.items()
        }
        rows.append({"num_groups": num_groups, "coverage": coverage})
        print(render({"rows": rows[-1:]}), flush=True)
    result = {"repetitions": args.repetitions, "settings": [list(setting) for setting in SETTINGS], "rows": rows}
    write_provenance(args.output, **result)
    write_file(args.output.with_suffix(".md"), render(result) + "\n")


if __name__ == "__main__":
    main()
