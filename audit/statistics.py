"""Compute the statistics of an audit from its rewards: shifts, flips, and successful attacks.

A pair is right when its chosen side has the strictly higher reward. It *flips* when it is right before a change and
not after it, or the other way round. A *shift* is the difference that a change makes to the reward of a dialogue. The
*natural margin* is the median of `|chosen - rejected|` over the unchanged pairs. Intervals are over recordings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sdiareward.esdr_accuracy.pairwise import MODALITY_SUBSETS, NO_SUBSET, SUBSETS
from sdiareward.evaluation.statistics import Clusters, Floats
from sdiareward.evaluation.summary import Labels, Scores, list_groups
from sdiareward.pairs.schema import SIDES

from .conditions import ATTACKED, NATURAL, REASON, Rewards, list_severities, make_attack_key, make_perturbation_key


if TYPE_CHECKING:
    from sdiareward.perturbations.attacks import Attack

Booleans = NDArray[np.bool_]

# Sides of a pair that a change is applied to.
BOTH = "both"
PLACES = (*SIDES, BOTH)
# Columns of Table 2 that are sets of pairs, not macro averages.
_COLUMNS = {**{name: (name,) for name in (*SUBSETS, NO_SUBSET)}, "modality_micro": MODALITY_SUBSETS}
# The column of pairs of no subset where there are others: `NO_SUBSET` is a word for all pairs.
OTHERS = "no_subset"


class Pairs:
    """The pairs that were scored unchanged, with their rewards and the recordings that every interval is over."""

    def __init__(self, labels: Labels, rewards: Rewards, *, num_bootstrap: int = 1000, seed: int = 0):
        self.rewards = rewards
        natural = rewards.get(NATURAL, {})
        self.labels = [label for label in labels if "rewards" in natural.get(label["pair_id"], {})]
        if not self.labels:
            raise ValueError("no pair could be scored as it is; there is nothing to audit.")
        self.subsets = np.array([label["subset"] for label in self.labels])
        self.groups = np.array(list_groups(self.labels))
        options = {"num_bootstrap": num_bootstrap, "seed": seed}
        self.clusters = Clusters(self.groups.tolist(), self.subsets.tolist(), **options)
        self.natural = {side: self.get_rewards(NATURAL, side) for side in SIDES}
        self.margins: Floats = self.natural["chosen"] - self.natural["rejected"]

    def get_rewards(self, condition: str, name: str) -> Floats:
        """Return a reward of each pair under a condition, NaN where it is missing."""
        found = [line.get("rewards", {}).get(name, np.nan) for line in self.get_lines(condition)]
        return np.array(found, dtype=np.float64)

    def get_lines(self, condition: str) -> list[Mapping[str, Any]]:
        """Return the line of each pair under a condition, empty where it is missing."""
        found = self.rewards.get(condition, {})
        return [found.get(label["pair_id"], {}) for label in self.labels]

    def find_columns(self) -> dict[str, Booleans]:
        """Return a mask of pairs for each column; empty columns and repeated sets of pairs are omitted."""
        found: dict[str, Booleans] = {}
        for name, members in _COLUMNS.items():
            is_member = np.isin(self.subsets, members)
            if is_member.any() and not any(np.array_equal(is_member, other) for other in found.values()):
                found[OTHERS if name == NO_SUBSET and not is_member.all() else name] = is_member
        return found

    def share(self, is_so: Booleans, is_used: Booleans) -> dict[str, Any]:
        """Return the `share` of true values among some pairs, its `interval`, `num_pairs` and `num_groups`."""
        found = self.clusters.measure(is_so, is_used, is_share=True)
        return {"num_pairs": int(is_used.sum()), "share": found.pop("mean"), **found}


def is_in_column(subset: str, column: str) -> bool:
    """Return whether a column of Table 2 that is a set of pairs counts a subset."""
    return column in (subset, "overall_micro") or (column == "modality_micro" and subset in MODALITY_SUBSETS)


def compute_margins(labels: Labels, scores: Scores) -> Floats:
    sides = [[scores[label["pair_id"]][side] for label in labels] for side in SIDES]
    return np.subtract(*np.asarray(sides, dtype=np.float64))


def compute_natural_margin(margins: Floats) -> float:
    """Return the median absolute margin of unchanged pairs, the scale of shifts."""
    return float(np.median(np.abs(margins)))


@dataclass(frozen=True)
class Change:
    """The effect of a change on each pair, arrays of shape `(num_pairs,)`."""

    # After the change; NaN where it could not be applied.
    margins: Floats
    # Mean shift, and mean absolute shift, of the rewards of the changed dialogues.
    shift: Floats
    moved: Floats

    def find_flips(self, before: Floats) -> Booleans:
        """Return which pairs are right either before or after the change, but not both."""
        return np.isfinite(self.margins) & ((before > 0) != (self.margins > 0))


def measure_changes(pairs: Pairs, condition: str) -> dict[str, Change]:
    """Return the effect of a perturbation on the chosen side alone, on the rejected one alone, and on both."""
    changed = {side: pairs.get_rewards(condition, side) for side in SIDES}
    shifts = {side: changed[side] - pairs.natural[side] for side in SIDES}
    both = np.stack([shifts[side] for side in SIDES])
    return {
        "chosen": Change(pairs.margins + shifts["chosen"], shifts["chosen"], np.abs(shifts["chosen"])),
        "rejected": Change(pairs.margins - shifts["rejected"], shifts["rejected"], np.abs(shifts["rejected"])),
        BOTH: Change(changed["chosen"] - changed["rejected"], both.mean(axis=0), np.abs(both).mean(axis=0)),
    }


def describe_change(pairs: Pairs, change: Change, is_member: Booleans | None = None) -> dict[str, Any]:
    """Describe a change over a mask of pairs; `num_lost` counts pairs that are no longer right."""
    is_used = np.isfinite(change.margins) if is_member is None else np.isfinite(change.margins) & is_member
    if not is_used.any():
        return {"num_pairs": 0}
    before, after = pairs.margins > 0, change.margins > 0
    accuracy = pairs.clusters.measure(after.astype(np.float64) - before, is_used)
    flips, shift = (
        pairs.share(change.find_flips(pairs.margins), is_used),
        pairs.clusters.measure(change.shift, is_used),
    )
    absolute, scale = float(change.moved[is_used].mean()), compute_natural_margin(pairs.margins[is_used])
    return {
        "num_pairs": int(is_used.sum()),
        "num_groups": flips["num_groups"],
        "accuracy_before": float(before[is_used].mean()),
        "accuracy": float(after[is_used].mean()),
        "accuracy_change": accuracy["mean"],
        "accuracy_change_interval": accuracy["interval"],
        "flip_rate": flips["share"],
        "flip_interval": flips["interval"],
        "num_lost": int((before & ~after & is_used).sum()),
        "num_won": int((~before & after & is_used).sum()),
        "mean_shift": shift["mean"],
        "mean_shift_interval": shift["interval"],
        "absolute_shift": absolute,
        "relative_shift": absolute / scale if scale else None,
    }


def describe_natural(pairs: Pairs) -> dict[str, Any]:
    """Return accuracy, ties and the natural margin of the unchanged pairs, by column and over all (`"all"`)."""
    everything = {"all": np.ones(len(pairs.labels), dtype=np.bool_), **pairs.find_columns()}
    return {name: _describe_natural(pairs, is_member) for name, is_member in everything.items()}


def _describe_natural(pairs: Pairs, is_member: Booleans) -> dict[str, Any]:
    right = pairs.share(pairs.margins > 0, is_member)
    margins = pairs.margins[is_member]
    return {
        "num_pairs": right["num_pairs"],
        "num_groups": right["num_groups"],
        "accuracy": right["share"],
        "interval": right["interval"],
        "num_ties": int((margins == 0).sum()),
        "natural_margin": compute_natural_margin(margins),
    }


def measure_perturbations(pairs: Pairs, names: Sequence[str]) -> dict[str, Any]:
    """Measure the effect of each perturbation by severity, place and column (`rows`), and means of these rows."""
    columns = pairs.find_columns()
    rows, flips = [], []
    for name, severity in list_severities(names):
        for place, change in measure_changes(pairs, make_perturbation_key(name, severity)).items():
            where = {"nuisance": name, "severity": severity, "place": place}
            found = {column: describe_change(pairs, change, is_in) for column, is_in in columns.items()}
            rows.append({**where, **describe_change(pairs, change), "columns": found})
            flips.append((name, np.where(np.isfinite(change.margins), change.find_flips(pairs.margins), np.nan)))
    measured = [row for row in rows if row["num_pairs"]]
    return {
        "rows": rows,
        "by_nuisance": [
            {"nuisance": name, **sum_up([row for row in measured if row["nuisance"] == name])} for name in names
        ],
        "by_place": [
            {"place": place, **sum_up([row for row in measured if row["place"] == place])} for place in PLACES
        ],
        "by_column": [
            {"column": column, "num_pairs": int(is_in.sum()), **sum_up(_select_column(measured, column))}
            for column, is_in in columns.items()
        ],
        "total": {**sum_up(measured), "flip_interval": _flip_interval(pairs, flips)},
    }


def _select_column(rows: Sequence[Mapping[str, Any]], column: str) -> list[dict[str, Any]]:
    """Return the rows with the values of a column, if it has pairs."""
    return [{**row, **row["columns"][column]} for row in rows if row["columns"][column]["num_pairs"]]


def sum_up(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means over rows of `measure_perturbations`, each perturbation with the same weight; None without rows."""
    if not rows:
        return dict.fromkeys(("accuracy_change", "flip_rate", "relative_shift", "worst"))
    worst = max(rows, key=lambda row: row["flip_rate"])
    return {
        "accuracy_change": _average_by_perturbation(rows, [abs(row["accuracy_change"]) for row in rows]),
        "flip_rate": _average_by_perturbation(rows, [row["flip_rate"] for row in rows]),
        "relative_shift": _average_by_perturbation(rows, [row["relative_shift"] for row in rows]),
        "worst": {key: worst[key] for key in ("nuisance", "severity", "place", "flip_rate", "accuracy_change")},
    }


