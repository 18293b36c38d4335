"""Say in words what each figure of an audit shows: captions for everyone, alternatives for who does not see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdiareward.perturbations.registry import PERTURBATIONS

from .checks import describe_worst


Audit = Mapping[str, Any]


def describe_figures(audit: Audit) -> dict[str, dict[str, str]]:
    """Return `caption` and `alt` of every figure by its name; the alternatives carry the message and its numbers.

    Args:
        audit (`Mapping`): What `audit.json` holds.
    """
    found: dict[str, dict[str, str]] = {}
    if audit["nuisances"]:
        rows = [row for row in audit["nuisances"]["by_nuisance"] if row["flip_rate"] is not None]
        found["nuisances"] = {
            "caption": "Pairs that flip under each change: mean over severities and sides, and the worst of them.",
            "alt": "Dot plot of flipped pairs. " + " ".join(_flips(row) for row in rows),
        }
        found |= {f"nuisance_{row['nuisance']}": _perturbation(row) for row in rows}
    if audit["attacks"]:
        tried = [row for row in audit["attacks"] if row.get("paid") is not None]
        found["attacks"] = {
            "caption": "How often each attack pays, with 95% intervals; hollow: sides that were ahead without it.",
            "alt": "Dot plot. " + " ".join(f"{row['title']}: pays in {_percent(row['paid'])}." for row in tried),
        }
    if audit["ties"] and audit["ties"].get("rows"):
        at_95 = audit["ties"]["rows"][0]["at_95"]
        found["abstention"] = {
            "caption": "What abstaining below a margin costs: pairs still decided, accuracy on them, twins undecided.",
            "alt": "Lines over the threshold. Where 95% of the twins are left undecided, at "
            f"{at_95['threshold']:.3g}, {_percent(at_95['coverage'])} of the pairs are still decided.",
        }
    for number, dialogue in enumerate(audit["occlusion"]["dialogues"] if audit["occlusion"] else ()):
        found[f"occlusion_{number}"] = _occlusion(dialogue)
    return found


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _flips(row: Mapping[str, Any]) -> str:
    return f"{row['nuisance'].replace('_', ' ')}: {_percent(row['flip_rate'])} on average."


def _perturbation(row: Mapping[str, Any]) -> dict[str, str]:
    title = PERTURBATIONS[row["nuisance"]].title.format("…")
    return {
        "caption": f"{title}: accuracy, and mean shift of the reward over the natural margin, by severity.",
        "alt": f"Lines by severity. {_percent(row['flip_rate'])} of the pairs flip on average, at worst "
        f"{_percent(row['worst']['flip_rate'])}: {describe_worst(row['worst'])}.",
    }


def _occlusion(dialogue: Mapping[str, Any]) -> dict[str, str]:
    sizes = [abs(turn["audio"]["contribution"]) for turn in dialogue["turns"]]
    largest = sizes.index(max(sizes)) + 1
    what = f"{dialogue['side'].capitalize()} side of pair {dialogue['pair_id']}"
    return {
        "caption": f"{what}: bars are what a stretch of sound adds to the reward, triangles what a turn's words add.",
        "alt": f"{what}, reward {dialogue['reward']:+.2f}. The sound of turn {largest} of {len(sizes)} weighs most.",
    }
