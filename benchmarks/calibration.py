"""Transfer of a reward threshold from one subset to another, before and after calibration.

    python -m benchmarks.calibration runs/nano_eval

The input is the `output_dir` of a finished evaluation; no model is needed. Each of several seeds splits the recordings
(`group_id`) of every subset into two halves. The first half fits calibrations and thresholds: the threshold with the
best balanced accuracy between chosen and rejected sides. On the second half each subset's threshold is applied to
every subset, its own included. The result is the loss against the best threshold for these pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.racing import RESULTS, write_result
from sdiareward.common.arguments import parse_arguments
from sdiareward.evaluation.results_files import Evaluation, read_evaluation
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.calibration import Calibration, fit


RESULT = RESULTS / "calibration.json"
Floats = NDArray[np.float64]
# By subset, the values of the chosen and of the rejected sides.
Sides = dict[str, tuple[Floats, Floats]]
Records = Sequence[Mapping[str, Any]]
# The threshold without fitting: even odds, or the middle of the reference.
FIXED = {"reward": 0.0, "by_subset": 0.0, "one_table": 0.5, "by_quantile": 0.5, "left_out": 0.5}


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    eval_dir: Path = field(metadata={"positional": True, "help": "output_dir of a finished evaluation"})
    seeds: int = field(default=20, metadata={"help": "number of seeds"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.calibration", description=__doc__)
    result = measure(read_evaluation(args.eval_dir), args.seeds)
    write_result(args.output, settings={"seeds": args.seeds}, **result)
    print(json.dumps(result, indent=2))


def measure(evaluation: Evaluation, num_seeds: int) -> dict[str, Any]:
    """Measure the transfer of thresholds, averaged over random halves.

    Args:
        evaluation ([`Evaluation`]): A finished evaluation of at least two subsets.
        num_seeds (`int`): Number of random splits.

    Returns:
        `dict`: `best` and `own`, the balanced accuracy of the best threshold for the tested pairs of each subset and
        of the one that was fitted on its other half, and by method (`reward`, `by_subset`, `one_table`,
        `by_quantile`, `left_out`) `transfer` (loss by source and target), `mean_loss` between different subsets with
        its range over seeds, `mean_loss_to` each subset, `common` and `fixed` (balanced accuracy of one threshold for
        all, fitted or not).

    Raises:
        ValueError: There is one subset only, or one with a single recording.
    """
    subsets = sorted({record["subset"] for record in evaluation.scores})
    groups = {name: _groups([r for r in evaluation.scores if r["subset"] == name]) for name in subsets}
    if len(subsets) < 2 or min(map(len, groups.values())) < 2:
        counts = {name: len(found) for name, found in groups.items()}
        raise ValueError(f"recordings by subset are {counts}; give at least two subsets with two recordings each.")
    found = [measure_split(*split_groups(evaluation.scores, seed)) for seed in range(num_seeds)]
    counts = {name: sum(record["subset"] == name for record in evaluation.scores) for name in subsets}
    return {
        "evaluation": {name: evaluation.run.get(name) for name in ("model", "split", "pairs")},
        "num_pairs": counts,
        "num_groups": {name: len(groups[name]) for name in subsets},
        "median_reward": {name: _medians(evaluation.scores, name) for name in subsets},
        **{name: _mean([each[name] for each in found]) for name in ("best", "own")},
        "methods": {name: _summarise([each["methods"][name] for each in found]) for name in FIXED},
    }


def _groups(records: Records) -> list[str]:
    return sorted({record["group_id"] or record["pair_id"] for record in records})


def _medians(records: Records, subset: str) -> dict[str, float]:
    return {side: float(np.median([r[side] for r in records if r["subset"] == subset])) for side in SIDES}


def split_groups(records: Records, seed: int) -> tuple[list[Any], list[Any]]:
    """Split the recordings of every subset into two halves; the second gets the odd one.

    Args:
        records (`Sequence[Mapping]`): Scores with `subset`, `group_id` and `pair_id`.
        seed (`int`): Which halves.
    """
    rng = np.random.default_rng(seed)
    first: set[tuple[str, str]] = set()
    for subset in sorted({record["subset"] for record in records}):
        groups = _groups([record for record in records if record["subset"] == subset])
        first |= {(subset, groups[index]) for index in rng.permutation(len(groups))[: len(groups) // 2]}
    halves: tuple[list[Any], list[Any]] = ([], [])
    for record in records:
        is_first = (record["subset"], record["group_id"] or record["pair_id"]) in first
        halves[0 if is_first else 1].append(record)
    return halves


def measure_split(fitted_on: Records, tested_on: Records) -> dict[str, Any]:
    """Fit thresholds and calibrations on some pairs, apply them to others; see `measure`."""
    known, unseen = _sides(fitted_on, _rewards), _sides(tested_on, _rewards)
    best = {name: balanced_accuracy(*sides, best_threshold([sides])) for name, sides in unseen.items()}
    own = {name: balanced_accuracy(*sides, best_threshold([known[name]])) for name, sides in unseen.items()}
    return {
        "best": best,
        "own": own,
        "methods": {name: _measure_method(name, fitted_on, tested_on, best) for name in FIXED},
    }


def _measure_method(
    method: str, fitted_on: Records, tested_on: Records, best: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Return the losses of every source's threshold by target, and what one threshold for all reaches."""
    transfer: dict[str, dict[str, float]] = {source: {} for source in best}
    common, fixed = {}, {}
    for target in best:
        left_out = target if method == "left_out" else None
        before, after = _calibrated(method, fitted_on, tested_on, left_out)
        for source in best:
            threshold = best_threshold([before[source]])
            transfer[source][target] = best[target] - balanced_accuracy(*after[target], threshold)
        threshold = best_threshold([sides for name, sides in before.items() if name != left_out])
        common[target] = balanced_accuracy(*after[target], threshold)
        fixed[target] = balanced_accuracy(*after[target], FIXED[method])
    return {"transfer": transfer, "common": common, "fixed": fixed}


