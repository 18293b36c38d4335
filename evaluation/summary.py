"""Turn scores into the numbers of `results.json`, and say what to know before reading them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.checkpoint_io.training_record import describe_stages, hash_pairs, read_pairs_record, read_stages
from sdiareward.common.files import read_json_object
from sdiareward.common.package import NANO
from sdiareward.common.tables import escape_code, escape_markdown, format_interval, format_percent
from sdiareward.esdr_accuracy.pairwise import COLUMNS, MACRO_MEMBERS, NO_SUBSET, SUBSETS, pairwise_accuracy
from sdiareward.pairs.labels import TRAINED_ON, split_synthesizers
from sdiareward.pairs.schema import SIDES


if TYPE_CHECKING:
    import datasets

Labels = Sequence[Mapping[str, Any]]
Scores = Mapping[str, Mapping[str, Any]]
Record = dict[str, Any]
Names = set[str] | None
# Returns the accuracy of every scorer on pairs that are all in one column.
Measure = Callable[[Labels, str], Record]

TITLES = {
    **{name: name.replace("_", " ") for name in COLUMNS},
    "semi_wild": "semi-wild",
    "colloquialness": "colloq.",
    NO_SUBSET: "all",
}
# The column that holds all pairs of one criterion.
CRITERION_COLUMNS = {"modality": "modality_micro", "colloquialness": "colloquialness"}
# Every value of the label `subset`: pairs of other data have none of the paper's.
SUBSET_LABELS = (*SUBSETS, NO_SUBSET)
ALL_SEEN, ALL_LEFT_OUT = "all seen in training", "all left out of training"
BASELINES = ("acoustic", "text")
# What evaluated pairs share with training pairs, for "N of these M pairs ...".
OVERLAPS = {
    "content": "were training pairs",
    "pair_id": "had the id of a training pair, but other words or recordings",
    "side": "shared one side with a training pair",
    "prompt": "shared the prompt of a training pair",
    "recording": "shared a recording with a training pair",
    "group_id": "came from a recording or dialogue of the training pairs",
}
# Folders that training writes in many runs.
_USUAL_FOLDERS = ("model", "adapter")
_FEW_TRAINING_PAIRS = 20
_NUM_NAMED = 3


def name_scorer(config: Mapping[str, Any]) -> str:
    """Return the name of the evaluated model, or `judge` and the name of the judge."""
    return name_model(str(config["model"])) if config.get("judge") is None else f"judge {config['judge']}"


def name_model(model: str) -> str:
    """Return the name of a checkpoint on pages: of a local folder the last part, or two where the last is a rule."""
    if not Path(model).exists() and not Path(model).is_absolute():
        return model
    parts = (NANO if Path(model) == NANO else Path(model).resolve()).parts
    return "/".join(parts[-2:] if parts[-1] in _USUAL_FOLDERS or parts[-1].startswith("checkpoint-") else parts[-1:])


def list_groups(labels: Labels) -> list[str]:
    """Return the recording of each pair; a pair without one is its own group."""
    return [label["group_id"] or f"pair {label['pair_id']}" for label in labels]


def name_synthesizers(labels: Labels) -> set[str]:
    return {label["synthesizer"] for label in labels if label["synthesizer"]}


def list_columns(num_pairs: Mapping[str, int]) -> list[str]:
    """Return the columns of Table 2 that have pairs and do not repeat another."""
    present = [name for name in SUBSETS if num_pairs[name]]
    if not present or num_pairs[present[0]] == num_pairs["overall_micro"]:
        return present[:1] or ["overall_micro"]
    # Without one of the criteria, or with one subset of modality, its averages repeat other columns.
    has_both = "colloquialness" in present and len(present) > 2
    averages = [name for name in COLUMNS if name.startswith("overall_") or (has_both and name.startswith("modality_"))]
    return [name for name in COLUMNS if name in (*present, *averages)]


def compute_accuracy(labels: Labels, scores: Scores, options: Mapping[str, Any]) -> Record:
    """Return `pairwise_accuracy`, but None for a column without a usable reward, and for the averages over it."""
    chosen, rejected = ([scores[label["pair_id"]][side] for label in labels] for side in SIDES)
    subsets = [label["subset"] for label in labels]
    found = pairwise_accuracy(chosen, rejected, subsets, list_groups(labels), **options)
    num_pairs = found["num_pairs"]
    for name in COLUMNS:
        is_partial = any(num_pairs[member] and found[member] is None for member in MACRO_MEMBERS.get(name, ()))
        if is_partial or found["num_invalid"][name] == num_pairs[name]:
            found[name] = found["interval"][name] = found["interval_method"][name] = None
    return found


def select_column(result: Mapping[str, Any], column: str) -> Record:
    counts = {key: result[key][column] for key in ("num_ties", "num_invalid", "num_groups", "interval")}
    return {"accuracy": result[column], **counts}


def describe_accuracy(labels: Labels, scores: Scores, options: Mapping[str, Any]) -> Record:
    if not labels:
        return {"num_pairs": 0, "num_groups": 0, "accuracy": None, "interval": None}
    column = select_column(compute_accuracy(labels, scores, options), "overall_micro")
    return {"num_pairs": len(labels), **{name: column[name] for name in ("num_groups", "accuracy", "interval")}}


def make_measure(by_scorer: Mapping[str, Scores], options: Mapping[str, Any]) -> Measure:
    def measure(labels: Labels, column: str) -> Record:
        found = {name: compute_accuracy(labels, scores, options) for name, scores in by_scorer.items()}
        return {"num_pairs": len(labels), **{name: select_column(result, column) for name, result in found.items()}}

    return measure


def summarise(
    labels: Labels,
    by_scorer: Mapping[str, Scores],
    heard: Collection[str] | None,
    skipped: Labels,
    heard_sources: Collection[str] | None = None,
    **options: Any,
) -> Record:
    """Compute the accuracies of every scorer, overall, by synthesizer and by held-out synthesizer and source.

    `heard` and `heard_sources` are the synthesizers and sources of the training pairs, None if they are unknown.
    """
    left_out = None if heard is None else find_left_out(name_synthesizers(labels), heard)
    sources = {label["source"] for label in labels if label["source"]}
    left_out_sources = None if heard_sources is None else sorted(sources - {*heard_sources})
    zeros = [0.0] * len(skipped)
    of_skipped = skipped and pairwise_accuracy(zeros, zeros, [label["subset"] for label in skipped], num_bootstrap=1)
    measure = make_measure(by_scorer, options)
    return {
        "accuracies": {name: compute_accuracy(labels, scores, options) for name, scores in by_scorer.items()},
        "by_synthesizer": by_synthesizer(labels, left_out, measure),
        "by_held_out": by_held_out(labels, left_out or (), left_out_sources or (), measure),
        "left_out_synthesizers": None if left_out is None else sorted(left_out),
        "left_out_sources": left_out_sources,
        "num_skipped": of_skipped["num_pairs"] if of_skipped else dict.fromkeys(COLUMNS, 0),
        "skipped": list(skipped),
    }


def find_left_out(names: Collection[str], heard: Collection[str]) -> set[str]:
    """Return the names with a synthesizer that training did not hear, in any combination."""
    known = {part for name in heard for part in split_synthesizers(name)}
    return {name for name in names if not split_synthesizers(name) <= known}


def split_by_criterion(labels: Labels) -> Iterator[tuple[str, str, Labels]]:
    """Yield each criterion, the column that holds all its pairs, and these; pairs of no subset are `NO_SUBSET`."""
    for criterion, column in {**CRITERION_COLUMNS, NO_SUBSET: "overall_micro"}.items():
        subsets = {*SUBSETS} - {"colloquialness"} if criterion == "modality" else {criterion}
        if members := [label for label in labels if label["subset"] in subsets]:
            yield criterion, column, members


def find_heard(model: str | None, train_labels: Labels | None) -> tuple[Names, Names, str | None]:
    """Return synthesizers and sources of the training pairs, and who names them: the `model`, else the `split`.

    `run.json` names the synthesizers of all stages of a model; without it, `results.json` does.
    """
    heard: Names = None
    sources: Names = None
    if model is not None:
        stages = read_stages(model)
        names = describe_stages(stages)
        found = (names["synthesizers"], names["sources"])
        heard, sources = (None if each is None else set(each) for each in found)
        path = Path(find_checkpoint(model)) / "results.json"
        if path.is_file() and not any(TRAINED_ON in stage for stage in stages):
            results = read_json_object(path, "get the checkpoint again")
            # Of an evaluation that took the split's, these are not the model's.
            left_out = results.get("left_out_synthesizers") if results.get("heard_from") != "split" else None
            spoken = {row["synthesizer"] for row in results["by_synthesizer"]} - {ALL_SEEN, ALL_LEFT_OUT}
            heard = None if left_out is None else spoken - {*left_out}
    if heard is None and train_labels is not None:
        return name_synthesizers(train_labels), {label["source"] for label in train_labels}, "split"
    return heard, sources, None if heard is None else "model"


def find_overlap(
    model: str, pairs: datasets.Dataset, labels: Labels, scores: Scores, options: Mapping[str, Any]
) -> Record | None:
    """Return the ids of pairs by what they share with training pairs, and the accuracy on `others`; None if unknown.

    A pair counts once: both sides were trained on, else its id, else the first that it shares in this order.
    """
    record = read_pairs_record(model)
    if record is None:
        return None
    known = {name: set(record[name]) for name in OVERLAPS if name != "content"}
    found: dict[str, list[str]] = {name: [] for name in OVERLAPS}
    others = []
    for label, hashes in zip(labels, hash_pairs(pairs), strict=True):
        if len(hashes["side"]) == 2 and set(hashes["side"]) <= known["side"]:
            found["content"].append(label["pair_id"])
        elif name := next((name for name in known if known[name].intersection(hashes[name])), None):
            found[name].append(label["pair_id"])
        else:
            others.append(label)
    accuracy = describe_accuracy(others, scores, options)
    return {"num_pairs": len(labels), "is_whole": record["is_whole"], **found, "others": accuracy}


def by_synthesizer(labels: Labels, left_out: Collection[str] | None, measure: Measure) -> list[Record]:
    """Return the accuracies by criterion and synthesizer, then over those heard and those held out."""
    rows = []
    for criterion, column, members in split_by_criterion(labels):
        names = name_synthesizers(members)
        groups = [(name, {name}) for name in sorted(names)]
        if left_out is not None:
            groups += [(ALL_SEEN, names - {*left_out}), (ALL_LEFT_OUT, names & {*left_out})]
        for title, spoken_by in groups:
            if spoken := [label for label in members if label["synthesizer"] in spoken_by]:
                rows.append({"criterion": criterion, "synthesizer": title, **measure(spoken, column)})
    return rows


def by_held_out(
    labels: Labels, left_out: Collection[str], left_out_sources: Collection[str], measure: Measure
) -> list[Record]:
    """Return the accuracies by criterion, held-out synthesizer and source; `ALL_LEFT_OUT` stands for all of them."""
    rows = []
    spoken = [label for label in labels if label["synthesizer"] in left_out and label["source"]]
    for criterion, column, members in split_by_criterion(spoken):
        names, sources = (sorted({label[key] for label in members}) for key in ("synthesizer", "source"))
        for name in (*names, ALL_LEFT_OUT):
            in_row = [label for label in members if name in (label["synthesizer"], ALL_LEFT_OUT)]
            for source in (*sources, ALL_LEFT_OUT):
                in_sources = left_out_sources if source == ALL_LEFT_OUT else (source,)
                if cell := [label for label in in_row if label["source"] in in_sources]:
                    about = {"criterion": criterion, "synthesizer": name, "source": source}
                    rows.append({**about, **measure(cell, column)})
    return rows


def sum_timing(sessions: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Add up the sessions that were not killed; `real_time_factor` is seconds per second of audio, lower is better."""
    sums = {name: sum(session[name] for session in sessions) for name in ("num_pairs", "audio_s", "scoring_s")}
    return {**sums, "real_time_factor": sums["scoring_s"] / sums["audio_s"] if sums["audio_s"] else None}


