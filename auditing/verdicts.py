"""Compute statistics from an audit's rewards, and a verdict on each check by its limit in `limits.yaml`.

A pair is right if its chosen side has the strictly higher reward. It *flips* if a change makes it wrong or right. A
*shift* is the change of a dialogue's reward. The *median margin* is the median of `|chosen - rejected|` over the
unchanged pairs. Intervals are over recordings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import filter as filter_names
from fnmatch import fnmatchcase
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sdiareward.checkpoint_io.training_record import read_stages
from sdiareward.common.files import read_json_object
from sdiareward.common.package import AUDIT
from sdiareward.common.settings import read_mapping
from sdiareward.esdr_accuracy.pairwise import MODALITY_SUBSETS, NO_SUBSET, SUBSETS
from sdiareward.evaluation import summary
from sdiareward.evaluation.statistics import Clusters, Floats
from sdiareward.evaluation.summary import CRITERION_COLUMNS, SUBSET_LABELS, Labels, Scores
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.attacks import ATTACKS, Attack
from sdiareward.perturbations.registry import HELD_OUT, PERTURBATIONS
from sdiareward.training.augmentation import AugmentationSettings

from . import conditions
from .conditions import NATURAL, Rewards


PASS, FAIL, NOT_MEASURED = "pass", "fail", "not measured"
# Stands for all checks.
ANY = "any"
# Tolerance for differences of shares: 0.95 - 0.9 is slightly below 0.05.
_ROUNDING = 1e-12
Verdicts = Sequence[Mapping[str, Any]]
Booleans = NDArray[np.bool_]
# Per pair: the margin after a change (NaN if not applicable), the mean shift and the mean absolute shift of the
# changed dialogues' rewards.
Change = tuple[Floats, Floats, Floats]
Row = Mapping[str, Any]
Record = dict[str, Any]
# The sides of a pair that are changed; audio and text together.
BOTH = "both"
# Columns of Table 2 that are sets of pairs, not macro averages, and their subsets.
_SETS = {**{name: (name,) for name in SUBSET_LABELS}, "modality_micro": MODALITY_SUBSETS}
# The column for pairs without a subset if others have one; `NO_SUBSET` means all pairs.
OTHERS = "no_subset"


class Pairs:
    """The pairs that were scored unchanged, their rewards, and their recordings for the intervals."""

    def __init__(self, labels: Labels, rewards: Rewards, *, num_bootstrap: int = 1000, seed: int = 0):
        self.rewards, self.options = rewards, {"num_bootstrap": num_bootstrap, "seed": seed}
        natural = rewards.get(NATURAL, {})
        self.labels = [label for label in labels if "rewards" in natural.get(label["pair_id"], {})]
        if not self.labels:
            raise ValueError("no unchanged pair could be scored; there is nothing to audit.")
        self.subsets = np.array([label["subset"] for label in self.labels])
        self.groups = summary.list_groups(self.labels)
        self.clusters = Clusters(self.groups, self.subsets.tolist(), **self.options)
        self.natural = {side: self.get_rewards(NATURAL, side) for side in SIDES}
        self.margins: Floats = self.natural["chosen"] - self.natural["rejected"]
        self.everyone = np.ones(len(self.labels), dtype=np.bool_)

    def get_rewards(self, condition: str, name: str) -> Floats:
        """Return a reward of each pair under a condition, NaN if missing."""
        found = [line.get("rewards", {}).get(name, np.nan) for line in self.get_lines(condition)]
        return np.array(found, dtype=np.float64)

    def get_lines(self, condition: str) -> list[Mapping[str, Any]]:
        """Return the line of each pair under a condition, empty if missing."""
        found = self.rewards.get(condition, {})
        return [found.get(label["pair_id"], {}) for label in self.labels]

    def find_columns(self) -> dict[str, Booleans]:
        """Return a mask of pairs for each column; empty columns and repeated sets of pairs are omitted."""
        found: dict[str, Booleans] = {}
        for name, members in _SETS.items():
            is_member = np.isin(self.subsets, members)
            if is_member.any() and not any(np.array_equal(is_member, other) for other in found.values()):
                found[OTHERS if name == NO_SUBSET and not is_member.all() else name] = is_member
        return found

    def share(self, is_so: Booleans, is_used: Booleans) -> Record:
        """Return the `share` of true values among the used pairs, its `interval`, `num_pairs` and `num_groups`."""
        found = self.clusters.measure(is_so, is_used, is_share=True)
        return {"num_pairs": int(is_used.sum()), "share": found.pop("mean"), **found}

    def compute_scale(self, is_used: Booleans) -> float:
        """Return the median margin of the used pairs, the scale of shifts."""
        return float(np.median(np.abs(self.margins[is_used])))


def measure_changes(pairs: Pairs, condition: str) -> dict[str, Change]:
    """Return the effect of a perturbation on the chosen side, on the rejected side, and on both."""
    changed = {side: pairs.get_rewards(condition, side) for side in SIDES}
    chosen, rejected = (changed[side] - pairs.natural[side] for side in SIDES)
    both = np.stack([chosen, rejected])
    return {
        "chosen": (pairs.margins + chosen, chosen, np.abs(chosen)),
        "rejected": (pairs.margins - rejected, rejected, np.abs(rejected)),
        BOTH: (changed["chosen"] - changed["rejected"], both.mean(axis=0), np.abs(both).mean(axis=0)),
    }


def describe_change(pairs: Pairs, change: Change) -> Record:
    """Describe a change over the pairs; `num_lost` counts pairs that are no longer right."""
    margins, shifts, sizes = change
    is_used = np.isfinite(margins)
    if not is_used.any():
        return {"num_pairs": 0}
    before, after = pairs.margins > 0, margins > 0
    flips, size, scale = pairs.share(before != after, is_used), sizes[is_used].mean(), pairs.compute_scale(is_used)
    accuracy, shift = (pairs.clusters.measure(values, is_used) for values in (after.astype(float) - before, shifts))
    return {
        "num_pairs": flips["num_pairs"],
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
        "absolute_shift": float(size),
        "relative_shift": float(size / scale) if scale else None,
    }


def describe_natural(pairs: Pairs) -> dict[str, Record]:
    """Return accuracy, ties and median margin of the unchanged pairs, by column and overall (`"all"`)."""
    found = {}
    for name, is_member in {"all": pairs.everyone, **pairs.find_columns()}.items():
        right = pairs.share(pairs.margins > 0, is_member)
        right["accuracy"] = right.pop("share")
        num_ties = int((pairs.margins[is_member] == 0).sum())
        found[name] = {**right, "num_ties": num_ties, "natural_margin": pairs.compute_scale(is_member)}
    return found


def measure_perturbations(pairs: Pairs, names: Sequence[str]) -> Record:
    """Measure the effect of each perturbation by severity and place (`rows`), and means of these rows."""
    rows: list[Record] = []
    flips: dict[str, list[Floats]] = {}
    for name, severity in conditions.list_severities(names):
        for place, change in measure_changes(pairs, conditions.make_perturbation_key(name, severity)).items():
            where = {"nuisance": name, "severity": severity, "place": place}
            rows.append({**where, **describe_change(pairs, change)})
            has_flipped = (pairs.margins > 0) != (change[0] > 0)
            flips.setdefault(name, []).append(np.where(np.isfinite(change[0]), has_flipped, np.nan))
    measured = [row for row in rows if row["num_pairs"]]

    return {
        "rows": rows,
        "by_nuisance": [
            {"nuisance": name, **sum_up([row for row in measured if row["nuisance"] == name])} for name in names
        ],
        "total": {**sum_up(measured), "flip_interval": _measure_flip_interval(pairs, flips)},
    }


def sum_up(rows: Sequence[Mapping[str, Any]]) -> Record:
    """Average rows of `measure_perturbations`, with equal weight per perturbation."""
    keys = ("accuracy_change", "flip_rate", "relative_shift")
    if not rows:
        return dict.fromkeys((*keys, "worst"))
    by_perturbation = [list(members) for _, members in groupby(rows, lambda row: row["nuisance"])]

    def average(key: str) -> float | None:
        found = [[abs(row[key]) for row in members if row[key] is not None] for members in by_perturbation]
        means = [np.mean(values) for values in found if values]
        return float(np.mean(means)) if means else None

    worst = max(rows, key=lambda row: row["flip_rate"])
    where = {key: worst[key] for key in ("nuisance", "severity", "place", "flip_rate", "accuracy_change")}
    return {**{key: average(key) for key in keys}, "worst": where}


def _measure_flip_interval(pairs: Pairs, flips: Mapping[str, Sequence[Floats]]) -> list[float] | None:
    """Return the interval of the total flip rate; a pair's value is the mean over perturbations of means over rows."""
    if not flips:
        return None
    means = [np.ma.mean(np.ma.masked_invalid(rows), axis=0) for rows in flips.values()]
    total = np.ma.mean(np.ma.stack(means), axis=0)
    is_used = ~np.ma.getmaskarray(total)
    return pairs.clusters.measure(np.asarray(total.filled(np.nan)), is_used)["interval"]


