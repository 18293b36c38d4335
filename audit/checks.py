"""The checks of an audit: the value of each, from the audit's results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sdiareward.checkpoint_io.training_record import read_stages
from sdiareward.evaluation.summary import CRITERION_COLUMNS
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.registry import HELD_OUT, PERTURBATIONS
from sdiareward.training.augmentation import AugmentationSettings

from .modality_ablation import AUDIO_ONLY, BOTH, TEXT_ONLY
from .verdicts import Measured


Audit = Mapping[str, Any]
_NOTHING = Measured(None)
_TRAINED = "trained with it"


def measure_checks(audit: Audit) -> dict[str, Measured]:
    """Return the result of every check by name, in the order of the page; checks of absent parts have no value."""
    return {
        **_check_totals(audit),
        **_check_perturbations(audit),
        **_check_attacks(audit),
        **_check_hearing(audit),
        **_check_baselines(audit),
    }


def check_names() -> list[str]:
    return list(measure_checks(dict.fromkeys(("nuisances", "attacks", "hearing"))))


def read_trained_with(model: str) -> dict[str, list[str]] | None:
    """Return the perturbations and attacks of a model's training, if known; robustness to these is weaker evidence."""
    try:
        stages = [_read_changes(stage["arguments"]) for stage in read_stages(model)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # The record only adds a note to a verdict, and the folder may come from anywhere.
    if not stages:
        return None
    return {key: list(dict.fromkeys(name for stage in stages for name in stage[key])) for key in stages[0]}


def _read_changes(arguments: Mapping[str, Any]) -> dict[str, list[str]]:
    names: dict[str, Any] = {key: arguments.get(key, []) for key in ("augmentations", "hard_negatives")}
    settings = AugmentationSettings(**names)
    return {"nuisances": list(settings.list_perturbations()), "attacks": list(settings.find_attacks())}


def _check_totals(audit: Audit) -> dict[str, Measured]:
    nuisances = audit["nuisances"] or {}
    total = nuisances.get("total") or {}
    worst = total.get("worst")
    tried = [row["nuisance"] for row in nuisances.get("by_nuisance", ()) if row["flip_rate"] is not None]
    num_trained = sum(bool(_was_trained(audit, "nuisances", name)) for name in tried)
    notes = [
        f"over {len(tried)} of {len(PERTURBATIONS)} changes" if 0 < len(tried) < len(PERTURBATIONS) else "",
        f"{num_trained} of {len(tried)} in training" if num_trained else "",
    ]
    of_all = "; ".join(filter(None, notes))
    where = "; ".join(filter(None, [describe_worst(worst), of_all])) if worst else ""
    return {
        "nuisances.accuracy_change": Measured(total.get("accuracy_change"), of_all),
        "nuisances.flip_rate": Measured(total.get("flip_rate"), of_all),
        "nuisances.worst_flip_rate": Measured(worst["flip_rate"], where) if worst else _NOTHING,
        "nuisances.relative_shift": Measured(total.get("relative_shift"), of_all),
        "nuisances.held_out_flip_rate": _compute_held_out_flip_rate(audit),
    }


def _compute_held_out_flip_rate(audit: Audit) -> Measured:
    """Return the mean over the held-out channels, without those that the model was trained with by name."""
    rates = {
        row["nuisance"]: row["flip_rate"]
        for row in (audit["nuisances"] or {}).get("by_nuisance", ())
        if row["nuisance"] in HELD_OUT and row["flip_rate"] is not None
    }
    unseen = [name for name in rates if not _was_trained(audit, "nuisances", name)]
    if not unseen:
        return Measured(None, "all of them in training" if rates else "")
    over = ", ".join(name.replace("_", " ") for name in unseen)
    return Measured(sum(rates[name] for name in unseen) / len(unseen), f"over {over}")


def describe_worst(worst: Mapping[str, Any]) -> str:
    """Describe the change under which most pairs flip, from `statistics.sum_up`; empty if none does."""
    if not worst["flip_rate"]:
        return ""
    sides = "both sides" if worst["place"] == "both" else f"the {worst['place']} side"
    return f"{PERTURBATIONS[worst['nuisance']].format_title(worst['severity'])}, on {sides}"


def _check_perturbations(audit: Audit) -> dict[str, Measured]:
    rows = {row["nuisance"]: row for row in (audit["nuisances"] or {}).get("by_nuisance", ())}
    found = {}
    for name in PERTURBATIONS:
        row = rows.get(name)
        title = name.replace("_", " ")
        if row is None or row["flip_rate"] is None:
            found[f"nuisance.{name}"] = Measured(None, title=title)
        else:
            worst = describe_worst(row["worst"])
            detail = f"at worst {100 * row['worst']['flip_rate']:.1f}%: {worst}" if worst else ""
            details = filter(None, [detail, _describe_missing(audit, name), _was_trained(audit, "nuisances", name)])
            found[f"nuisance.{name}"] = Measured(row["flip_rate"], "; ".join(details), title)
    return found


def _describe_missing(audit: Audit, name: str) -> str:
    """Return a note if some severity of a perturbation could be scored on some pairs only."""
    fewest = min(row["num_pairs"] for row in audit["nuisances"]["rows"] if row["nuisance"] == name)
    return f"a severity on {fewest} of {audit['num_pairs']} pairs only" if fewest < audit["num_pairs"] else ""


def _check_attacks(audit: Audit) -> dict[str, Measured]:
    rows = {row["attack"]: row for row in audit["attacks"] or ()}
    return {
        f"attack.{name}": _check_attack(attack.title, rows.get(name), _was_trained(audit, "attacks", name))
        for name, attack in ATTACKS.items()
    }


def _was_trained(audit: Audit, kind: str, name: str) -> str:
    return _TRAINED if name in (audit.get("trained_with") or {}).get(kind, ()) else ""


def _check_attack(title: str, row: Mapping[str, Any] | None, trained: str = "") -> Measured:
    if row is None:
        return Measured(None, title=title)
    if not row["num_pairs"]:
        return Measured(None, "; ".join(row["not_applicable"]), title)
    if row["paid"] is None:
        return Measured(None, f"all {row['num_pairs']} were ahead without it", title)
    before = row["paid_before"] or 0.0
    ahead = f", the {100 * before:.1f}% ahead without it left out" if before else ""
    found = f"on {row['num_pairs']}{ahead}, mean gain {row['gain']:+.2f}"
    return Measured(row["paid"], "; ".join(filter(None, [found, trained])), title)


def _check_hearing(audit: Audit) -> dict[str, Measured]:
    rows = (audit["hearing"] or {}).get("rows", ())
    found = {}
    for criterion, column in CRITERION_COLUMNS.items():
        conditions = (_find_row(rows, column) or {}).get("conditions", {})
        alone = conditions.get(AUDIO_ONLY, {})
        found[f"hearing.{AUDIO_ONLY}.{criterion}"] = Measured(alone.get("accuracy"), title=criterion)
        words = conditions.get(TEXT_ONLY, {})
        if criterion == "modality":
            ties = f"{words['num_ties']} ties" if words else ""
            found[f"hearing.{TEXT_ONLY}.{criterion}"] = Measured(words.get("accuracy"), ties)
        else:
            found[f"hearing.text_margin.{criterion}"] = Measured(words.get("margin_kept"))
    return found


def _check_baselines(audit: Audit) -> dict[str, Measured]:
    rows = (audit["hearing"] or {}).get("rows", ())
    found = {}
    for criterion, column in CRITERION_COLUMNS.items():
        row = _find_row(rows, column) or {}
        cheap = {name: result["accuracy"] for name, result in row.get("baselines", {}).items()}
        if not cheap:
            found[f"baselines.{criterion}"] = Measured(None, title=criterion)
            continue
        best = max(cheap, key=lambda name: cheap[name])
        own = row["conditions"][BOTH]["accuracy"]
        detail = f"{100 * own:.1f}% against {100 * cheap[best]:.1f}% of the {best} baseline"
        found[f"baselines.{criterion}"] = Measured(own - cheap[best], detail, criterion)
    return found


def _find_row(rows: Iterable[Mapping[str, Any]], column: str) -> Mapping[str, Any] | None:
    return next((row for row in rows if row["column"] == column), None)


def num_by_status(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return dict(Counter(verdict["status"] for verdict in verdicts))