def sum_cut(scores: Sequence[Mapping[str, Any]], sessions: Sequence[Mapping[str, Any]]) -> Record | None:
    """Add up the recordings that were heard in part or as silence; None of a judge, which reports none."""
    limits = {session["max_turn_s"] for session in sessions if "max_turn_s" in session}
    if len(limits) != 1 or not all("silent_turns" in score for score in scores):
        return None
    names = ("given_s", "heard_s", "num_recordings", "num_cut")
    sums = {name: sum(score[name] for score in scores) for name in names}
    silent = [f"{score['pair_id']} {turn}" for score in scores for turn in score["silent_turns"]]
    num_pairs = sum(score["num_cut"] > 0 for score in scores)
    return {"max_turn_s": limits.pop(), **sums, "num_pairs": num_pairs, "silent_turns": silent}


def list_findings(results: Mapping[str, Any], name: str) -> list[str]:
    """Return the result in sentences, the weakest point first; `name` comes from `name_scorer`."""
    own, column = results["accuracies"]["model"], "overall_micro"
    who = f"J{name[1:]}" if results.get("judge") else f"Model {name}"
    found = [describe_overlap(results)] if (results.get("overlap") or {}).get("content") else []
    found += _list_weak_points(results)
    if own[column] is None:
        what = "answer" if results.get("judge") else "reward"
        return [*found, f"{who} has no usable {what} for any of {own['num_pairs'][column]} pairs."]
    share = f"{own['num_correct'][column]} of {own['num_pairs'][column]} pairs, {format_percent(own[column])}%"
    interval = phrase_interval(own["interval"][column], own["num_groups"][column])
    return [*found, f"{who} prefers the right dialogue in {share} ({interval}); chance is 50%."]


