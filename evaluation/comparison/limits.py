"""List what qualifies a verdict: what the model did not hear, what rewards may follow, how often it is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.common.files import read_json_object
from sdiareward.common.package_files import NANO

from ..columns import CRITERION_COLUMNS
from ..summary import ALL_LEFT_OUT, describe_overlap, format_percent, phrase_interval
from .measures import COVARIATES, MATCHED_DBFS
from .results import PairOfSystems, ScoredDialogues
from .verdicts import order_systems, phrase_p


# Fewer say little, whatever the test says.
_FEW_GROUPS = 10
_NANO = (
    "nano is a demonstration, trained on acted English of one game and one announcer in a telephone channel: its "
    "verdict shows how a comparison works. For a verdict to rely on, name a larger checkpoint with --model."
)


class Limit(NamedTuple):
    """What a reader must consider before believing a verdict."""

    text: str
    short: str = ""  # In the sentence of the verdict on two systems, if both are among `systems`, or these are none.
    systems: tuple[str, ...] = ()


def list_limits(
    model: str,
    scored: ScoredDialogues,
    pairs: Sequence[PairOfSystems],
    max_turn_s: float,
    match_level: bool = False,
) -> list[Limit]:
    found = [Limit(_NANO, "nano is a demonstration")] if Path(model).resolve() == NANO.resolve() else []
    found += _describe_sample(scored, pairs)
    if match_level:
        found.append(
            Limit(f"All recordings were brought to {MATCHED_DBFS:g} dBFS, the answers of a dialogue together.")
        )
    found += _describe_recordings(scored, max_turn_s)
    found += _describe_user_turns(scored)
    found += [
        line for pair in pairs if pair.criterion == pairs[0].criterion for line in _describe_differences(scored, pair)
    ]
    found += _describe_correlations(pairs)
    return [*found, *map(Limit, describe_accuracy(model, list(scored.rewards)))]


def _describe_sample(scored: ScoredDialogues, pairs: Sequence[PairOfSystems]) -> Iterator[Limit]:
    num_groups = len(set(scored.groups))
    of_groups = f" of {num_groups} groups" if num_groups < len(scored.names) else ""
    if num_groups < _FEW_GROUPS:
        few = f"{len(scored.names)} dialogues{of_groups}"
        yield Limit(f"Only {few} were compared; compare more.", f"only {few}")
    elif of_groups:
        yield Limit(
            f"The {len(scored.names)} dialogues are{of_groups}; intervals and sign test count groups.",
        )
    num_pairs = len({(pair.first, pair.second) for pair in pairs})
    if num_pairs > 1:
        yield Limit(
            f"Each of {num_pairs} pairs of systems has its own test; p values are not corrected for their number."
        )


def _describe_recordings(scored: ScoredDialogues, max_turn_s: float) -> Iterator[Limit]:
    """Yield what of the recordings of each system is not heard: cut turns, silence, and what their rate lacks."""
    for column, system in enumerate(scored.systems):
        mine = [row[column] for row in scored.measures]
        if num_cut := sum(each.num_cut for each in mine):
            turns, cut_s, audio_s = (
                sum(getattr(each, name) for each in mine) for name in ("num_turns", "cut_s", "audio_s")
            )
            yield Limit(
                f"{system}: {num_cut} of {turns} turns are cut. This model hears their first {max_turn_s:g} s; "
                f"{cut_s:.0f} of {audio_s:.0f} s are not heard.",
                f"{num_cut} of {turns} turns of {system} cut",
                (system,),
            )
        if names := [name for name, each in zip(scored.names, mine, strict=True) if each.num_silent]:
            yield Limit(
                f"{system}: nothing is heard in an answer of {len(names)} of {len(scored.names)} dialogues, "
                f"{names[0]} for one; a reward says little about silence, so record them anew or leave them out.",
                f"silent answers of {system} in {len(names)}",
                (system,),
            )
        if note := describe_rates([each.lowest_rate for each in mine], [each.highest_rate for each in mine]):
            yield Limit(f"{system}: {note}", f"low or mixed sampling rates of {system}", (system,))


def describe_rates(lowest: Sequence[int | None], highest: Sequence[int | None]) -> str:
    """Report recordings below the rate that models hear, and mixed rates; empty if all are at one that is enough."""
    low, high = (list(filter(None, rates)) for rates in (lowest, highest))
    if not low or (min(low) >= SAMPLING_RATE and min(low) == max(high)):
        return ""
    rates = f"{min(low)} Hz" if min(low) == max(high) else f"{min(low)} to {max(high)} Hz"
    num_low = sum(rate < SAMPLING_RATE for rate in low)
    return (
        f"its recordings are at {rates}; in {num_low} of {len(lowest)} dialogues one is below the {SAMPLING_RATE} Hz "
        "that the model hears, and lacks the high frequencies."
    )


def _describe_user_turns(scored: ScoredDialogues) -> Iterator[Limit]:
    differing = [
        name
        for name, row in zip(scored.names, scored.measures, strict=True)
        if len({each.user_hash for each in row}) > 1
    ]
    if differing:
        yield Limit(
            f"The user's turns are not the same files and words for all systems in {len(differing)} of "
            f"{len(scored.names)} dialogues, {differing[0]} for one; the reward hears them too.",
            f"other user's turns in {len(differing)}",
        )


def _describe_differences(scored: ScoredDialogues, pair: PairOfSystems) -> Iterator[Limit]:
    """Yield large mean differences, which no correlation shows where they are constant."""
    for name, covariate in COVARIATES.items():
        found = pair.follows[name]
        if not found["is_large"]:
            continue
        is_first = found["mean_difference"] > 0
        more, less = (pair.first, pair.second) if is_first else (pair.second, pair.first)
        remedy = "; compare again with --match_level" if name == "level_db" else ""
        size, num_more = f"{abs(found['mean_difference']):.1f}", found["num_first" if is_first else "num_second"]
        yield Limit(
            f"{more} has {covariate.whose} than {less}, by {size}{covariate.unit} on average and in {num_more} of "
            f"{pair.num_dialogues} dialogues{remedy}."
        )


def _describe_correlations(pairs: Sequence[PairOfSystems]) -> list[Limit]:
    """Return a sentence per margin that follows a difference; many of them are merged into one."""
    has_criteria = len({pair.criterion for pair in pairs}) > 1
    suspect, others, sizes = [], [], []
    for pair in pairs:
        under = f" under {pair.criterion}" if has_criteria else ""
        better, worse = order_systems(pair.first, pair.second, {"win_rate": pair.win_rate})
        for name, covariate in COVARIATES.items():
            found = pair.follows[name]
            if found["correlation"] is None:
                continue
            measured = f"correlation {found['correlation']:+.2f}, {phrase_p(found['p_value'])}"
            subject, what = f"The margin of {better} over {worse}{under}", covariate.title
            if found["is_suspect"]:
                line = f"{subject} follows the difference in {what} ({measured}): part of it may be about {what}."
                suspect.append(line)
            else:
                others.append(f"{subject} does not follow the difference in {what} ({measured}).")
                sizes.append(abs(found["correlation"]))
    if len(pairs) > 1 and others:
        others = [
            f"Of {len(suspect) + len(others)} correlations of margins with differences in length, level and number of "
            f"turns, {len(others)} are not clear, the largest {max(sizes):.2f} in size; compare.json has all."
        ]
    return list(map(Limit, [*suspect, *others]))


def describe_accuracy(model: str, criteria: Sequence[str]) -> list[str]:
    """Report how often the model is right on pairs with a known answer, from the `results.json` in its folder."""
    path = Path(find_checkpoint(model)) / "results.json"
    if not path.is_file():
        return ["No evaluation lies beside this checkpoint: how often it is right is not known here."]
    results = read_json_object(path, "evaluate the checkpoint again")
    own = results.get("accuracies", {}).get("model", {})
    wanted = {name: column for name, column in CRITERION_COLUMNS.items() if name in criteria or "joint" in criteria}
    parts = []
    for criterion, column in wanted.items():
        if own.get(column) is None:
            continue
        bounds = phrase_interval(own["interval"][column], own["num_groups"][column])
        text = f"{format_percent(own[column])}% ({bounds}) of {own['num_pairs'][column]} {criterion} pairs"
        if (unseen := _find_unseen(results, criterion)) is not None:
            text += f", {format_percent(unseen)}% of those by synthesizers held out of training"
        parts.append(text)
    if not parts:
        return [f"The evaluation beside this checkpoint has no pairs of {', '.join(criteria)}."]
    unmeasured = " It was not measured under joint." if "joint" in criteria else ""
    text = f"On its own test pairs this model is right on {'; '.join(parts)}.{unmeasured} {describe_overlap(results)}"
    return [text.rstrip()]


def _find_unseen(results: dict[str, Any], criterion: str) -> float | None:
    return next(
        (
            row["model"]["accuracy"]
            for row in results.get("by_synthesizer") or ()
            if row["criterion"] == criterion and row["synthesizer"] == ALL_LEFT_OUT
        ),
        None,
    )
