"""Count the recordings that a model heard only in part, because they are longer than its `max_turn_s`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sdiareward.audio_sdiareward import audio_duration_s
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.schema import SIDES


def count_recordings(pair: Mapping[str, Any], max_turn_s: float) -> dict[str, int]:
    """Return `num_recordings` of both sides of a pair, and `num_cut`, those longer than `max_turn_s` seconds."""
    durations_s = [
        audio_duration_s(item["audio"])
        for side in SIDES
        for message in turns_to_messages(pair[side])
        for item in message["content"]
        if isinstance(item, Mapping) and item.get("audio") is not None
    ]
    return {"num_recordings": len(durations_s), "num_cut": sum(each > max_turn_s for each in durations_s)}


def sum_cut(
    scores: Iterable[Mapping[str, Any]], sessions: Sequence[Mapping[str, Any]]
) -> dict[str, float | int] | None:
    """Add up the recordings that were cut; None if unknown: of a judge, or if an earlier version scored a pair."""
    scores = list(scores)
    limits = {session["max_turn_s"] for session in sessions if "max_turn_s" in session}
    if len(limits) != 1 or not all("num_cut" in score for score in scores):
        return None
    sums = {name: sum(score[name] for score in scores) for name in ("num_recordings", "num_cut")}
    return {"max_turn_s": limits.pop(), **sums, "num_pairs": sum(score["num_cut"] > 0 for score in scores)}


def describe_cut(cut: Mapping[str, Any] | None) -> str:
    """Describe the result of `sum_cut`; empty if nothing was cut, or if the number is unknown."""
    if not cut or not cut["num_cut"]:
        return ""
    return (
        f"{cut['num_cut']} of {cut['num_recordings']} recordings, in {cut['num_pairs']} pairs, are longer than "
        f"{cut['max_turn_s']:g} s: the model heard the first {cut['max_turn_s']:g} s of each (max_turn_s)."
    )
