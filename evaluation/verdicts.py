"""Statistics of a comparison of systems, and sentences about them: the verdicts, and what limits them.

Both are functions of one table with a row per dialogue, system and criterion: labels, `reward`, and the result of
`comparison.measure_dialogue`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import combinations, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.common.files import read_json_object
from sdiareward.common.package import NANO
from sdiareward.esdr_accuracy.pairwise import has_many, percentile_interval, student_quantile
from sdiareward.pairs.loading import name_data

from .statistics import Clusters, sign_flip_test
from .summary import ALL_LEFT_OUT, CRITERION_COLUMNS, describe_overlap, format_percent, phrase_interval


if TYPE_CHECKING:
    import pandas as pd


class Limit(NamedTuple):
    """What a reader must consider before believing a verdict."""

    text: str
    short: str = ""  # In the sentence of the verdict on `system` and another one; on any two if it is empty.
    system: str = ""


# What each criterion asks of a dialogue (section 3.3 of the paper), and when to compare under it.
CRITERIA = {
    "modality": (
        "sounds more natural",
        "how a dialogue sounds: prosody, pauses, emotion, voices. For systems that say the same words.",
    ),
    "colloquialness": (
        "talks more like spontaneous speech",
        "how a dialogue is worded: spontaneous speech against writing read aloud. For systems of one voice.",
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
    f"below {MAX_P_VALUE:g}, and neither length, level, nor the number of turns or transcripts may explain it."
)
# To which `match_level` brings recordings: low enough that the peaks of speech stay below full scale.
MATCHED_DBFS = -26.0
_MIN_CORRELATION = 0.3
# Fewer say little, whatever the test says: groups for a win rate, dialogues for a correlation.
_FEW_GROUPS, _MIN_DIALOGUES = 10, 5
# Wins of each system over each other one that are added to the counted ones: without them the strength of a system
# that wins every time is infinite.
PRIOR_WINS = 0.5
_NANO = Limit(
    "nano is a demonstration, trained on acted English of one game and one announcer in a telephone channel. For a "
    "reliable verdict, name a larger checkpoint with --model.",
    "nano is a demonstration",
)
Record = dict[str, Any]
Floats = NDArray[np.float64]


class Covariate(NamedTuple):
    """What a margin might follow; mean differences below `min_difference`, or this share of the mean, are ignored."""

    measure: str  # Column of the table.
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


def spread(table: pd.DataFrame, criterion: str, column: str = "reward") -> pd.DataFrame:
    """Return a column of the table with a row per dialogue and a column per system."""
    return table[table["criterion"] == criterion].set_index(["dialogue", "system"])[column].unstack(sort=False)


def list_groups(table: pd.DataFrame) -> list[str]:
    return table.drop_duplicates("dialogue")["group_id"].tolist()


def compare_systems(table: pd.DataFrame, **draws: Any) -> list[Record]:
    """Compare every two systems under each criterion; the first of a pair is the one that wins more often.

    `follows` holds the result of `correlate` by the names of `COVARIATES`.
    """
    pairs, groups = [], list_groups(table)
    for criterion in table["criterion"].unique():
        rewards = spread(table, criterion)
        measures = {name: spread(table, criterion, covariate.measure) for name, covariate in COVARIATES.items()}
        for one, other in combinations(rewards.columns, 2):
            if np.sign(rewards[one] - rewards[other]).sum() < 0:
                one, other = other, one
            margins = rewards[one] - rewards[other]
            follows = {name: correlate(margins, of[one], of[other], COVARIATES[name]) for name, of in measures.items()}
            pair: Record = {"criterion": criterion, "first": one, "second": other, "follows": follows}
            pair |= count_wins(margins, groups, **draws)
            pairs.append({**pair, "is_clear": pair["is_clear"] and not list_reasons(pair)})
    return pairs


def count_wins(margins: ArrayLike, groups: Sequence[Hashable], **draws: Any) -> Record:
    """Count how often the first of two systems wins, with intervals and a sign test over groups.

    One group has no interval, and neither have margins that are all equal.
    """
    array = np.asarray(margins, dtype=np.float64)
    signs = np.sign(array).astype(np.int64)
    clusters = Clusters(groups, **draws)
    wins, means = clusters.measure((1 + signs) / 2, is_share=True), clusters.measure(array)
    p_value = sign_flip_test(clusters.add_up(signs))
    return {
        "num_dialogues": len(signs),
        "num_groups": wins["num_groups"],
        "num_first": int((signs > 0).sum()),
        "num_second": int((signs < 0).sum()),
        "num_ties": int((signs == 0).sum()),
        "win_rate": wins["mean"],
        "interval": wins["interval"],
        "p_value": p_value,
        "is_clear": is_certain(wins["interval"], p_value),
        "mean_margin": means["mean"],
        "mean_margin_interval": means["interval"],
    }


def is_certain(interval: Sequence[float] | None, p_value: float) -> bool:
    """Return whether a win rate is hardly chance; what it is about is another question."""
    low, high = interval or (0.0, 1.0)
    return not low <= 0.5 <= high and p_value < MAX_P_VALUE


def correlate(margins: ArrayLike, first: ArrayLike, second: ArrayLike, covariate: Covariate) -> Record:
    """Measure whether margins may be about a difference between two systems.

    It `is_suspect` if margins follow it: a rank correlation of 0.3 in size and p below 0.05. It `is_systematic` if
    one system has more of it in so many dialogues that the sign test has p below 0.05, and not only a trifle more.
    """
    from scipy.stats import spearmanr

    margin, one, other = (np.asarray(values, dtype=np.float64) for values in (margins, first, second))
    difference = one - other
    mean, num_first, num_second = float(difference.mean()), int((difference > 0).sum()), int((difference < 0).sum())
    correlation = p_value = None
    if len(margin) >= _MIN_DIALOGUES and np.ptp(margin) > 0 and np.ptp(difference) > 0:
        correlation, p_value = map(float, spearmanr(margin, difference))
    smallest = max(covariate.min_difference, covariate.min_share * min(one.mean(), other.mean()))
    is_large = bool(mean and abs(mean) >= smallest)
    return {
        "mean_difference": mean,
        "correlation": correlation,
        "p_value": p_value,
        "is_suspect": abs(correlation or 0.0) >= _MIN_CORRELATION and (p_value or 0.0) < MAX_P_VALUE,
        "num_first": num_first,
        "num_second": num_second,
        "is_large": is_large,
        "is_systematic": is_large and sign_flip_test(np.sign(difference).astype(np.int64)) < MAX_P_VALUE,
    }


def rank_systems(rewards: pd.DataFrame, groups: Sequence[Hashable], **draws: Any) -> list[Record]:
    """Rank the systems in the columns, the strongest first.

    `strength` is the log-odds of a win against a system of mean strength.
    """
    clusters = Clusters(groups, **draws)
    num_groups, num_systems = len(clusters.strata), rewards.shape[1]
    # How often the system of a row beats the system of a column; a tie counts half for each.
    values = rewards.to_numpy()
    of_dialogue = (np.sign(values[:, :, None] - values[:, None, :]) + 1) / 2 * (1 - np.eye(num_systems))
    wins = np.zeros((num_groups, num_systems, num_systems))
    np.add.at(wins, clusters.members, of_dialogue)
    total = wins.sum(axis=0)
    strengths, intervals = fit_strengths(total), np.zeros((num_systems, 2))
    if has_many(clusters.strata):
        fits = np.array([fit_strengths(drawn) for drawn in np.tensordot(clusters.draws, wins, axes=1)])
        intervals = np.array([percentile_interval(each) for each in fits.T])
    elif num_groups > 1:
        # Student's t from fits without each group.
        changes = np.array([fit_strengths(total - left_out) for left_out in wins]) - strengths
        half = student_quantile(num_groups - 1) * np.sqrt((1 - 1 / num_groups) * (changes**2).sum(axis=0))
        intervals = np.stack([strengths - half, strengths + half], axis=1)
    rates = total.sum(axis=1) / (total + total.T).sum(axis=1)
    return [
        {
            "system": str(rewards.columns[system]),
            "strength": float(strengths[system]),
            # A narrower one is a rounding error of equal fits.
            "interval": intervals[system].tolist() if np.ptp(intervals[system]) > 1e-9 else None,
            "num_groups": num_groups,
            "win_rate": float(rates[system]),
        }
        for system in np.argsort(-strengths, kind="stable")
    ]


def fit_strengths(wins: Floats) -> Floats:
    """Return the log-odds, mean 0, under which the wins of row over column plus `PRIOR_WINS` are most likely."""
    import choix

    prior = PRIOR_WINS * (1 - np.eye(len(wins)))
    strengths = np.asarray(choix.ilsr_pairwise_dense(wins + prior, max_iter=10_000), dtype=np.float64)
    return strengths - strengths.mean()


def describe_criterion(criterion: str) -> str:
    return CRITERIA.get(criterion, _OTHER)[1]


def phrase_verdict(pair: Record, limits: Sequence[str] = ()) -> str:
    """Return the verdict on two systems, with what else may explain it, and its limits."""
    end = f"; limits: {', '.join(limits)}." if limits else "."
    first, second = pair["first"], pair["second"]
    no_difference = f"No clear difference between {first} and {second}"
    if pair["num_ties"] == pair["num_dialogues"]:
        return f"{no_difference}: their rewards are equal in all {pair['num_ties']} dialogues{end}"
    over = phrase_interval(pair["interval"], pair["num_groups"], count_by(pair))
    test = "p < 0.001" if pair["p_value"] < 0.001 else f"p = {pair['p_value']:.3f}"
    share = f"{100 * pair['win_rate']:.1f}%, {over}, sign test {test}"
    ties, share = (f", {pair['num_ties']} tied", f"win rate {share}") if pair["num_ties"] else ("", share)
    claim = CRITERIA.get(pair["criterion"], _OTHER)[0]
    where = f"in {pair['num_first']} of {pair['num_dialogues']} dialogues{ties} ({share})"
    if not is_certain(pair["interval"], pair["p_value"]):
        return f"{no_difference}: {first} {claim} {where}{end}"
    if reasons := list_reasons(pair):
        causes = [COVARIATES[name].title for name, of in pair["follows"].items() if is_confounded(of)]
        explained = f"{' and '.join(causes)} may explain it: {'; '.join(reasons)}"
        return f"{first} scores higher than {second} {where}; {explained}{end}"
    return f"{first} {claim} than {second} {where}{end}"


def is_confounded(found: Record) -> bool:
    """Return whether a result of `correlate` may explain a difference."""
    return bool(found["is_suspect"] or found["is_systematic"])


def count_by(found: Mapping[str, Any]) -> str:
    """Return what intervals are over."""
    return "dialogues" if found["num_groups"] == found["num_dialogues"] else "groups"


def list_reasons(pair: Record, which: str = "is_systematic") -> list[str]:
    """Return what may explain a difference of rewards instead of the speech."""
    reasons = []
    for name, found in pair["follows"].items():
        if found["is_suspect"]:
            size = f"(correlation {found['correlation']:+.2f})"
            reasons.append(f"the margin follows the {COVARIATES[name].title} {size}")
        if found[which]:
            more = "first" if found["mean_difference"] > 0 else "second"
            size = f"by {abs(found['mean_difference']):.1f}{COVARIATES[name].unit} on average"
            reasons.append(f"{pair[more]} has {COVARIATES[name].whose} in {found[f'num_{more}']}, {size}")
    return reasons


def join_verdicts(pairs: Sequence[Record], ranking: Sequence[Record]) -> str:
    """Return the verdicts of all pairs of systems, after the ranking if there is one, criterion by criterion."""
    lines = []
    for criterion, members in groupby(pairs, key=lambda pair: pair["criterion"]):
        of_criterion = list(members)
        before = f"{criterion}: " if len(of_criterion) < len(pairs) else ""
        if ranked := [entry["system"] for entry in ranking if entry["criterion"] == criterion]:
            num_clear = f"{sum(pair['is_clear'] for pair in of_criterion)} of {len(of_criterion)}"
            lines.append(f"{before}Ranking, best first: {', '.join(ranked)}; {num_clear} differences are clear.")
        lines += [f"{before}{pair['verdict']}" for pair in of_criterion]
    return "\n".join(lines)


def list_limits(
    model: str, table: pd.DataFrame, pairs: Sequence[Record], max_turn_s: float, match_level: bool
) -> list[Limit]:
    """List what the model did not hear, what rewards may follow, and how often the model is right."""
    criteria = table["criterion"].unique()
    measured = table[table["criterion"] == criteria[0]]
    num_dialogues, num_groups = measured["dialogue"].nunique(), measured["group_id"].nunique()
    found = [_NANO] if Path(model).resolve() == NANO.resolve() else []
    few = f"{num_dialogues} dialogues" + (f" of {num_groups} groups" if num_groups < num_dialogues else "")
    if num_groups < _FEW_GROUPS:
        found.append(Limit(f"Only {few} were compared; compare more.", f"only {few}"))
    elif num_groups < num_dialogues:
        found.append(Limit(f"There are {few}; intervals and sign test count groups."))
    if (num_pairs := len(pairs) // len(criteria)) > 1:
        found.append(Limit(f"Each of {num_pairs} pairs of systems has its own test; p values are not corrected."))
    if match_level:
        found.append(Limit(f"All recordings were brought to {MATCHED_DBFS:g} dBFS."))
    for system, rows in measured.groupby("system", sort=False):
        found += _describe_recordings(str(system), rows, max_turn_s)
    num_hashes = measured.groupby("dialogue", sort=False)["user_hash"].nunique()
    if other := num_hashes.index[num_hashes > 1].tolist():
        where = f"in {len(other)} of {num_dialogues} dialogues, such as {other[0]}"
        text = f"The user's turns differ between systems {where}; the reward hears them too."
        found.append(Limit(text, f"other user's turns in {len(other)}"))
    for pair in pairs:
        if reasons := list_reasons(pair, "is_large"):
            remedy = "; compare with --match_level" if pair["follows"]["level_db"]["is_large"] else ""
            margin = f"Margin of {pair['first']} over {pair['second']}, {pair['criterion']}"
            found.append(Limit(f"{margin}: {'; '.join(reasons)}{remedy}."))
    return [*found, Limit(describe_accuracy(model, criteria))]


def _describe_recordings(system: str, rows: pd.DataFrame, max_turn_s: float) -> Iterator[Limit]:
    """Yield what of a system's recordings is not heard: cut turns, silence, and what their rate lacks."""
    if rows["num_cut"].any():
        cut = f"{rows['num_cut'].sum()} of {rows['num_turns'].sum()} turns"
        lost = f"{rows['cut_s'].sum():.0f} of {rows['audio_s'].sum():.0f} s are not heard."
        text = f"{system}: {cut} are cut. This model hears their first {max_turn_s:g} s; {lost}"
        yield Limit(text, f"{cut} of {system} cut", system)
    if silent := rows.loc[rows["num_silent"] > 0, "dialogue"].tolist():
        where = f"{len(silent)} of {len(rows)} dialogues, such as {silent[0]}"
        text = f"{system}: nothing is heard in an answer of {where}; record them anew."
        yield Limit(text, f"silent answers of {system} in {len(silent)}", system)
    # Dialogues without a recording have no rates.
    rates = {*rows["lowest_rate"].dropna(), *rows["highest_rate"].dropna()}
    num_low = (rows["lowest_rate"] < SAMPLING_RATE).sum()
    if num_low or len(rates) > 1:
        text = f"{system}: recordings are at {min(rates)} to {max(rates)} Hz; in {num_low} of {len(rows)} dialogues"
        text += f" one is below {SAMPLING_RATE} Hz and lacks high frequencies."
        yield Limit(text, f"low or mixed sampling rates of {system}", system)