def _average_by_perturbation(rows: Sequence[Mapping[str, Any]], values: Sequence[float | None]) -> float | None:
    by_perturbation: dict[str, list[float]] = {}
    for row, value in zip(rows, values, strict=True):
        if value is not None:
            by_perturbation.setdefault(row["nuisance"], []).append(value)
    return float(np.mean([np.mean(found) for found in by_perturbation.values()])) if by_perturbation else None


def _flip_interval(pairs: Pairs, flips: Sequence[tuple[str, Floats]]) -> list[float] | None:
    """Return the interval of the total flip rate: for each pair the mean over perturbations of means over rows."""
    by_perturbation: dict[str, list[Floats]] = {}
    for name, values in flips:
        by_perturbation.setdefault(name, []).append(values)
    if not by_perturbation:
        return None
    of_perturbations = np.ma.mean(
        np.ma.stack([np.ma.mean(np.ma.masked_invalid(rows), axis=0) for rows in by_perturbation.values()]), axis=0
    )
    is_used = ~np.ma.getmaskarray(of_perturbations)
    return pairs.clusters.measure(np.asarray(of_perturbations.filled(np.nan)), is_used)["interval"]


def measure_attacks(pairs: Pairs, attacks: Mapping[str, Attack]) -> list[dict[str, Any]]:
    """Measure how often each attack succeeds, overall and by column; `not_applicable` counts pairs by reason."""
    rows = []
    for name, attack in attacks.items():
        about = {"attack": name, "title": attack.title, "baseline": attack.baseline, "against": attack.against}
        found = {
            column: _describe_attack(pairs, name, attack, is_in) for column, is_in in pairs.find_columns().items()
        }
        everyone = np.ones(len(pairs.labels), dtype=np.bool_)
        whole = _describe_attack(pairs, name, attack, everyone)
        reasons = Counter(line[REASON] for line in pairs.get_lines(make_attack_key(name)) if line.get(REASON))
        rows.append({**about, **whole, "columns": found, "not_applicable": dict(reasons)})
    return rows


