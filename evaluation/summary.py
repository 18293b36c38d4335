"""Turn scores into the numbers of `results.json`, and these into tables and text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sdiareward.common.package import NANO
from sdiareward.common.tables import (
    ABSENT,
    Cell,
    Row,
    Table,
    escape_code,
    escape_markdown,
    format_interval,
    format_percent,
    format_points,
    format_range,
    make_share,
    render_table,
)
from sdiareward.esdr_accuracy.pairwise import COLUMNS, MACRO_MEMBERS, NO_SUBSET, SUBSETS, pairwise_accuracy
from sdiareward.pairs.labels import split_synthesizers
from sdiareward.pairs.loading import name_data
from sdiareward.pairs.schema import SIDES


Labels = Sequence[Mapping[str, Any]]
Scores = Mapping[str, Mapping[str, Any]]
Record = dict[str, Any]

TITLES = {
    "wild": "wild",
    "semi_wild": "semi-wild",
    "scripted": "scripted",
    "modality_micro": "modality micro",
    "modality_macro": "modality macro",
    "colloquialness": "colloq.",
    "overall_micro": "overall micro",
    "overall_macro": "overall macro",
    NO_SUBSET: "all",
}
# The column that holds all pairs of one criterion.
CRITERION_COLUMNS = {"modality": "modality_micro", "colloquialness": "colloquialness"}
_ALL_PAIRS = ("overall_micro",)
# Every value of the label `subset`: pairs of other data have none of the paper's.
SUBSET_LABELS = (*SUBSETS, NO_SUBSET)
_FEW_TRAINING_PAIRS = 20
_NUM_NAMED = 3
ALL_SEEN, ALL_LEFT_OUT = "all seen in training", "all left out of training"
# Result files keep the older name of the row.
SHOWN_NAMES = {ALL_LEFT_OUT: "all held out of training"}
# What evaluated pairs share with training pairs.
OVERLAPS = {
    "content": "trained on, with the same words and recordings",
    "pair_id": "with the id of a training pair, but other words or recordings",
    "side": "with one side of a training pair",
    "prompt": "with the prompt of a training pair",
    "recording": "with a recording of a training pair",
    "group_id": "of a recording or dialogue that was trained on (group_id)",
}


def choose_columns(num_pairs: Mapping[str, int]) -> tuple[str, ...]:
    """Return the columns of Table 2, or that of all pairs alone if no pair is in a subset."""
    return COLUMNS if any(num_pairs[name] for name in SUBSETS) else _ALL_PAIRS


def title_columns(columns: Sequence[str]) -> dict[str, str]:
    """Return the titles of columns; the column of all pairs has that title if it stands alone."""
    return {**TITLES, "overall_micro": TITLES[NO_SUBSET]} if tuple(columns) == _ALL_PAIRS else TITLES


def name_scorer(config: Mapping[str, Any]) -> str:
    """Return the name of the evaluated model, or `judge` and the name of the judge."""
    return name_model(str(config["model"])) if config.get("judge") is None else f"judge {config['judge']}"


def name_model(model: str) -> str:
    """Return a checkpoint's name on pages; the package's own has another path on each machine."""
    return NANO.name if Path(model) == NANO else model


def summarise(
    labels: Labels, by_scorer: Mapping[str, Scores], heard: Collection[str] | None, skipped: Labels, **options: Any
) -> Record:
    """Compute the accuracies of every scorer on the same pairs, overall and by synthesizer."""
    left_out = None if heard is None else find_left_out(name_synthesizers(labels), heard)
    num_skipped = dict.fromkeys(COLUMNS, 0)
    if skipped:
        zeros = [0.0] * len(skipped)
        found = pairwise_accuracy(zeros, zeros, [label["subset"] for label in skipped], num_bootstrap=1)
        num_skipped = found["num_pairs"]
    return {
        "accuracies": {name: compute_accuracy(labels, scores, options) for name, scores in by_scorer.items()},
        "by_synthesizer": by_synthesizer(labels, by_scorer, left_out, options),
        "left_out_synthesizers": None if left_out is None else sorted(left_out),
        "num_skipped": num_skipped,
        "skipped": list(skipped),
    }


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


def list_groups(labels: Labels) -> list[str]:
    """Return the recording of each pair; a pair without one is its own group."""
    return [label["group_id"] or f"pair {label['pair_id']}" for label in labels]


def name_synthesizers(labels: Labels) -> set[str]:
    return {label["synthesizer"] for label in labels if label["synthesizer"]}


def find_left_out(names: Collection[str], heard: Collection[str]) -> set[str]:
    """Return the names with a synthesizer that training did not hear, in any combination."""
    known = {part for name in heard for part in split_synthesizers(name)}
    return {name for name in names if not split_synthesizers(name) <= known}


def split_by_criterion(labels: Labels) -> Iterator[tuple[str, str, Labels]]:
    """Yield each criterion, the column that holds all its pairs, and these; pairs of no subset are `NO_SUBSET`."""
    for criterion, column in {**CRITERION_COLUMNS, NO_SUBSET: "overall_micro"}.items():
        others = {"modality": {*SUBSETS} - {"colloquialness"}}.get(criterion, {criterion})
        if members := [label for label in labels if label["subset"] in others]:
            yield criterion, column, members


def by_synthesizer(
    labels: Labels, by_scorer: Mapping[str, Scores], left_out: Collection[str] | None, options: Mapping[str, Any]
) -> list[Record]:
    """Return the accuracies by criterion and synthesizer, then over those heard and those held out."""
    rows = []
    for criterion, column, members in split_by_criterion(labels):
        names = name_synthesizers(members)
        groups = [(name, {name}) for name in sorted(names)]
        if left_out is not None:
            groups += [(ALL_SEEN, names - {*left_out}), (ALL_LEFT_OUT, names & {*left_out})]
        for title, spoken_by in groups:
            if spoken := [label for label in members if label["synthesizer"] in spoken_by]:
                found = measure_cell(spoken, by_scorer, column, options)
                rows.append({"criterion": criterion, "synthesizer": title, "num_pairs": len(spoken), **found})
    return rows


def by_held_out(
    labels: Labels,
    by_scorer: Mapping[str, Scores],
    left_out: Collection[str] | None,
    left_out_sources: Collection[str] | None,
    options: Mapping[str, Any],
) -> list[Record]:
    """Return the accuracies by criterion, held-out synthesizer and source; `ALL_LEFT_OUT` stands for all of them."""
    rows = []
    spoken = [label for label in labels if label["synthesizer"] in (left_out or ()) and label["source"]]
    for criterion, column, members in split_by_criterion(spoken):
        names, sources = (sorted({label[key] for label in members}) for key in ("synthesizer", "source"))
        for name in (*names, ALL_LEFT_OUT):
            in_row = [label for label in members if name in (label["synthesizer"], ALL_LEFT_OUT)]
            for source in (*sources, ALL_LEFT_OUT):
                in_sources = {source} if source != ALL_LEFT_OUT else set(left_out_sources or ())
                if cell := [label for label in in_row if label["source"] in in_sources]:
                    about = {"criterion": criterion, "synthesizer": name, "source": source, "num_pairs": len(cell)}
                    rows.append({**about, **measure_cell(cell, by_scorer, column, options)})
    return rows


def measure_cell(
    labels: Labels, by_scorer: Mapping[str, Scores], column: str, options: Mapping[str, Any]
) -> dict[str, Record]:
    """Return the accuracy of every scorer on these pairs, which are all in one column."""
    found = {name: compute_accuracy(labels, scores, options) for name, scores in by_scorer.items()}
    return {name: select_column(result, column) for name, result in found.items()}


def select_column(result: Mapping[str, Any], column: str) -> Record:
    counts = {key: result[key][column] for key in ("num_ties", "num_invalid", "num_groups", "interval")}
    return {"accuracy": result[column], **counts}


def describe_accuracy(labels: Labels, scores: Scores, options: Mapping[str, Any]) -> Record:
    if not labels:
        return {"num_pairs": 0, "num_groups": 0, "accuracy": None, "interval": None}
    column = select_column(compute_accuracy(labels, scores, options), "overall_micro")
    return {"num_pairs": len(labels), **{name: column[name] for name in ("num_groups", "accuracy", "interval")}}


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


def render_report(results: Mapping[str, Any]) -> str:
    """Render a run's results as Markdown that also reads well in a terminal."""
    config = results["config"]
    model, data = map(escape_markdown, (name_scorer(config), name_data(config["dataset"], config["split"])))
    parts = [
        f"# {model} on {data}",
        "Pairwise accuracy in percent, higher is better; 95% intervals in the line below. A tie is wrong.",
        _render_accuracies(results),
        "\n".join(f"- {note}" for note in list_notes(results)),
        render_judge(results["judge"]) if results.get("judge") else "",
        _render_synthesizers(results),
        *(_render_disagreements(found) for found in results.get("disagreements", ())),
        describe_timing(results["timing"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _render_accuracies(results: Mapping[str, Any]) -> str:
    accuracies = results["accuracies"]
    own, titles = accuracies["model"], title_scorers(results)
    columns = choose_columns(own["num_pairs"])
    counts = {"pairs": own["num_pairs"], "recordings": own["num_groups"]}
    counts |= {"skipped": results["num_skipped"]} if results["skipped"] else {}
    rows = [[title, *(count[name] for name in columns)] for title, count in counts.items()]
    for scorer, result in accuracies.items():
        rows.append([f"**{titles[scorer]}**", *(format_percent(result[name]) for name in columns)])
        bounds = [ABSENT if result[name] is None else format_interval(result["interval"][name]) for name in columns]
        rows += [["95%", *bounds], ["ties", *(result["num_ties"][name] for name in columns)]]
    heads = title_columns(columns)
    return "\n".join(render_table(["", *(heads[name] for name in columns)], rows, pad=True))


def title_scorers(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of scorers in tables of Markdown; results hold the scores of a judge under `model`."""
    judge = {"model": "judge"} if results.get("judge") else {}
    return {name: judge.get(name, name) for name in results["accuracies"]}


def list_notes(results: Mapping[str, Any], titles: Mapping[str, str] | None = None) -> list[str]:
    """Return what to read before the numbers."""
    found = list(filter(None, [describe_overlap(results)]))
    missing = results["accuracies"]["model"]["missing_subsets"]
    # With one subset alone the averages are its accuracy.
    if 0 < len(missing) < len(SUBSETS) - 1:
        found.append(f"No pairs of {', '.join(missing)}: the averages run over the other subsets.")
    for name, result in results["accuracies"].items():
        found += _list_notes_on(result, (titles or title_scorers(results))[name])
    if results["skipped"]:
        found.append(
            f"{len(results['skipped'])} pairs were skipped and are not counted; skipped.jsonl has the reasons."
        )
    if cut := describe_cut(results.get("cut")):
        found.append(cut)
    if omitted := results.get("omitted"):
        found.append(f"{omitted[0].upper()}{omitted[1:]}.")
    counts = [of["num_train"] for of in results.get("baselines", {}).values()]
    if few := {name: count for of in counts for name, count in of.items() if count < _FEW_TRAINING_PAIRS}:
        fitted = ", ".join(f"{count} of {name}" for name, count in few.items())
        found.append(f"The baselines were fitted on few pairs ({fitted}): read nothing into their numbers.")
    return found


def _list_notes_on(result: Mapping[str, Any], scorer: str) -> Iterator[str]:
    """Yield how many pairs tie or have no usable reward."""
    num_pairs, num_ties = result["num_pairs"], result["num_ties"]
    by_criterion = len(choose_columns(num_pairs)) > 1
    for criterion, column in (CRITERION_COLUMNS if by_criterion else {NO_SUBSET: "overall_micro"}).items():
        if ties := num_ties[column]:
            split = format_percent((result["num_correct"][column] + ties / 2) / num_pairs[column])
            pairs = f"{criterion} pairs" if by_criterion else "pairs"
            yield f"{scorer}: {ties} of {num_pairs[column]} {pairs} tie; {split} if ties are split."
    # Pairs of no subset are in no column alone.
    others, ties = (
        counts["overall_micro"] - sum(counts[name] for name in SUBSETS) for counts in (num_pairs, num_ties)
    )
    if by_criterion and ties:
        yield f"{scorer}: {ties} of {others} pairs of no subset tie."
    if invalid := result["num_invalid"]["overall_micro"]:
        what = "got no usable answer" if scorer == "judge" else "have a reward that is not finite"
        end = "so there is no accuracy" if invalid == num_pairs["overall_micro"] else "counted as wrong"
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
    """Report which of the evaluated pairs were trained on; empty for a judge."""
    if "overlap" not in results:
        return ""
    if (overlap := results["overlap"]) is None:
        return "The training pairs of this model are not recorded: it may have been trained on these pairs."
    found = {what: overlap[name] for name, what in OVERLAPS.items() if overlap.get(name)}
    shared = [f"{len(names)} {what} ({_name_some(names)})" for what, names in found.items()]
    text = f"Of {overlap['num_pairs']} pairs, {'; '.join(shared) or 'none share anything with the training pairs'}."
    if shared:
        others = overlap["others"]
        rest = f"accuracy {format_percent(others['accuracy'])}" if others["num_pairs"] else "nothing to measure"
        text += f" The other {others['num_pairs']}: {rest}."
    return text if overlap["is_whole"] else f"{text} Not all that this model was trained on is recorded."


def _name_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(map(escape_markdown, names[:_NUM_NAMED])) + more


def describe_training(results: Mapping[str, Any]) -> str:
    """Return where the held-out synthesizers are known from."""
    if results.get("heard_from") == "split":
        return f"the split {results['config']['train_split']}, as the model's training is not known"
    return "the model's training"


def describe_timing(timing: Mapping[str, Any]) -> str:
    if timing["real_time_factor"] is None:
        return ""
    return (
        f"Scored {timing['num_pairs']} pairs, {timing['audio_s'] / 3600:.2f} h of audio, in "
        f"{timing['scoring_s']:.1f} s: real-time factor {timing['real_time_factor']:.4f}."
    )


def tabulate_synthesizers(results: Mapping[str, Any], titles: Mapping[str, str]) -> Table:
    """Return the accuracies by synthesizer of the scorers in `titles`."""
    rows = []
    for criterion, members in groupby(results["by_synthesizer"], key=lambda row: row["criterion"]):
        rows.append(Row([criterion], "group"))
        for row in members:
            name = row["synthesizer"]
            is_held_out = name in (results["left_out_synthesizers"] or ())
            shares = [make_share(row[scorer]["accuracy"], row[scorer]["interval"]) for scorer in titles]
            title = Cell(SHOWN_NAMES.get(name, name), mark="held out" if is_held_out else "")
            cells = [title, row["num_pairs"], row["model"]["num_groups"], *shares]
            rows.append(Row(cells, "sum" if name in (ALL_SEEN, ALL_LEFT_OUT) else ""))
    return Table("Accuracy by synthesizer", ["synthesizer", "pairs", "recordings", *titles.values()], rows)


def _render_synthesizers(results: Mapping[str, Any]) -> str:
    if not results["by_synthesizer"]:
        return ""
    marked = "What the model heard in training is not known."
    if (left_out := results["left_out_synthesizers"]) is not None:
        names = ", ".join(map(escape_markdown, left_out)) or "none"
        marked = f"Held out of {escape_markdown(describe_training(results))}: {names}."
    table = tabulate_synthesizers(results, title_scorers(results))
    return f"## By synthesizer\n\n{marked}\n\n{table.to_markdown('criterion')}"


def tabulate_held_out(results: Mapping[str, Any], titles: Mapping[str, str]) -> Table | None:
    """Return the accuracies by held-out synthesizer and source; None without a held-out synthesizer."""
    found = results.get("by_held_out", ())
    names = sorted({row["source"] for row in found}, key=lambda name: (name == ALL_LEFT_OUT, name))
    held_out = results.get("left_out_sources") or ()
    sources = {name: SHOWN_NAMES.get(name, f"{name} (held out)" if name in held_out else name) for name in names}
    rows = []
    for criterion, members in groupby(found, key=lambda row: row["criterion"]):
        rows.append(Row([criterion], "group"))
        by_cell = {(row["synthesizer"], row["source"]): row for row in members}
        for name in dict.fromkeys(name for name, _ in by_cell):
            for scorer, title in titles.items():
                cells = [_make_held_out_cell(by_cell.get((name, source)), scorer) for source in sources]
                rows.append(Row([Cell(SHOWN_NAMES.get(name, name), title), *cells]))
    head = ["held-out synthesizer", *sources.values()]
    return Table("Accuracy by held-out synthesizer and source", head, rows) if rows else None


def _make_held_out_cell(row: Mapping[str, Any] | None, scorer: str) -> Cell:
    if row is None:
        return Cell("")
    share = make_share(row[scorer]["accuracy"], row[scorer]["interval"])
    return Cell(share.value, f"{share.note}\n{row['num_pairs']} pairs, {row['model']['num_groups']} recordings")


def render_held_out(results: Mapping[str, Any]) -> str:
    table = tabulate_held_out(results, title_scorers(results))
    return f"## Held-out synthesizers by source\n\n{table.to_markdown('criterion')}\n" if table else ""


def tabulate_judge(judge: Mapping[str, Any]) -> Table:
    """Return how a judge decided, one row per criterion."""
    compares = judge["kind"] == "pairwise"
    head = ["pairs of", "pairs", "recordings", "decided by scores", "ties", "no usable answer"]
    if compares:
        head += ["decided by verdict", "position bias", "orders agree"]
        head += ["accuracy, chosen first only", "accuracy, rejected first only"]
    rows = []
    for group in judge["groups"]:
        decided, ties = group["decided_by"], group["ties"]
        tie = Cell(decided["tie"], f"{format_percent(ties['share'])}%, {format_interval(ties['interval'])}")
        cells = [group["criterion"], group["num_pairs"], ties["num_groups"], decided["scores"], tie, decided["failed"]]
        if compares:
            bias, shares = group["position_bias"], [group["order_agreement"], *group["one_order"].values()]
            bounds = format_range(bias["interval"], format_points)
            cells += [decided["verdict"], Cell(format_points(bias["bias"]), bounds)]
            cells += [make_share(each["share"], each["interval"]) for each in shares]
        rows.append(Row(cells))
    return Table("How the judge decided", head, rows)


def describe_answers(judge: Mapping[str, Any]) -> str:
    usable = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in judge["answers"].items())
    spent = f"{judge['prompt_tokens']} tokens in, {judge['completion_tokens']} out"
    cost = "" if judge["usd"] is None else f", {judge['usd']:.2f} US dollars"
    return f"{judge['num_answers']} answers ({usable}) in {judge['num_replies']} replies: {spent}{cost}."


def render_judge(judge: Mapping[str, Any]) -> str:
    answers = " ".join([describe_answers(judge), *describe_changed(judge.get("changed_parameters", {}))])
    parts = ["## The judge", "Shares in percent, 95% intervals.", tabulate_judge(judge).to_markdown(), answers]
    return "\n\n".join(filter(None, [*parts, render_reasons(judge["problems"])]))


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


def _render_disagreements(found: Mapping[str, Any]) -> str:
    title = f"## Disagreements with {escape_markdown(found['title'])} ({escape_markdown(found['folder'])})"
    if not found["num_pairs"]:
        return f"{title}\n\nNone: of every pair, both are right or both are wrong."
    rows = []
    for row in found["rows"]:
        margins = [ABSENT if row[key] is None else f"{row[key]:+.3f}" for key in ("margin", "other_margin")]
        right = "this" if row["is_right"] else "other"
        rows.append([row["pair_id"], row["subset"], right, *margins, f"{100 * row['confidence']:.0f}"])
    head = ["pair", "subset", "right", "margin", "other margin", "confidence"]
    shown = (
        f"{found['num_pairs']} pairs that only one of the two has right; {len(found['rows'])} with most confidence:"
    )
    return f"{title}\n\n{shown}\n\n" + "\n".join(render_table(head, rows, num_left=3, pad=True))


def format_estimate(share: float | None, bounds: Sequence[float] | None) -> str:
    return f"{format_percent(share)} ({format_interval(bounds)})"


def phrase_interval(bounds: Sequence[float] | None, num_groups: int, what: str = "recordings") -> str:
    """Return the interval for a sentence, with the number of recordings or other groups that it is over."""
    found = format_interval(bounds) if bounds is None else f"95% interval {format_interval(bounds)}"
    return f"{found} over {num_groups} {what.removesuffix('s') if num_groups == 1 else what}"