def list_criteria(num_pairs: Mapping[str, int]) -> dict[str, str]:
    """Return the column of each criterion with pairs; without subsets, the column of all pairs."""
    found = {name: column for name, column in CRITERION_COLUMNS.items() if num_pairs[column]}
    return found or {"all pairs": "overall_micro"}


def is_all_ties(result: Mapping[str, Any], column: str) -> bool:
    """Return whether a scorer cannot separate the sides of any pair, as the text baseline of equal words."""
    return bool(result["num_ties"][column] == result["num_pairs"][column] > 0)


def _list_weak_points(results: Mapping[str, Any]) -> list[str]:
    """Return criteria under which the model is not above a baseline, or not clearly above chance, the worst first."""
    accuracies, found = results["accuracies"], list[tuple[float, str]]()
    own = accuracies["model"]
    for criterion, column in list_criteria(own["num_pairs"]).items():
        above = dict[str, float]()
        for name, fitted in results.get("baselines", {}).items():
            num_train = fitted["num_train"].get(criterion, sum(fitted["num_train"].values()))
            rival = accuracies[name][column]
            if num_train >= _FEW_TRAINING_PAIRS and not is_all_ties(accuracies[name], column):
                above |= {name: rival} if own[column] is not None and rival >= own[column] else {}
        start = f"{criterion.capitalize()} ({format_percent(own[column])}%)"
        if above:
            is_below = "below" if min(above.values()) > own[column] else "no better than"
            shares = " and ".join(f"the {name} baseline ({format_percent(share)}%)" for name, share in above.items())
            meaning = "it shows no listening" if "text" in above else "voice and channel alone explain it"
            found.append((own[column] - max(above.values()), f"{start}: {is_below} {shares}; {meaning}."))
        elif own[column] is not None and (own["interval"][column] or [1.0])[0] <= 0.5:
            found.append((0.0, f"{start}: not clearly above chance."))
    return [sentence for _, sentence in sorted(found)]