def measure_attacks(pairs: Pairs, names: Iterable[str]) -> list[Record]:
    """Measure how often each attack succeeds; `not_applicable` counts pairs by reason."""
    rows = []
    for name in names:
        attack, key = ATTACKS[name], conditions.make_attack_key(name)
        reasons = Counter(line[conditions.REASON] for line in pairs.get_lines(key) if conditions.REASON in line)
        about = {"attack": name, "title": attack.title, "baseline": attack.baseline, "against": attack.against}
        about |= _describe_attack(pairs, pairs.get_rewards(key, conditions.ATTACKED), attack)
        rows.append({**about, "not_applicable": dict(reasons)})
    return rows


def _describe_attack(pairs: Pairs, attacked: Floats, attack: Attack) -> Record:
    """Describe an attack: `paid` is its success rate among pairs whose side is behind without it."""
    own, is_used = pairs.natural[attack.baseline], np.isfinite(attacked)
    if not is_used.any():
        return {"num_pairs": 0, "num_groups": 0}
    with_itself = attack.against in ("self", attack.baseline)
    rival = own if with_itself else pairs.natural[attack.against]
    reached = np.zeros_like(is_used) if with_itself else own >= rival
    # Success: the rejected side reaches the chosen side, or a broken dialogue scores at least as high as the intact
    # one.
    paid, gain = pairs.share(attacked >= rival, is_used & ~reached), pairs.clusters.measure(attacked - own, is_used)
    scale = pairs.compute_scale(is_used)
    return {
        "num_pairs": int(is_used.sum()),
        # Over the same pairs as `paid`.
        "num_groups": paid["num_groups"],
        "paid": paid["share"],
        "interval": paid["interval"],
        # Shares of all pairs that are not behind, without and with the attack.
        "paid_before": None if with_itself else float(reached[is_used].mean()),
        "reaches": float((attacked >= rival)[is_used].mean()),
        "gain": gain["mean"],
        "gain_interval": gain["interval"],
        "relative_gain": gain["mean"] / scale if scale else None,
    }


