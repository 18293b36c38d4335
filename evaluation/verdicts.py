"""Put a comparison of systems into sentences: the verdicts, and what limits them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.common.files import read_json_object
from sdiareward.common.package import NANO

from .summary import ALL_LEFT_OUT, CRITERION_COLUMNS, describe_overlap, format_percent, phrase_interval


# What each criterion asks of a dialogue (section 3.3 of the paper), and when to compare under it.
CRITERIA = {
    "modality": (
        "sounds more natural",
        "how a dialogue sounds: prosody, pauses, emotion, voices that stay coherent. For systems that say the same "
        "words, such as two synthesizers.",
    ),
    "colloquialness": (
        "talks more like spontaneous speech",
        "how a dialogue is worded: spontaneous speech against writing read aloud. For systems of one voice that "
        "choose their words.",
    ),
    "joint": (
        "sounds more like a real conversation",
        "how a dialogue sounds and how it is worded. For systems that differ in voice and in words.",
    ),
}
_OTHER = ("has the higher reward", "a criterion of this model or of the prompt file.")
MAX_P_VALUE = 0.05
RULE = (
    "A difference is clear only if the 95% interval of the win rate excludes 50%, the p value of the sign test is "
    f"below {MAX_P_VALUE:g}, and it does not go with length, level, or the number of turns or transcripts."
)
# To which `match_level` brings recordings: low enough that the peaks of speech stay below full scale.
MATCHED_DBFS = -26.0
# Fewer say little, whatever the test says.
_FEW_GROUPS = 10
_NANO = (
    "nano is a demonstration, trained on acted English of one game and one announcer in a telephone channel: its "
    "verdict shows how a comparison works. For a verdict to rely on, name a larger checkpoint with --model."
)


class Covariate(NamedTuple):
    """What a margin might follow; a mean difference below `min_difference`, or a share of the mean, is none."""

    measure: str  # Of `measure_dialogue`.
    title: str
    whose: str  # More of it, of a system.
    unit: str
    min_difference: float = 0.0
    min_share: float = 0.0


COVARIATES = {
    "length_s": Covariate("heard_answer_s", "heard length", "longer answers", " s", min_share=0.1),
    "level_db": Covariate("level_dbfs", "level", "louder answers", " dB", min_difference=1.0),
    "turns": Covariate("num_messages", "number of turns", "more turns", ""),
    "texts": Covariate("num_texts", "number of transcripts", "more transcripts", ""),
}


class Limit(NamedTuple):
    """What a reader must consider before believing a verdict."""

    text: str
    short: str = ""  # In the sentence of the verdict on two systems, if both are among `systems`, or these are none.
    systems: tuple[str, ...] = ()


def describe_criterion(criterion: str) -> str:
    return CRITERIA.get(criterion, _OTHER)[1]


def is_certain(interval: Sequence[float] | None, p_value: float) -> bool:
    """Return whether a win rate is hardly chance; what it is about is another question."""
    low, high = interval or (0.0, 1.0)
    return not low <= 0.5 <= high and p_value < MAX_P_VALUE


def phrase_verdict(pair: Any, limits: Sequence[str] = ()) -> str:
    """Return the verdict on a `PairOfSystems`, with what the margin may be about instead, and its limits."""
    end = f"; limits: {', '.join(limits)}." if limits else "."
    no_difference = f"No difference can be told between {pair.first} and {pair.second}"
    if pair.num_ties == pair.num_dialogues:
        return f"{no_difference}: their rewards are equal in all {pair.num_ties} dialogues{end}"
    better, worse = order_systems(pair)
    num_wins, rate, bounds = pair.num_first, pair.win_rate, pair.interval
    if better == pair.second:
        num_wins, rate, bounds = pair.num_second, 1 - rate, bounds and [1 - bound for bound in reversed(bounds)]
    what = "dialogues" if pair.num_groups == pair.num_dialogues else "groups"
    share = f"{100 * rate:.1f}%, {phrase_interval(bounds, pair.num_groups, what)}, sign test {_phrase_p(pair.p_value)}"
    ties, share = (f", {pair.num_ties} tied", f"win rate {share}") if pair.num_ties else ("", share)
    claim = CRITERIA.get(pair.criterion, _OTHER)[0]
    where = f"in {num_wins} of {pair.num_dialogues} dialogues{ties} ({share})"
    if not is_certain(pair.interval, pair.p_value):
        return f"{no_difference}: {better} {claim} {where}{end}"
    if reasons := "; ".join(list_reasons(pair)):
        return f"{better} is preferred to {worse} {where}, but it is not clear that it {claim}: {reasons}{end}"
    return f"{better} {claim} than {worse} {where}{end}"


def order_systems(pair: Any) -> tuple[str, str]:
    """Return the system that wins more often, then the other."""
    return (pair.second, pair.first) if pair.win_rate < 0.5 else (pair.first, pair.second)


def list_reasons(pair: Any) -> list[str]:
    """Return what a difference of rewards may be about instead of the speech."""
    reasons = []
    for name, found in pair.follows.items():
        if found["is_suspect"]:
            reasons.append(f"it follows the {COVARIATES[name].title} (correlation {found['correlation']:+.2f})")
        if found["is_systematic"]:
            more, num = (pair.first, "num_first") if found["mean_difference"] > 0 else (pair.second, "num_second")
            reasons.append(f"{more} has {COVARIATES[name].whose} in {found[num]}")
    return reasons


def _phrase_p(value: float) -> str:
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


def list_limits(model: str, scored: Any, pairs: Sequence[Any], max_turn_s: float, match_level: bool) -> list[Limit]:
    """List what the model did not hear, what rewards may follow, and how often the model is right."""
    found = [Limit(_NANO, "nano is a demonstration")] if Path(model).resolve() == NANO.resolve() else []
    num_dialogues, num_groups = len(scored.names), len(set(scored.groups))
    of_groups = f" of {num_groups} groups" if num_groups < num_dialogues else ""
    if num_groups < _FEW_GROUPS:
        few = f"{num_dialogues} dialogues{of_groups}"
        found.append(Limit(f"Only {few} were compared; compare more.", f"only {few}"))
    elif of_groups:
        found.append(Limit(f"The {num_dialogues} dialogues are{of_groups}; intervals and sign test count groups."))
    if (num_pairs := len({(pair.first, pair.second) for pair in pairs})) > 1:
        many = f"Each of {num_pairs} pairs of systems has its own test; p values are not corrected for their number."
        found.append(Limit(many))
    if match_level:
        level = f"All recordings were brought to {MATCHED_DBFS:g} dBFS, the answers of a dialogue together."
        found.append(Limit(level))
    for column, system in enumerate(scored.systems):
        found += _describe_recordings(system, scored.names, [row[column] for row in scored.measures], max_turn_s)
    hashes = zip(scored.names, scored.measures, strict=True)
    if differing := [name for name, row in hashes if len({each["user_hash"] for each in row}) > 1]:
        text = (
            f"The user's turns are not the same files and words for all systems in {len(differing)} of "
            f"{num_dialogues} dialogues, {differing[0]} for one; the reward hears them too."
        )
        found.append(Limit(text, f"other user's turns in {len(differing)}"))
    for pair in pairs:
        if pair.criterion == pairs[0].criterion:
            found += map(Limit, _describe_differences(pair))
    return [*found, *map(Limit, [*_describe_correlations(pairs), *describe_accuracy(model, list(scored.rewards))])]


def _describe_recordings(
    system: str, names: Sequence[str], measures: Sequence[Mapping[str, Any]], max_turn_s: float
) -> Iterator[Limit]:
    """Yield what of a system's recordings is not heard: cut turns, silence, and what their rate lacks."""
    sums = {key: sum(each[key] for each in measures) for key in ("num_cut", "num_turns", "cut_s", "audio_s")}
    if sums["num_cut"]:
        cut = f"{sums['num_cut']} of {sums['num_turns']} turns"
        text = (
            f"{system}: {cut} are cut. This model hears their first {max_turn_s:g} s; {sums['cut_s']:.0f} of "
            f"{sums['audio_s']:.0f} s are not heard."
        )
        yield Limit(text, f"{cut} of {system} cut", (system,))
    if silent := [name for name, each in zip(names, measures, strict=True) if each["num_silent"]]:
        text = (
            f"{system}: nothing is heard in an answer of {len(silent)} of {len(names)} dialogues, {silent[0]} for "
            "one; a reward says little about silence, so record them anew or leave them out."
        )
        yield Limit(text, f"silent answers of {system} in {len(silent)}", (system,))
    low, high = ([each[key] for each in measures if each[key]] for key in ("lowest_rate", "highest_rate"))
    if low and (min(low) < SAMPLING_RATE or min(low) != max(high)):
        rates = f"{min(low)} Hz" if min(low) == max(high) else f"{min(low)} to {max(high)} Hz"
        num_low = sum(rate < SAMPLING_RATE for rate in low)
        text = (
            f"{system}: its recordings are at {rates}; in {num_low} of {len(names)} dialogues one is below the "
            f"{SAMPLING_RATE} Hz that the model hears, and lacks the high frequencies."
        )
        yield Limit(text, f"low or mixed sampling rates of {system}", (system,))


