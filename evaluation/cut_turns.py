"""Count the recordings that a model heard only in part, or as silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


_SUMS = ("given_s", "heard_s", "num_recordings", "num_cut")
_NUM_NAMED = 3


def sum_cut(scores: Iterable[Mapping[str, Any]], sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Add up what was heard; None if unknown: of a judge, or if an earlier version scored a pair."""
    scores = list(scores)
    limits = {session["max_turn_s"] for session in sessions if "max_turn_s" in session}
    if len(limits) != 1 or not all("silent_turns" in score for score in scores):
        return None
    sums = {name: sum(score[name] for score in scores) for name in _SUMS}
    silent = [f"{score['pair_id']} {turn}" for score in scores for turn in score["silent_turns"]]
    num_pairs = sum(score["num_cut"] > 0 for score in scores)
    return {"max_turn_s": limits.pop(), **sums, "num_pairs": num_pairs, "silent_turns": silent}


def describe_cut(cut: Mapping[str, Any] | None) -> str:
    """Describe the result of `sum_cut`; empty if all was heard, or if that is unknown."""
    told = []
    if cut and cut["num_cut"]:
        told.append(
            f"{cut['num_cut']} of {cut['num_recordings']} recordings, in {cut['num_pairs']} pairs, are longer than "
            f"{cut['max_turn_s']:g} s: the model heard the first {cut['max_turn_s']:g} s of each (max_turn_s), "
            f"{cut['heard_s']:.0f} of {cut['given_s']:.0f} s in all."
        )
    if cut and (silent := cut["silent_turns"]):
        named = ", ".join(silent[:_NUM_NAMED]) + ", ..." * (len(silent) > _NUM_NAMED)
        told.append(f"Nothing was heard in {len(silent)} turns ({named}).")
    return " ".join(told)
