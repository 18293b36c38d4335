"""Turn scores into the numbers and tables that `eval.py` writes; `report` makes the page from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sdiareward.common.escaping import escape_code, escape_markdown
from sdiareward.common.tables import render_table
from sdiareward.esdr_accuracy.pairwise import COLUMNS, MACRO_MEMBERS, NO_SUBSET, SUBSETS, pairwise_accuracy
from sdiareward.evaluation.columns import (
    CRITERION_COLUMNS,
    choose_columns,
    group_by_criterion,
    is_of_criterion,
    title_columns,
)
from sdiareward.pairs.labels import split_synthesizers
from sdiareward.pairs.loading import name_data
from sdiareward.pairs.schema import SIDES

from .cut_turns import describe_cut
from .results_files import name_scorer


Labels = Sequence[Mapping[str, Any]]
Scores = Mapping[str, Mapping[str, Any]]

_ABSENT = "-"
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


def summarise(
    labels: Labels,
    by_scorer: Mapping[str, Scores],
    heard: Collection[str] | None,
    skipped: Labels,
    **options: Any,
) -> dict[str, Any]:
    """Compute the accuracies of every scorer on the same pairs, overall and by synthesizer."""
    accuracies = {name: compute_accuracy(labels, scores, options) for name, scores in by_scorer.items()}
    left_out = None if heard is None else find_left_out(name_synthesizers(labels), heard)
    return {
        "accuracies": accuracies,
        "by_synthesizer": by_synthesizer(labels, by_scorer, left_out, options),
        "left_out_synthesizers": None if left_out is None else sorted(left_out),
        "num_skipped": _num_by_column(skipped),
        "skipped": list(skipped),
    }


def compute_accuracy(labels: Labels, scores: Scores, options: Mapping[str, Any]) -> dict[str, Any]:
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


def name_synthesizers(labels: Labels) -> set[str]:
    return {label["synthesizer"] for label in labels if label["synthesizer"]}


def find_left_out(names: Collection[str], heard: Collection[str]) -> set[str]:
    """Return the names with a synthesizer that training did not hear, in any combination."""
    known = {part for name in heard for part in split_synthesizers(name)}
    return {name for name in names if not split_synthesizers(name) <= known}


def by_synthesizer(
    labels: Labels, by_scorer: Mapping[str, Scores], left_out: set[str] | None, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the accuracies by criterion and synthesizer, then over those heard and those held out."""
    rows = []
    for criterion, column in group_by_criterion(label["subset"] for label in labels).items():
        of_criterion = [label for label in labels if is_of_criterion(label["subset"], criterion)]
        names = name_synthesizers(of_criterion)
        groups = [(name, {name}) for name in sorted(names)]
        if left_out is not None:
            groups += [(ALL_SEEN, names - left_out), (ALL_LEFT_OUT, names & left_out)]
        for title, members in groups:
            spoken = [label for label in of_criterion if label["synthesizer"] in members]
            if not spoken:
                continue
            found = {name: compute_accuracy(spoken, scores, options) for name, scores in by_scorer.items()}
            columns = {name: select_column(result, column) for name, result in found.items()}
            rows.append({"criterion": criterion, "synthesizer": title, "num_pairs": len(spoken), **columns})
    return rows


def select_column(result: Mapping[str, Any], column: str) -> dict[str, Any]:
    return {
        "accuracy": result[column],
        **{key: result[key][column] for key in ("num_ties", "num_invalid", "num_groups", "interval")},
    }


def list_groups(labels: Labels) -> list[str]:
    """Return the recording of each pair; a pair without one is its own group."""
    return [label["group_id"] or f"pair {label['pair_id']}" for label in labels]


def describe_accuracy(labels: Labels, scores: Scores, options: Mapping[str, Any]) -> dict[str, Any]:
    if not labels:
        return {"num_pairs": 0, "num_groups": 0, "accuracy": None, "interval": None}
    column = select_column(compute_accuracy(labels, scores, options), "overall_micro")
    return {"num_pairs": len(labels), **{name: column[name] for name in ("num_groups", "accuracy", "interval")}}


def _num_by_column(labels: Labels) -> dict[str, int]:
    """Count pairs as `pairwise_accuracy` counts them."""
    subsets = [label["subset"] for label in labels]
    if not subsets:
        return dict.fromkeys(COLUMNS, 0)
    zeros = [0.0] * len(subsets)
    counts: dict[str, int] = pairwise_accuracy(zeros, zeros, subsets, num_bootstrap=1)["num_pairs"]
    return counts