def measure_modalities(pairs: Pairs, names: Collection[str], baselines: Mapping[str, Scores]) -> Record | None:
    """Compare modalities and baselines by column of Table 2, on pairs with a reward for each modality.

    `margin_kept` is relative to the margin with both, negative if the order reverses, None if that margin is 0.
    """
    keys = {BOTH: NATURAL, **{name: conditions.make_modality_key(name) for name in names}}
    lines = {name: pairs.rewards.get(key, {}).items() for name, key in keys.items()}
    scores = {name: {i: line["rewards"] for i, line in found if "rewards" in line} for name, found in lines.items()}
    labels = [label for label in pairs.labels if all(label["pair_id"] in found for found in scores.values())]
    if not labels or not (names or baselines):
        return None
    scorers = {**scores, **baselines}
    accuracies = {name: summary.compute_accuracy(labels, of, pairs.options) for name, of in scorers.items()}
    some = Pairs(labels, pairs.rewards, **pairs.options)
    margins = {name: np.subtract(*(some.get_rewards(key, side) for side in SIDES)) for name, key in keys.items()}
    rows = []
    for column in dict.fromkeys((*SUBSETS, *CRITERION_COLUMNS.values(), "overall_micro")):
        is_in = np.isin(some.subsets, _SETS.get(column, SUBSET_LABELS))
        if not is_in.any():
            continue
        found = {name: summary.select_column(result, column) for name, result in accuracies.items()}
        for name, values in margins.items():
            kept = some.clusters.measure(values, is_in, margins[BOTH])
            found[name] |= {"mean_margin": float(values[is_in].mean()), "margin_kept": kept["mean"]}
            found[name] |= {"margin_kept_interval": kept["interval"]}
        row: Record = {"column": column, "num_pairs": int(is_in.sum())}
        row |= {"conditions": {name: found[name] for name in keys}}
        rows.append({**row, "baselines": {name: found[name] for name in baselines}})
    return {"num_pairs": len(labels), "rows": rows}


