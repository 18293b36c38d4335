"""List what qualifies a verdict: what the model did not hear, what rewards may follow, how often it is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sdiareward.common.files import read_json_object
from sdiareward.common.package_files import NANO

from ..columns import CRITERION_COLUMNS
from ..summary import ALL_LEFT_OUT, format_interval, format_percent
from .results import PairOfSystems, ScoredDialogues
from .verdicts import phrase_p


# Fewer say little, whatever the test says.
_FEW_GROUPS = 10
_LOUDER_DB, _LONGER_SHARE = 3.0, 0.2
_NANO = (
    "nano is a demonstration, trained on acted English of one game and one announcer in a telephone channel: its "
    "verdict shows how a comparison works. For a verdict to rely on, name a larger checkpoint with --model."
)
# Beyond what the model hears, length changes no reward.
_QUANTITIES = {"length_s": "heard length", "level_db": "level"}


def list_limits(model: str, scored: ScoredDialogues, pairs: Sequence[PairOfSystems], max_turn_s: float) -> list[str]:
    """Return what a reader must consider before believing a verdict, in a sentence or two each."""
    found = [_NANO] if Path(model).resolve() == NANO.resolve() else []
    found += _describe_sample(scored, pairs)
    found += _describe_cuts(scored, max_turn_s)
    found += _describe_silence(scored)
    found += _describe_user_turns(scored)
    found += [
        line for pair in pairs if pair.criterion == pairs[0].criterion for line in _describe_differences(scored, pair)
    ]
    found += _describe_correlations(pairs)
    return [*found, *describe_accuracy(model, list(scored.rewards))]


def _describe_sample(scored: ScoredDialogues, pairs: Sequence[PairOfSystems]) -> Iterator[str]:
    num_groups = len(set(scored.groups))
    if num_groups < _FEW_GROUPS:
        of_groups = f" of {num_groups} groups" if num_groups < len(scored.names) else ""
        yield f"Only {len(scored.names)} dialogues{of_groups} were compared; compare more."
    elif num_groups < len(scored.names):
        yield (
            f"The {len(scored.names)} dialogues are of {num_groups} groups; the interval counts groups, the sign test "
            "dialogues."
        )
    num_pairs = len({(pair.first, pair.second) for pair in pairs})
    if num_pairs > 1:
        yield f"Each of {num_pairs} pairs of systems has its own test; p values are not corrected for their number."


def _describe_cuts(scored: ScoredDialogues, max_turn_s: float) -> Iterator[str]:
    for column, system in enumerate(scored.systems):
        mine = [row[column] for row in scored.measures]
        if num_cut := sum(each.num_cut for each in mine):
            turns, cut_s, audio_s = (
                sum(getattr(each, name) for each in mine) for name in ("num_turns", "cut_s", "audio_s")
            )
            yield (
                f"{system}: {num_cut} of {turns} turns are cut. This model hears their first {max_turn_s:g} s; "
                f"{cut_s:.0f} of {audio_s:.0f} s are not heard."
            )


def _describe_silence(scored: ScoredDialogues) -> Iterator[str]:
    for column, system in enumerate(scored.systems):
        mine = [name for name, row in zip(scored.names, scored.measures, strict=True) if row[column].num_silent]
        if mine:
            yield (
                f"{system}: nothing is heard in an answer of {len(mine)} of {len(scored.names)} dialogues, {mine[0]} "
                "for one; a reward says little about silence, so record them anew or leave them out."
            )


def _describe_user_turns(scored: ScoredDialogues) -> Iterator[str]:
    differing = [
        name
        for name, row in zip(scored.names, scored.measures, strict=True)
        if len({each.user_hash for each in row}) > 1
    ]
    if differing:
        yield (
            f"The user's turns are not the same files and words for all systems in {len(differing)} of "
            f"{len(scored.names)} dialogues, {differing[0]} for one; the reward hears them too."
        )


def _describe_differences(scored: ScoredDialogues, pair: PairOfSystems) -> Iterator[str]:
    """Yield constant differences, which no correlation shows."""
    one, other = scored.systems.index(pair.first), scored.systems.index(pair.second)
    lengths_s, levels_db = scored.get_values("answer_s").mean(axis=0), scored.get_values("level_dbfs").mean(axis=0)
    long, short = (one, other) if lengths_s[one] > lengths_s[other] else (other, one)
    if lengths_s[long] > (1 + _LONGER_SHARE) * lengths_s[short]:
        yield (
            f"The answers of {scored.systems[long]} last {lengths_s[long]:.1f} s on average, those of "
            f"{scored.systems[short]} {lengths_s[short]:.1f} s."
        )
    loud, soft = (one, other) if levels_db[one] > levels_db[other] else (other, one)
    if (difference := float(levels_db[loud] - levels_db[soft])) >= _LOUDER_DB:
        yield (
            f"The answers of {scored.systems[loud]} are {difference:.1f} dB louder on average than those of "
            f"{scored.systems[soft]}; bring both to one level and compare again."
        )


def _describe_correlations(pairs: Sequence[PairOfSystems]) -> list[str]:
    """Return a sentence per margin that follows a difference; many of them are merged into one."""
    has_criteria = len({pair.criterion for pair in pairs}) > 1
    suspect, others, sizes = [], [], []
    for pair in pairs:
        under = f" under {pair.criterion}" if has_criteria else ""
        for name, what in _QUANTITIES.items():
            found = pair.follows[name]
            if found["correlation"] is None:
                continue
            measured = f"correlation {found['correlation']:+.2f}, {phrase_p(found['p_value'])}"
            subject = f"The margin of {pair.first} over {pair.second}{under}"
            if found["is_suspect"]:
                line = f"{subject} follows the difference in {what} ({measured}): part of it may be about {what}."
                suspect.append(line)
            else:
                others.append(f"{subject} does not follow the difference in {what} ({measured}).")
                sizes.append(abs(found["correlation"]))
    if len(pairs) > 1 and others:
        others = [
            f"Of {len(suspect) + len(others)} correlations of margins with differences in length and level, "
            f"{len(others)} are not clear, the largest {max(sizes):.2f} in size; compare.json has all."
        ]
    return [*suspect, *others]


def describe_accuracy(model: str, criteria: Sequence[str]) -> list[str]:
    """Report how often the model is right on pairs with a known answer, from the `results.json` in its folder."""
    path = Path(model) / "results.json"
    if not path.is_file():
        return ["No evaluation lies beside this checkpoint: how often it is right is not known here."]
    results = read_json_object(path, "evaluate the checkpoint again")
    own = results.get("accuracies", {}).get("model", {})
    wanted = {name: column for name, column in CRITERION_COLUMNS.items() if name in criteria or "joint" in criteria}
    parts = []
    for criterion, column in wanted.items():
        if own.get(column) is None:
            continue
        bounds, num_pairs = format_interval(own["interval"][column]), own["num_pairs"][column]
        text = f"{format_percent(own[column])}% ({bounds}) of {num_pairs} {criterion} pairs"
        if (unseen := _find_unseen(results, criterion)) is not None:
            text += f", {format_percent(unseen)}% of those by synthesizers held out of training"
        parts.append(text)
    if not parts:
        return [f"The evaluation beside this checkpoint has no pairs of {', '.join(criteria)}."]
    unmeasured = " It was not measured under joint." if "joint" in criteria else ""
    return [f"On its own test pairs this model is right on {'; '.join(parts)}.{unmeasured}"]


def _find_unseen(results: dict[str, Any], criterion: str) -> float | None:
    return next(
        (
            row["model"]["accuracy"]
            for row in results.get("by_synthesizer") or ()
            if row["criterion"] == criterion and row["synthesizer"] == ALL_LEFT_OUT
        ),
        None,
    )