def sum_timing(sessions: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Add up the sessions that were not killed; `real_time_factor` is seconds per second of audio, lower is better."""
    sums = {name: sum(session[name] for session in sessions) for name in ("num_pairs", "audio_s", "scoring_s")}
    return {**sums, "real_time_factor": sums["scoring_s"] / sums["audio_s"] if sums["audio_s"] else None}


def render_report(results: Mapping[str, Any]) -> str:
    """Render a run's results as Markdown that also reads well in a terminal."""
    config = results["config"]
    model, data = map(escape_markdown, (name_scorer(config), name_data(config["dataset"], config["split"])))
    parts = [
        f"# {model} on {data}",
        "Pairwise accuracy in percent, higher is better; 95% intervals in the line below. A tie is wrong.",
        _main_table(results),
        "\n".join(f"- {note}" for note in list_notes(results)),
        render_judge(results["judge"]) if results.get("judge") else "",
        _render_synthesizers(results),
        *(render_disagreements(found) for found in results.get("disagreements", ())),
        _describe_timing(results["timing"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _main_table(results: Mapping[str, Any]) -> str:
    accuracies = results["accuracies"]
    columns = choose_columns(accuracies["model"]["num_pairs"])
    titles = title_columns(columns)
    counted = {"pairs": "num_pairs", "recordings": "num_groups"}
    rows = [[title, *(accuracies["model"][key][name] for name in columns)] for title, key in counted.items()]
    if results["skipped"]:
        rows.append(["skipped", *(results["num_skipped"][name] for name in columns)])
    for scorer, result in accuracies.items():
        rows.append([f"**{title_scorer(scorer, results)}**", *(format_percent(result[name]) for name in columns)])
        bounds = {name: result["interval"][name] for name in columns if result[name] is not None}
        rows.append(["95%", *(format_interval(bounds[name]) if name in bounds else _ABSENT for name in columns)])
        rows.append(["ties", *(result["num_ties"][name] for name in columns)])
    return _render_table(["", *(titles[name] for name in columns)], rows)


def title_scorer(scorer: str, results: Mapping[str, Any]) -> str:
    """Return the name of a scorer in tables; results hold the scores of a judge under `model`."""
    return "judge" if scorer == "model" and results.get("judge") else scorer


def _count_others(counts: Mapping[str, int]) -> int:
    """Return the number of pairs of no subset, which no column counts alone."""
    return counts["overall_micro"] - sum(counts[name] for name in SUBSETS)


def list_notes(results: Mapping[str, Any]) -> list[str]:
    found = list(filter(None, [describe_overlap(results)]))
    missing = results["accuracies"]["model"]["missing_subsets"]
    # With one subset alone the averages are its accuracy.
    if 0 < len(missing) < len(SUBSETS) - 1:
        found.append(f"No pairs of {', '.join(missing)}: the averages run over the other subsets.")
    for name, result in results["accuracies"].items():
        scorer = title_scorer(name, results)
        by_criterion = len(choose_columns(result["num_pairs"])) > 1
        columns = CRITERION_COLUMNS if by_criterion else {NO_SUBSET: "overall_micro"}
        for criterion, column in columns.items():
            total, ties = result["num_pairs"][column], result["num_ties"][column]
            if ties:
                split = format_percent((result["num_correct"][column] + ties / 2) / total)
                pairs = f"{criterion} pairs" if by_criterion else "pairs"
                found.append(f"{scorer}: {ties} of {total} {pairs} tie; {split} if ties are split.")
        if by_criterion and (ties := _count_others(result["num_ties"])):
            found.append(f"{scorer}: {ties} of {_count_others(result['num_pairs'])} pairs of no subset tie.")
        if invalid := result["num_invalid"]["overall_micro"]:
            what = "got no usable answer" if scorer == "judge" else "have a reward that is not finite"
            total = result["num_pairs"]["overall_micro"]
            end = "so there is no accuracy" if invalid == total else "counted as wrong"
            found.append(f"{scorer}: {invalid} of {total} pairs {what}, {end}.")
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


def describe_overlap(results: Mapping[str, Any]) -> str:
    """Report which of the evaluated pairs were trained on; empty for a judge, and for older results."""
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


def _render_synthesizers(results: Mapping[str, Any]) -> str:
    rows = results["by_synthesizer"]
    if not rows:
        return ""
    scorers = list(results["accuracies"])
    left_out = results["left_out_synthesizers"]
    head = ["criterion", "synthesizer", "pairs", "recordings", *(title_scorer(scorer, results) for scorer in scorers)]
    table = []
    for row in rows:
        name = SHOWN_NAMES.get(row["synthesizer"], row["synthesizer"])
        name += " (held out)" if row["synthesizer"] in (left_out or ()) else ""
        cells = (format_estimate(row[scorer]["accuracy"], row[scorer]["interval"]) for scorer in scorers)
        table.append([row["criterion"], name, row["num_pairs"], row[scorers[0]]["num_groups"], *cells])
    if left_out is None:
        marked = "What the model heard in training is not known."
    else:
        trained_on, names = escape_markdown(describe_training(results)), ", ".join(map(escape_markdown, left_out))
        marked = f"Held out of {trained_on}: {names or 'none'}."
    return f"## By synthesizer\n\n{marked}\n\n{_render_table(head, table, num_left=2)}"


def render_judge(judge: Mapping[str, Any]) -> str:
    groups = judge["groups"]
    rows = [["pairs", *(group["num_pairs"] for group in groups)]]
    rows.append(["recordings", *(group["ties"]["num_groups"] for group in groups)])
    for rule in groups[0]["decided_by"]:
        rows.append([f"decided: {rule}", *(group["decided_by"][rule] for group in groups)])
    rows.append(["ties", *(_share(group["ties"]) for group in groups)])
    if judge["kind"] == "pairwise":
        rows.append(["position bias", *(_format_bias(group["position_bias"]) for group in groups)])
        rows.append(["orders agree", *(_share(group["order_agreement"]) for group in groups)])
        for order in groups[0]["one_order"]:
            cells = (_share(group["one_order"][order]) for group in groups)
            rows.append([f"accuracy, {order.replace('_', ' ')}", *cells])
    table = _render_table(["", *(group["criterion"] for group in groups)], rows)
    usable = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in judge["answers"].items())
    spent = f"{judge['prompt_tokens']} tokens in, {judge['completion_tokens']} out"
    cost = "" if judge["usd"] is None else f", {judge['usd']:.2f} US dollars"
    answers = f"{judge['num_answers']} answers ({usable}) in {judge['num_replies']} replies: {spent}{cost}."
    changed = describe_changed(judge.get("changed_parameters", {}))
    parts = ["Shares in percent, 95% intervals.", table, " ".join([answers, *changed])]
    return "\n\n".join(["## The judge", *parts, *filter(None, [render_reasons(judge["problems"])])])


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


def _share(found: Mapping[str, Any]) -> str:
    return format_estimate(found["share"], found["interval"])


def _format_bias(found: Mapping[str, Any]) -> str:
    if found["bias"] is None:
        return _ABSENT
    bounds = found["interval"] and "{:+.1f} to {:+.1f}".format(*(100 * bound for bound in found["interval"]))
    return f"{100 * found['bias']:+.1f} ({bounds or format_interval(None)})"


def render_disagreements(found: Mapping[str, Any]) -> str:
    title = f"## Disagreements with {escape_markdown(found['title'])} ({escape_markdown(found['folder'])})"
    if not found["num_pairs"]:
        return f"{title}\n\nNone: of every pair, both are right or both are wrong."
    head = ["pair", "subset", "right", "margin", "other margin", "confidence"]
    table = []
    for row in found["rows"]:
        margins = [_ABSENT if row[key] is None else f"{row[key]:+.3f}" for key in ("margin", "other_margin")]
        right = "this" if row["is_right"] else "other"
        table.append([row["pair_id"], row["subset"], right, *margins, f"{100 * row['confidence']:.0f}"])
    shown = (
        f"{found['num_pairs']} pairs that only one of the two has right; {len(found['rows'])} with most confidence:"
    )
    return f"{title}\n\n{shown}\n\n{_render_table(head, table, num_left=3)}"


def _describe_timing(timing: Mapping[str, Any]) -> str:
    if timing["real_time_factor"] is None:
        return ""
    hours = timing["audio_s"] / 3600
    return (
        f"Scored {timing['num_pairs']} pairs, {hours:.2f} h of audio, in {timing['scoring_s']:.1f} s: "
        f"real-time factor {timing['real_time_factor']:.4f}."
    )


def format_percent(value: float | None) -> str:
    return _ABSENT if value is None else f"{100 * value:.2f}"


def format_interval(bounds: Sequence[float] | None) -> str:
    """Return the bounds in percent; one recording has none."""
    return "no interval" if bounds is None else f"{100 * bounds[0]:.1f}-{100 * bounds[1]:.1f}"


def format_estimate(share: float | None, bounds: Sequence[float] | None) -> str:
    return f"{format_percent(share)} ({format_interval(bounds)})"


def phrase_interval(bounds: Sequence[float] | None, num_groups: int, what: str = "recordings") -> str:
    """Return the interval for a sentence, with the number of recordings or other groups that it is over."""
    found = format_interval(bounds) if bounds is None else f"95% interval {format_interval(bounds)}"
    return f"{found} over {num_groups} {what.removesuffix('s') if num_groups == 1 else what}"


def _render_table(head: Sequence[str], rows: Sequence[Sequence[Any]], num_left: int = 1) -> str:
    return "\n".join(render_table(head, rows, num_left, pad=True))