class Measured(NamedTuple):
    """The result of a check; its value is None if it could not be measured."""

    value: float | None
    detail: str = ""  # A note for the reader.


def measure_checks(audit: Row) -> dict[str, Measured]:
    """Return the result of every check by name, in page order; checks of absent parts have no value."""
    return {**_check_perturbations(audit), **_check_attacks(audit), **_check_modalities(audit)}


def list_checks() -> list[str]:
    return list(measure_checks(dict.fromkeys(("nuisances", "attacks", "hearing"))))


def read_trained_with(model: str) -> dict[str, list[str]] | None:
    """Return the perturbations and attacks used in a model's training, if known; they are weaker evidence."""
    found: dict[str, list[str]] = {"nuisances": [], "attacks": []}
    try:
        stages = [stage["arguments"] for stage in read_stages(model)]
        for arguments in stages:
            names = {key: arguments.get(key, []) for key in ("augmentations", "hard_negatives")}
            settings = AugmentationSettings(**names)
            found["nuisances"] += settings.list_perturbations()
            found["attacks"] += settings.find_attacks()
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # The record only adds a note to a verdict, and the folder may be untrusted.
    return {key: list(dict.fromkeys(names)) for key, names in found.items()} if stages else None


def _note_training(audit: Row, kind: str, name: str) -> str:
    return "trained with it" if name in (audit.get("trained_with") or {}).get(kind, ()) else ""