def _describe_differences(pair: Any) -> Iterator[str]:
    """Yield large mean differences, which no correlation shows where they are constant."""
    for name, covariate in COVARIATES.items():
        found = pair.follows[name]
        if not found["is_large"]:
            continue
        is_first = found["mean_difference"] > 0
        more, less = (pair.first, pair.second) if is_first else (pair.second, pair.first)
        remedy = "; compare again with --match_level" if name == "level_db" else ""
        size, num_more = f"{abs(found['mean_difference']):.1f}", found["num_first" if is_first else "num_second"]
        yield (
            f"{more} has {covariate.whose} than {less}, by {size}{covariate.unit} on average and in {num_more} of "
            f"{pair.num_dialogues} dialogues{remedy}."
        )


def _describe_correlations(pairs: Sequence[Any]) -> list[str]:
    """Return a sentence per margin that follows a difference; of many pairs, one for all that do not."""
    has_criteria = len({pair.criterion for pair in pairs}) > 1
    suspect, others, sizes = [], [], []
    for pair in pairs:
        better, worse = order_systems(pair)
        subject = f"The margin of {better} over {worse}" + (f" under {pair.criterion}" if has_criteria else "")
        for name, covariate in COVARIATES.items():
            found, what = pair.follows[name], covariate.title
            if found["correlation"] is None:
                continue
            measured = f"(correlation {found['correlation']:+.2f}, {_phrase_p(found['p_value'])})"
            if found["is_suspect"]:
                suspect.append(
                    f"{subject} follows the difference in {what} {measured}: part of it may be about {what}."
                )
            else:
                others.append(f"{subject} does not follow the difference in {what} {measured}.")
                sizes.append(abs(found["correlation"]))
    if len(pairs) > 1 and others:
        others = [
            f"Of {len(suspect) + len(others)} correlations of margins with differences in length, level and number of "
            f"turns, {len(others)} are not clear, the largest {max(sizes):.2f} in size; compare.json has all."
        ]
    return [*suspect, *others]


