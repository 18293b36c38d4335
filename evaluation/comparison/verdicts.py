"""Put the results of a comparison into sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..summary import phrase_interval
from .measures import COVARIATES
from .wins import is_certain


# What each criterion asks of a dialogue (section 3.3 of the paper), and when to compare under it.
CRITERIA = {
    "modality": {
        "claim": "sounds more natural",
        "use": "how a dialogue sounds: prosody, pauses, emotion, voices that stay coherent. For systems that say the "
        "same words, such as two synthesizers.",
    },
    "colloquialness": {
        "claim": "talks more like spontaneous speech",
        "use": "how a dialogue is worded: spontaneous speech against writing read aloud. For systems of one voice "
        "that choose their words.",
    },
    "joint": {
        "claim": "sounds more like a real conversation",
        "use": "how a dialogue sounds and how it is worded. For systems that differ in voice and in words.",
    },
}
_OTHER = {"claim": "has the higher reward", "use": "a criterion of this model or of the prompt file."}


def describe_criterion(criterion: str) -> str:
    return CRITERIA.get(criterion, _OTHER)["use"]


def phrase_verdict(
    first: str,
    second: str,
    criterion: str,
    found: Mapping[str, Any],
    follows: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    limits: Sequence[str] = (),
) -> str:
    """Return the result of `wins.count_wins` as a sentence, with what it may be about instead, and its limits."""
    end = f"; limits: {', '.join(limits)}." if limits else "."
    if found["num_ties"] == found["num_dialogues"]:
        return (
            f"No difference can be told between {first} and {second}: their rewards are equal in all "
            f"{found['num_ties']} dialogues{end}"
        )
    better, worse = order_systems(first, second, found)
    is_second = better == second
    num_wins = found["num_second" if is_second else "num_first"]
    rate, bounds = found["win_rate"], found["interval"]
    if is_second:
        rate, bounds = 1 - rate, bounds and [1 - bound for bound in reversed(bounds)]
    what = "dialogues" if found["num_groups"] == found["num_dialogues"] else "groups"
    interval = phrase_interval(bounds, found["num_groups"], what)
    share = f"{100 * rate:.1f}%, {interval}, sign test {phrase_p(found['p_value'])}"
    ties = f", {found['num_ties']} tied" if found["num_ties"] else ""
    share = f"win rate {share}" if ties else share
    claim = CRITERIA.get(criterion, _OTHER)["claim"]
    where = f"in {num_wins} of {found['num_dialogues']} dialogues{ties} ({share})"
    if not is_certain(found):
        return f"No difference can be told between {first} and {second}: {better} {claim} {where}{end}"
    if reasons := list_reasons(first, second, follows):
        return (
            f"{better} is preferred to {worse} {where}, but it is not clear that it {claim}: {'; '.join(reasons)}{end}"
        )
    return f"{better} {claim} than {worse} {where}{end}"


def order_systems(first: str, second: str, found: Mapping[str, Any]) -> tuple[str, str]:
    """Return the system that wins more often, then the other."""
    return (second, first) if found["win_rate"] < 0.5 else (first, second)


def list_reasons(first: str, second: str, follows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what a difference of rewards may be about instead of the speech."""
    reasons = []
    for name, measured in follows.items():
        if measured["is_suspect"]:
            reasons.append(f"it follows the {COVARIATES[name].title} (correlation {measured['correlation']:+.2f})")
        if measured["is_systematic"]:
            more, num = (first, "num_first") if measured["mean_difference"] > 0 else (second, "num_second")
            reasons.append(f"{more} has {COVARIATES[name].whose} in {measured[num]}")
    return reasons


def phrase_p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def join_verdicts(pairs: Sequence[Any], ranking: Sequence[Any]) -> str:
    """Return the verdicts of all pairs of systems, after the ranking if there is one, criterion by criterion."""
    criteria = list(dict.fromkeys(pair.criterion for pair in pairs))
    lines = []
    for criterion in criteria:
        before = f"{criterion}: " if len(criteria) > 1 else ""
        mine = [pair for pair in pairs if pair.criterion == criterion]
        if ranked := [entry.system for entry in ranking if entry.criterion == criterion]:
            num_clear = sum(pair.is_clear for pair in mine)
            order = f"Ranking, best first: {', '.join(ranked)}"
            lines.append(f"{before}{order}; {num_clear} of {len(mine)} differences are clear.")
        lines += [f"{before}{pair.verdict}" for pair in mine]
    return "\n".join(lines)