def describe_accuracy(model: str, criteria: Sequence[str]) -> str:
    """Report how often the model is right on pairs with a known answer, from the `results.json` in its folder."""
    path = Path(find_checkpoint(model)) / "results.json"
    if not path.is_file():
        return "This checkpoint has no results.json: how often it is right is unknown."
    results = read_json_object(path, "evaluate the checkpoint again")
    own = results.get("accuracies", {}).get("model", {})
    rows = [row for row in results.get("by_synthesizer") or () if row["synthesizer"] == ALL_LEFT_OUT]
    unseen = {row["criterion"]: row["model"]["accuracy"] for row in rows}
    parts = []
    for criterion, column in CRITERION_COLUMNS.items():
        if own.get(column) is not None and {criterion, "joint"} & {*criteria}:
            bounds = phrase_interval(own["interval"][column], own["num_groups"][column])
            text = f"{format_percent(own[column])}% ({bounds}) of {own['num_pairs'][column]} {criterion} pairs"
            held_out = f", {format_percent(unseen.get(criterion))}% of those by synthesizers held out of training"
            parts.append(text + (held_out if unseen.get(criterion) is not None else ""))
    if not parts:
        return f"The results.json of this checkpoint has no pairs of {', '.join(criteria)}."
    unmeasured = " It was not measured under joint." if "joint" in criteria else ""
    data = name_data(results["config"]["dataset"], results["config"]["split"])
    right = f"On {data} this model is right on {'; '.join(parts)}.{unmeasured}"
    return f"{right} {describe_overlap(results)}".rstrip()