def _calibrated(method: str, fitted_on: Records, tested_on: Records, left_out: str | None) -> tuple[Sides, Sides]:
    """Return a method's values on both halves, made without one subset."""
    values = _method(method, [record for record in fitted_on if record["subset"] != left_out])
    return _sides(fitted_on, values), _sides(tested_on, values)


def _sides(records: Records, values: Callable[[Floats, Records], Floats]) -> Sides:
    found = {}
    for name in sorted({record["subset"] for record in records}):
        of_subset = [record for record in records if record["subset"] == name]
        chosen, rejected = (values(_column(of_subset, side), of_subset) for side in SIDES)
        found[name] = (chosen, rejected)
    return found


def _column(records: Records, side: str) -> Floats:
    return np.array([record[side] for record in records], dtype=np.float64)


def _rewards(rewards: Floats, records: Records) -> Floats:
    return rewards


def _method(name: str, fitted_on: Records) -> Callable[[Floats, Records], Floats]:
    """Return what makes a method's values of rewards."""
    if name == "reward":
        return _rewards
    pairs = np.stack([_column(fitted_on, side) for side in SIDES], axis=1)
    criteria = None if name == "one_table" else [record["criterion"] for record in fitted_on]
    calibration = Calibration(fit(pairs, [record["subset"] for record in fitted_on], criteria))
    if name == "by_subset":
        return lambda rewards, records: calibration.by_subset(rewards, [record["subset"] for record in records])
    return lambda rewards, records: calibration.by_quantile(rewards, [record["criterion"] for record in records])


def best_threshold(sides: Sequence[tuple[Floats, Floats]]) -> float:
    """Return the threshold with the best balanced accuracy, averaged over subsets; in the middle of equally good ones.

    Args:
        sides (`Sequence[tuple]`): Values of the chosen and of the rejected sides of each subset.
    """
    values = np.unique(np.concatenate([array for pair in sides for array in pair]))
    candidates = (values[1:] + values[:-1]) / 2 if len(values) > 1 else values
    found = np.mean([balanced_accuracies(chosen, rejected, candidates) for chosen, rejected in sides], axis=0)
    best = np.flatnonzero(found >= found.max() - 1e-12)
    return float(candidates[best[len(best) // 2]])


def balanced_accuracies(chosen: Floats, rejected: Floats, thresholds: ArrayLike) -> Floats:
    """Return the mean of the shares of chosen sides above and of rejected sides not above each threshold."""
    above = 1.0 - np.searchsorted(np.sort(chosen), thresholds, side="right") / len(chosen)
    below = np.searchsorted(np.sort(rejected), thresholds, side="right") / len(rejected)
    return (above + below) / 2


def balanced_accuracy(chosen: Floats, rejected: Floats, threshold: float) -> float:
    """Return the balanced accuracy of one threshold."""
    return float(balanced_accuracies(chosen, rejected, [threshold])[0])


def _summarise(splits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    losses = [np.mean(_between(split["transfer"])) for split in splits]
    transfer = {
        source: _mean([split["transfer"][source] for split in splits]) for source in sorted(splits[0]["transfer"])
    }
    return {
        "transfer": transfer,
        "mean_loss": float(np.mean(losses)),
        "mean_loss_to": {target: float(np.mean(_losses_to(target, transfer))) for target in transfer},
        "range_of_mean_loss": [float(min(losses)), float(max(losses))],
        "worst_loss": max(_between(transfer)),
        "common": _mean([split["common"] for split in splits]),
        "fixed": _mean([split["fixed"] for split in splits]),
    }


def _between(transfer: Mapping[str, Mapping[str, float]]) -> list[float]:
    """Return the losses between different subsets."""
    return [loss for target in transfer for loss in _losses_to(target, transfer)]


def _losses_to(target: str, transfer: Mapping[str, Mapping[str, float]]) -> list[float]:
    """Return the losses of the other subsets' thresholds on one."""
    return [targets[target] for source, targets in transfer.items() if source != target]


def _mean(splits: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([split[name] for split in splits])) for name in sorted(splits[0])}


if __name__ == "__main__":
    main()