def describe_accuracy(model: str, criteria: Sequence[str]) -> list[str]:
    """Report how often the model is right on pairs with a known answer, from the `results.json` in its folder."""
    path = Path(find_checkpoint(model)) / "results.json"
    if not path.is_file():
        return ["No evaluation lies beside this checkpoint: how often it is right is not known here."]
    results = read_json_object(path, "evaluate the checkpoint again")
    own = results.get("accuracies", {}).get("model", {})
    unseen = {
        row["criterion"]: row["model"]["accuracy"]
        for row in results.get("by_synthesizer") or ()
        if row["synthesizer"] == ALL_LEFT_OUT
    }
    parts = []
    for criterion, column in CRITERION_COLUMNS.items():
        if own.get(column) is None or not {criterion, "joint"} & {*criteria}:
            continue
        bounds = phrase_interval(own["interval"][column], own["num_groups"][column])
        text = f"{format_percent(own[column])}% ({bounds}) of {own['num_pairs'][column]} {criterion} pairs"
        if unseen.get(criterion) is not None:
            text += f", {format_percent(unseen[criterion])}% of those by synthesizers held out of training"
        parts.append(text)
    if not parts:
        return [f"The evaluation beside this checkpoint has no pairs of {', '.join(criteria)}."]
    unmeasured = " It was not measured under joint." if "joint" in criteria else ""
    text = f"On its own test pairs this model is right on {'; '.join(parts)}.{unmeasured} {describe_overlap(results)}"
    return [text.rstrip()]