def list_notes(results: Mapping[str, Any], titles: Mapping[str, str]) -> list[str]:
    """Return what qualifies the numbers; `titles` are the names of the scorers."""
    found = [] if (results.get("overlap") or {}).get("content") else [describe_overlap(results)]
    missing = results["accuracies"]["model"]["missing_subsets"]
    # With one subset alone the averages are its accuracy.
    if 0 < len(missing) < len(SUBSETS) - 1:
        found.append(f"No pairs of {', '.join(missing)}: the averages are over the other subsets.")
    for name, result in results["accuracies"].items():
        found += _note_ties(result, titles[name], "have no usable answer" if titles[name] == "judge" else "")
    if results["skipped"]:
        what = "pairs were skipped and are not counted; skipped.jsonl has the reasons."
        found.append(f"{len(results['skipped'])} {what}")
    found.append(describe_cut(results.get("cut")))
    found += describe_changed((results.get("judge") or {}).get("changed_parameters", {}))
    if omitted := results.get("omitted"):
        found.append(f"{omitted[0].upper()}{omitted[1:]}.")
    counts = [of["num_train"] for of in results.get("baselines", {}).values()]
    if few := {name: count for of in counts for name, count in of.items() if count < _FEW_TRAINING_PAIRS}:
        fitted = ", ".join(f"{count} of {name}" for name, count in few.items())
        found.append(f"The baselines were fitted on few pairs ({fitted}); ignore their numbers.")
    return list(filter(None, found))


