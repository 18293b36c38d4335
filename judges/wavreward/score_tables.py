"""Render an evaluation of judges as Markdown: Table 1 with its intervals, confusion, order, form and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sdiareward.common.escaping import escape_markdown
from sdiareward.common.tables import render_table
from sdiareward.evaluation.summary import describe_changed, format_interval, format_percent

from .answers import SCORES
from .score_metrics import COLUMNS, INVALID, OUT_OF_DOMAIN


JUDGE = "judge"
TITLES = {
    **{name: name for name in COLUMNS},
    OUT_OF_DOMAIN: "out of domain",
    "overall_micro": "micro",
    "overall_macro": "macro",
    "all_columns_macro": "macro with out of domain",
}
_ABSENT = "-"
_AVERAGES = ("overall_micro", "overall_macro", "all_columns_macro")

Summary = Mapping[str, Any]


def render_evaluation(results: Mapping[str, Any]) -> str:
    """Render `results.json` of `evaluate` as Markdown that also reads well in a terminal."""
    config, scorers = results["config"], results["scorers"]
    names = find_shown_columns(scorers.values())
    how = "thoughts before the score" if config["reasoning"] else "the score alone"
    parts = [
        f"# {config['judge'] or config['model']} on {config['dataset']}, split {config['split']}",
        f"Requested: {how}. Scores that are exactly right in percent, higher is better; 95% intervals over scenarios. "
        "An answer without a score is wrong.",
        "\n".join(render_table_one(scorers, names)),
        "\n".join(f"- {note}" for note in _list_notes(results)),
        "## Order and distance\n\n" + "\n".join(_render_distances(scorers)),
        *(_render_details(title, scorers[JUDGE][where]) for title, where in _PLACES if scorers[JUDGE][where]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


_PLACES = (("benchmark", "in_domain"), ("out of domain", OUT_OF_DOMAIN))


def find_shown_columns(summaries: Any) -> list[str]:
    """Return the columns, then the averages, that at least one summary has."""
    found = list(summaries)
    names = [name for name in COLUMNS if any(each["columns"][name] for each in found)]
    return names + [name for name in _AVERAGES if any(each[name] for each in found)]


def render_table_one(scorers: Mapping[str, Summary], names: Sequence[str]) -> list[str]:
    rows = []
    first = next(iter(scorers.values()))
    for field, title in (("num_samples", "samples"), ("num_scenarios", "scenarios")):
        rows.append([title, *(str((_find_cell(first, name) or {}).get(field, "")) for name in names)])
    for title, summary in scorers.items():
        cells = [_find_cell(summary, name) for name in names]
        rows.append(
            [f"**{title}**", *(_ABSENT if cell is None else format_percent(cell["accuracy"]) for cell in cells)]
        )
        rows.append(["95%", *(_ABSENT if cell is None else format_interval(cell["interval"]) for cell in cells)])
        if any(cell and cell.get("num_cut") for cell in cells):
            rows.append(["cut", *(str(cell.get("num_cut", "")) if cell else _ABSENT for cell in cells)])
    return render_table(["", *(TITLES[name] for name in names)], rows)


def _find_cell(summary: Summary, name: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = summary[name] if name in _AVERAGES else summary["columns"][name]
    return found


def _list_notes(results: Mapping[str, Any]) -> list[str]:
    judge = results["scorers"][JUDGE]
    found = ["`macro` is the plain mean of the benchmark's columns."]
    if absent := [TITLES[name] for name in COLUMNS if not judge["columns"][name]]:
        found.append(f"No samples of {', '.join(absent)}: averages run over the other columns.")
    whole = judge["overall_micro"]
    end = ", so there is no accuracy" if whole["accuracy"] is None else " and count as wrong"
    found.append(f"{whole['num_invalid']} of {whole['num_samples']} answers have no score{end}.")
    if whole["num_cut"]:
        found.append(
            f"{whole['num_cut']} of these were cut at the token limit; max_new_tokens (of an endpoint: max_tokens) "
            "raises it."
        )
    found += [f"For example: {escape_markdown(reason)}" for reason in results["problems"]]
    found += describe_changed(results["changed_parameters"])
    if results["skipped"]:
        num_skipped = len(results["skipped"])
        found.append(f"{num_skipped} samples were skipped; the skipped files list the reasons.")
    if fitted := results.get("num_train"):
        found.append(f"Baselines were fitted on {fitted} training samples; `text` uses no audio, `acoustic` no text.")
    return found


def _render_distances(scorers: Mapping[str, Summary]) -> list[str]:
    """Return a table of the distance from the gold score and the order within scenarios, by scorer and data set."""
    rows = []
    for title, summary in scorers.items():
        for place, where in _PLACES:
            if not summary[where]:
                continue
            error, order = summary[where]["mean_absolute_error"], summary[where]["order"]
            rows.append([f"**{title}**", place, *_format_error(error), *_order_cells(order)])
            if expected := summary[where]["expected_order"]:
                rows.append([f"**{title}**, expected score", place, *[_ABSENT] * 3, *_order_cells(expected)])
    heads = ("scenarios", "mean absolute error", "95%", "triples", "scenarios", "in order", "95%")
    return render_table(["", "samples", *heads, "tied", "inverted", INVALID], rows, num_left=2)


def _format_error(error: Mapping[str, Any]) -> list[str]:
    bounds = error["interval"]
    value = _ABSENT if error["error"] is None else f"{error['error']:.2f}"
    return [str(error["num_scenarios"]), value, _ABSENT if bounds is None else f"{bounds[0]:.2f}-{bounds[1]:.2f}"]


def _order_cells(order: Mapping[str, Any]) -> list[str]:
    share = [format_percent(order["share_ordered"]), format_interval(order["interval"])]
    counts = [str(order[f"num_{name}"]) for name in ("triples", "scenarios", "tied", "inverted", INVALID)]
    return [*counts[:2], *share, *counts[2:]]


def _render_details(place: str, answers: Mapping[str, Any]) -> str:
    answered = [*map(str, SCORES), INVALID]
    rows = [
        [gold, *(str(counts[name]) for name in answered)]
        for gold, counts in answers["confusion"].items()
        if any(counts.values())
    ]
    table = "\n".join(render_table(["gold", *answered], rows))
    return f"## Scores of the judge, {place}\n\n{table}\n\n{render_cost(answers['form'])}"


def render_cost(form: Mapping[str, Any]) -> str:
    factor = form["real_time_factor"]
    cost = "" if factor is None else f", real-time factor {factor:.4f}"
    return (
        f"{format_percent(form['share_follows_format'])}% of the answers have exactly the requested form, "
        f"{format_percent(form['share_valid'])}% have a score; {form['mean_tokens']:.1f} tokens each; "
        f"{form['seconds']:.1f} s for {form['audio_s']:.1f} s of audio{cost}."
    )