def _join(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _check_perturbations(audit: Row) -> dict[str, Measured]:
    nuisances = audit["nuisances"] or {"by_nuisance": (), "total": {}}
    total, worst = nuisances["total"], nuisances["total"].get("worst")
    rows = {row["nuisance"]: row for row in nuisances["by_nuisance"] if row["flip_rate"] is not None}
    trained = [name for name in rows if _note_training(audit, "nuisances", name)]
    over = f"over {len(rows)} of {len(PERTURBATIONS)} changes" if 0 < len(rows) < len(PERTURBATIONS) else ""
    of_all = _join(over, f"{len(trained)} of {len(rows)} in training" if trained else "")
    # The held-out channels, without those used in the model's training.
    held_out = [name for name in rows if name in HELD_OUT]
    unseen = [name for name in held_out if name not in trained]
    over = f"over {', '.join(unseen).replace('_', ' ')}" if unseen else "all of them in training" if held_out else ""
    rate = sum(rows[name]["flip_rate"] for name in unseen) / len(unseen) if unseen else None
    found = {
        "perturbations.accuracy_change": Measured(total.get("accuracy_change"), of_all),
        "perturbations.flip_rate": Measured(total.get("flip_rate"), of_all),
        "perturbations.worst_flip_rate": Measured(None),
        "perturbations.relative_shift": Measured(total.get("relative_shift"), of_all),
        "perturbations.held_out_flip_rate": Measured(rate, over),
        **{f"perturbation.{name}": Measured(None) for name in PERTURBATIONS},
    }
    if worst:
        found["perturbations.worst_flip_rate"] = Measured(worst["flip_rate"], _join(describe_worst(worst), of_all))
    for name, row in rows.items():
        worst = row["worst"]
        where = f"at worst {100 * worst['flip_rate']:.1f}%: {describe_worst(worst)}" if worst["flip_rate"] else ""
        # Some severities may have been scored on only some pairs.
        fewest = min(each["num_pairs"] for each in nuisances["rows"] if each["nuisance"] == name)
        some = f"a severity on {fewest} of {audit['num_pairs']} pairs only" if fewest < audit["num_pairs"] else ""
        detail = _join(where, some, _note_training(audit, "nuisances", name))
        found[f"perturbation.{name}"] = Measured(row["flip_rate"], detail)
    return found


def describe_worst(worst: Row) -> str:
    """Describe the change with the most flips, from `sum_up`; empty if there are none."""
    if not worst["flip_rate"]:
        return ""
    sides = "both sides" if worst["place"] == BOTH else f"the {worst['place']} side"
    return f"{PERTURBATIONS[worst['nuisance']].format_title(worst['severity'])}, on {sides}"


def _check_attacks(audit: Row) -> dict[str, Measured]:
    found = {f"attack.{name}": Measured(None) for name in ATTACKS}
    for row in audit["attacks"] or ():
        detail = "; ".join(row.get("not_applicable", ()))
        if row["num_pairs"]:
            ahead = f", the {100 * row['paid_before']:.1f}% ahead without it excluded" if row["paid_before"] else ""
            note = f"{row['num_pairs']} pairs{ahead}, mean change of reward {round(row['gain'], 2) + 0:+.2f}"
            detail = _join(note, _note_training(audit, "attacks", row["attack"]))
            detail = f"all {row['num_pairs']} were ahead without it" if row["paid"] is None else detail
        found[f"attack.{row['attack']}"] = Measured(row.get("paid"), detail)
    return found


def _check_modalities(audit: Row) -> dict[str, Measured]:
    """Check the model with only audio or only text, and compare it with cheap baselines."""
    rows = {row["column"]: row for row in (audit["hearing"] or {}).get("rows", ())}
    found, beside = {}, {}
    for criterion, column in CRITERION_COLUMNS.items():
        row = rows.get(column, {"conditions": {}, "baselines": {}})
        sound, words = (row["conditions"].get(name, {}) for name in conditions.MODALITIES)
        found[f"hearing.{conditions.AUDIO_ONLY}.{criterion}"] = Measured(sound.get("accuracy"))
        if criterion == "modality":
            ties = f"{words['num_ties']} ties" if words else ""
            found[f"hearing.{conditions.TEXT_ONLY}.{criterion}"] = Measured(words.get("accuracy"), ties)
        else:
            found[f"hearing.text_margin.{criterion}"] = Measured(words.get("margin_kept"))
        beside[f"baselines.{criterion}"] = Measured(None)
        if cheap := {name: result["accuracy"] for name, result in row["baselines"].items()}:
            best, own = max(cheap, key=lambda name: cheap[name]), row["conditions"][BOTH]["accuracy"]
            detail = f"{100 * own:.1f}% against {100 * cheap[best]:.1f}% of the {best} baseline"
            beside[f"baselines.{criterion}"] = Measured(own - cheap[best], detail)
    return {**found, **beside}


@cache
def read_limits() -> dict[str, Record]:
    """Return limits by pattern of check names: `at_most` or `at_least`, both inclusive."""
    return read_mapping(AUDIT / "limits.yaml")


def find_limit(check: str) -> Record:
    return next(limit for pattern, limit in read_limits().items() if fnmatchcase(check, pattern))


def judge(measured: Mapping[str, Measured]) -> list[Record]:
    """Compare the result of every check with its limit."""
    verdicts = []
    for name, (value, detail) in measured.items():
        limit, last = find_limit(name), name.rpartition(".")[2]
        title = limit["title"].format(ATTACKS[last].title if last in ATTACKS else last.replace("_", " "))
        bounds = {bound: limit.get(bound) for bound in ("at_most", "at_least")}
        status = NOT_MEASURED if value is None else PASS if is_kept(value, **bounds) else FAIL
        about = {"name": name, "title": title, "value": value, "unit": limit["unit"]}
        verdicts.append({**about, **bounds, "status": status, "detail": detail})
    return verdicts


def is_kept(value: float, at_most: float | None, at_least: float | None) -> bool:
    return (at_most is None or value - at_most <= _ROUNDING) and (at_least is None or at_least - value <= _ROUNDING)


def name_check(check: str) -> str:
    name: str = find_limit(check)["name"]
    return name.format(check.rpartition(".")[2].replace("_", " "))


def select(verdicts: Verdicts, patterns: Sequence[str]) -> list[Row]:
    """Return the verdicts that fail a run; a check named by a pattern must be measured, for `any` at least one."""
    if ANY in patterns and all(verdict["status"] == NOT_MEASURED for verdict in verdicts):
        return list(verdicts)

    def is_failing(verdict: Row) -> bool:
        is_named = any(fnmatchcase(verdict["name"], pattern) for pattern in patterns)
        return verdict["status"] != PASS and (is_named or (verdict["status"] == FAIL and ANY in patterns))

    return [verdict for verdict in verdicts if is_failing(verdict)]


def find_unknown_patterns(patterns: Iterable[str]) -> list[str]:
    return [pattern for pattern in patterns if pattern != ANY and not filter_names(list_checks(), pattern)]


def read_audit(path: Path) -> Record:
    remedy = "give the audit.json of an earlier audit"
    found = read_json_object(path, remedy)
    if missing := {"verdicts", "run", "natural"} - set(found):
        raise ValueError(f"{path}: has no {', '.join(sorted(missing))}; {remedy}.")
    if unknown := {each["name"] for each in found["verdicts"]} - set(list_checks()):
        raise ValueError(f"{path}: has the unknown check {min(unknown)}; audit the model again with this version.")
    return found


def require_same_pairs(earlier: Row, run: Row, num_pairs: int) -> None:
    """Raise unless an earlier audit drew the same pairs, because models are compared on the same pairs."""
    now = {**{name: run[name] for name in ("split", "pairs", "seed")}, "num_pairs": num_pairs}
    before = {**earlier["run"], "num_pairs": earlier["num_pairs"] + len(earlier["skipped"])}
    if changes := [f"{name} was {before[name]!r}, is {now[name]!r}" for name in now if before[name] != now[name]]:
        raise ValueError(f"the earlier audit used other pairs ({'; '.join(changes)}); audit both on the same pairs.")


def find_regressions(verdicts: Verdicts, earlier: Verdicts) -> list[Row]:
    """Return checks that passed in an earlier audit and now fail, are missing or were not measured."""
    now = {verdict["name"]: verdict for verdict in verdicts}
    gone = {"status": NOT_MEASURED, "value": None}
    found = [now.get(each["name"], {**each, **gone}) for each in earlier if each["status"] == PASS]
    return [verdict for verdict in found if verdict["status"] != PASS]


def show_value(value: float | None, unit: str) -> str:
    """Format a value in its unit: shares in percent, differences of shares in points."""
    if value is None:
        return "n/a"
    signs = {"share": "%", "points": " points"}
    return f"{100 * value:.1f}{signs[unit]}" if unit in signs else f"{value:.3g}"


def show_limit(verdict: Row) -> str:
    bound = "at_least" if verdict["at_most"] is None else "at_most"
    return f"{bound.replace('_', ' ')} {show_value(verdict[bound], verdict['unit'])}"