def _describe_attack(pairs: Pairs, name: str, attack: Attack, is_member: Booleans) -> dict[str, Any]:
    """Describe an attack on some pairs: `paid` is its success rate among pairs whose side is behind without it."""
    attacked, own = pairs.get_rewards(make_attack_key(name), ATTACKED), pairs.natural[attack.baseline]
    is_used = np.isfinite(attacked) & is_member
    if not is_used.any():
        return {"num_pairs": 0, "num_groups": 0}
    with_itself = attack.against == "self" or attack.against == attack.baseline
    rival = own if with_itself else pairs.natural[attack.against]
    reached = np.zeros_like(is_used) if with_itself else own >= rival
    # Success: the rejected side reaches the chosen one, or a broken dialogue is not rewarded less than the intact one.
    paid, gain = pairs.share(attacked >= rival, is_used & ~reached), pairs.clusters.measure(attacked - own, is_used)
    scale = compute_natural_margin(pairs.margins[is_used])
    return {
        "num_pairs": int(is_used.sum()),
        # Of the pairs that `paid` is about.
        "num_groups": paid["num_groups"],
        "paid": paid["share"],
        "interval": paid["interval"],
        # Shares of all pairs whose side is not behind, without the attack and with it.
        "paid_before": None if with_itself else float(reached[is_used].mean()),
        "reaches": float((attacked >= rival)[is_used].mean()),
        "gain": gain["mean"],
        "gain_interval": gain["interval"],
        "relative_gain": gain["mean"] / scale if scale else None,
    }