def _note_ties(result: Mapping[str, Any], scorer: str, what: str) -> Iterator[str]:
    """Yield how many pairs tie or have no usable reward."""
    num_pairs, num_ties = result["num_pairs"], result["num_ties"]
    by_criterion = any(num_pairs[name] for name in SUBSETS)
    for criterion, column in (CRITERION_COLUMNS if by_criterion else {"": "overall_micro"}).items():
        ties, pairs = num_ties[column], f"{criterion} pairs".strip()
        if ties and ties == num_pairs[column]:
            yield f"{scorer}: all {ties} {pairs} tie."
        elif ties:
            split = format_percent((result["num_correct"][column] + ties / 2) / num_pairs[column])
            yield f"{scorer}: {ties} of {num_pairs[column]} {pairs} tie; {split} if ties are split."
    # Pairs of no subset are in no column alone.
    others, ties = (each["overall_micro"] - sum(each[name] for name in SUBSETS) for each in (num_pairs, num_ties))
    if by_criterion and ties:
        yield f"{scorer}: {ties} of {others} pairs of no subset tie."
    if invalid := result["num_invalid"]["overall_micro"]:
        end = "so there is no accuracy" if invalid == num_pairs["overall_micro"] else "counted as wrong"
        what = what or "have a reward that is not finite"
        yield f"{scorer}: {invalid} of {num_pairs['overall_micro']} pairs {what}, {end}."


def describe_cut(cut: Mapping[str, Any] | None) -> str:
    """Describe the result of `sum_cut`; empty if all was heard, or if that is unknown."""
    found = []
    if cut and cut["num_cut"]:
        found.append(
            f"{cut['num_cut']} of {cut['num_recordings']} recordings, in {cut['num_pairs']} pairs, are longer than "
            f"{cut['max_turn_s']:g} s: the model heard the first {cut['max_turn_s']:g} s of each (max_turn_s), "
            f"{cut['heard_s']:.0f} of {cut['given_s']:.0f} s in all."
        )
    if cut and (silent := cut["silent_turns"]):
        named = ", ".join(silent[:_NUM_NAMED]) + ", ..." * (len(silent) > _NUM_NAMED)
        found.append(f"Nothing was heard in {len(silent)} turns ({named}).")
    return " ".join(found)


def describe_overlap(results: Mapping[str, Any]) -> str:
    """Report how many of the evaluated pairs were trained on; empty for a judge."""
    if "overlap" not in results:
        return ""
    if (overlap := results["overlap"]) is None:
        return "The training pairs of this model are not recorded: it may have been trained on these pairs."
    num_pairs, shared = overlap["num_pairs"], list[str]()
    for name, what in OVERLAPS.items():
        if count := len(overlap.get(name, ())):
            verb = "was a training pair" if (count, name) == (1, "content") else what
            shared.append(f"{count} {verb}" if shared else f"{count} of these {num_pairs} pairs {verb}")
    text = f"{'; '.join(shared) or f'None of these {num_pairs} pairs shared anything with the training pairs'}."
    if shared:
        others = overlap["others"]
        measured = f"The other {others['num_pairs']}: {format_percent(others['accuracy'])}% right."
        text += f" {measured if others['num_pairs'] else 'No other pair is left to measure.'}"
    return text if overlap["is_whole"] else f"{text} The record of this model's training pairs is incomplete."


def describe_changed(parameters: Mapping[str, str | None]) -> list[str]:
    """Return a sentence for each parameter that the endpoint of a judge refused."""
    instead = {name: f"sent as {escape_code(other)}" if other else "omitted" for name, other in parameters.items()}
    return [f"{escape_code(name)} was refused by the endpoint and {how}." for name, how in instead.items()]


def list_reasons(problems: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the first different reasons why answers of a judge could not be used."""
    return list(dict.fromkeys(row["problem"] or str(row["status"]) for row in problems))[:_NUM_NAMED]


def render_reasons(problems: Sequence[Mapping[str, Any]]) -> str:
    reasons = [f"- {escape_markdown(reason)}" for reason in list_reasons(problems)]
    return "\n".join(["First reasons for unusable answers:\n", *reasons]) if reasons else ""


def phrase_interval(bounds: Sequence[float] | None, num_groups: int, what: str = "recordings") -> str:
    """Return the interval for a sentence, with the number of recordings or other groups that it is over."""
    found = format_interval(bounds) if bounds is None else f"95% interval {format_interval(bounds)}"
    return f"{found} over {num_groups} {what.removesuffix('s') if num_groups == 1 else what}"
