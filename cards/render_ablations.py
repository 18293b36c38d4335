"""Render the tables of an ablation: `python -m sdiareward.cards.render_ablations` renders the guide.

All numbers come from a result of `benchmarks.ablations`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_table
from sdiareward.esdr_accuracy.pairwise import COLUMNS

from .render import render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "ablations.md"
RESULT = _ROOT / "benchmarks" / "results" / "ablations_nano.json"
_POOLINGS = {"last_token": "last token", "attention": "attention", "mean": "mean"}
# With fewer groups in a subset, a bootstrap over groups says nothing.
_MIN_GROUPS = 5
_FEW_COLUMNS = ("modality_micro", "colloquialness", "overall_micro")

Rows = Sequence[Mapping[str, Any]]
Result = Mapping[str, Any]


def render_guide(guide: str, result: Path = RESULT) -> str:
    """Return the guide with its numbers taken from a result file.

    Args:
        guide (`str`): Text with a block for each name of `render_blocks`.
        result (`Path`): What `benchmarks.ablations` wrote.
    """
    return render_readme(guide, render_blocks(json.loads(result.read_text(encoding="utf-8"))))


def render_report(result: Result) -> str:
    """Render all tables of a result as Markdown.

    Args:
        result (`Mapping`): What `benchmarks.ablations` found.
    """
    titles = {
        "pairs": "Pairs",
        "table4": "Table 4",
        "table6": "Table 6",
        "lambda": "Centering coefficient",
        "layers": "Layers",
        "freeze": "Frozen parts",
        "learning_rates": "Learning rates",
        "cost": "Time",
    }
    blocks = render_blocks(result)
    parts = [f"# Ablations of {result['arguments']['recipe']}"]
    parts += [f"## {title}\n\n{blocks[name]}" for name, title in titles.items()]
    return "\n\n".join(parts) + "\n"


def render_blocks(result: Result) -> dict[str, str]:
    """Render each table of a result; one that was not asked for says so.

    Args:
        result (`Mapping`): What `benchmarks.ablations` found.

    Returns:
        `dict[str, str]`: Markdown under `pairs`, `table4`, `table6`, `lambda`, `layers`, `freeze`, `learning_rates`
        and `cost`.
    """
    renderers = {
        "table4": ("table6", _table4),
        "table6": ("table6", _table6),
        "lambda": ("lambda", _lambda),
        "layers": ("layers", _layers),
        "freeze": ("freeze", _freeze),
        "learning_rates": ("learning_rates", _learning_rates),
    }
    blocks = {
        name: render(result["rows"][part], result)
        if result["rows"].get(part)
        else f"Not run: `--only {part}` does it."
        for name, (part, render) in renderers.items()
    }
    return {"pairs": _pairs(result), **blocks, "cost": _cost(result)}


def _pairs(result: Result) -> str:
    subsets = sorted({subset for split in result["pairs"].values() for subset in split})
    rows = [
        [
            split,
            *(_count(counts.get(subset)) for subset in subsets),
            str(sum(each["pairs"] for each in counts.values())),
        ]
        for split, counts in result["pairs"].items()
    ]
    of = "" if result["num_pairs"] == result["num_pairs_of_data_set"] else f" of {result['num_pairs_of_data_set']}"
    skipped = {title: len(pairs) for title, pairs in result["skipped"].items() if pairs}
    note = f"{result['num_pairs']}{of} pairs; in each cell pairs and, in brackets, groups (recordings)."
    if skipped:
        note += f" Left out because a recording cannot be read: {skipped}."
    return "\n".join([*render_table(["split", *map(_title, subsets), "all"], rows, num_left=2), "", note])


def _count(counts: Mapping[str, int] | None) -> str:
    return "-" if counts is None else f"{counts['pairs']} ({counts['groups']})"


def _table4(rows: Rows, result: Result) -> str:
    coefficient = max(row["lambda"] for row in rows)
    lines = []
    for row in rows:
        if row["lambda"] == coefficient:
            lines.append([row["backbone"], f"pooling: {_POOLINGS[row['features']]}", *_accuracies(row, _FEW_COLUMNS)])
    for row in rows:
        if row["features"] == "mean":
            lines.append([row["backbone"], f"loss: {name_centering(row)}", *_accuracies(row, _FEW_COLUMNS)])
    lines.sort(key=lambda line: [row["backbone"] for row in rows].index(line[0]))
    lines += _baselines(result["baselines"], _FEW_COLUMNS)
    return "\n".join(render_table(["", "setting", *map(_title, _FEW_COLUMNS), "ties", "n"], lines, num_left=2))


def _table6(rows: Rows, result: Result) -> str:
    groups = [counts["groups"] for counts in result["pairs"]["test"].values()]
    lines = [
        [row["backbone"], f"{_POOLINGS[row['features']]}, {name_centering(row)}", *_accuracies(row)] for row in rows
    ]
    lines += _baselines(result["baselines"])
    heads = ["", "head", *map(_title, COLUMNS), "ties", "n"]
    note = (
        f"Percent; mean and 95% interval over {rows[0]['num_seeds']} seeds, which differ in the order of the pairs. "
        "Ties count as wrong; the most of any seed is given."
    )
    if min(groups) < _MIN_GROUPS:
        note += (
            f" The test pairs stem from {sum(groups)} recordings, of a subset from as few as {min(groups)}: no "
            "interval over recordings can be given."
        )
    else:
        heads.append("overall micro, 95% over groups")
        intervals = [row["interval"] for row in rows]
        intervals += [measured["accuracy"]["interval"] for measured in result["baselines"].values()]
        lines = [[*line, _interval(interval)] for line, interval in zip(lines, intervals, strict=True)]
        note += " The last column is the interval over groups of test pairs, of the first seed."
    return "\n".join([*render_table(heads, lines, num_left=2), "", note])


def _interval(intervals: Mapping[str, Sequence[float]]) -> str:
    low, high = intervals["overall_micro"]
    return f"{100 * low:.1f}-{100 * high:.1f}"


def _lambda(rows: Rows, result: Result) -> str:
    lines = [
        [
            row["backbone"],
            f"{row['lambda']:g}",
            *_accuracies(row, _FEW_COLUMNS),
            *(_number(row[name]) for name in ("chosen", "rejected", "margin", "eval_loss")),
        ]
        for row in rows
    ]
    baselines = [[*line, "", "", "", ""] for line in _baselines(result["baselines"], _FEW_COLUMNS)]
    heads = ["", "lambda", *map(_title, _FEW_COLUMNS), "ties", "n", "mean chosen", "mean rejected", "margin", "loss"]
    note = "Rewards of the test pairs; the loss is that of the validation pairs, centering term included."
    return "\n".join([*render_table(heads, [*lines, *baselines], num_left=2), "", note])


def _layers(rows: Rows, result: Result) -> str:
    lines = [[row["backbone"], name_layer(row["features"]), *_accuracies(row)] for row in rows]
    lines += _baselines(result["baselines"])
    return "\n".join(render_table(["", "mean of layer", *map(_title, COLUMNS), "ties", "n"], lines, num_left=2))


def name_layer(features: str) -> str:
    """Return what to call the layer behind a feature set."""
    if features == "mean":
        return "last, normed"
    number = features.removeprefix("layer_")
    return "0 (embeddings)" if number == "0" else number


def _freeze(rows: Rows, result: Result) -> str:
    lines = []
    for row in rows:
        numbers = (_number(row["margin"]), _number(row["seconds"], 0))
        lines.append([row["mode"], f"{row['learning_rate']:g}", *_accuracies(row), *numbers])
    lines += [[*line, "", ""] for line in _baselines(result["freeze_baselines"])]
    heads = ["trained", "learning rate", *map(_title, COLUMNS), "ties", "n", "margin", "s"]
    pairs = {split: sum(each["pairs"] for each in counts.values()) for split, counts in result["freeze_pairs"].items()}
    note = (
        f"{rows[0]['backbone'].capitalize()}; {pairs['train']} pairs to train on, {pairs['validation']} to select by, "
        f"{pairs['test']} to measure on, {rows[0]['num_seeds']} seed{'s' * (rows[0]['num_seeds'] > 1)}: enough to "
        "see that each mode runs, not to rank them."
    )
    return "\n".join([*render_table(heads, lines, num_left=2), "", note])


def _learning_rates(rows: Rows, result: Result) -> str:
    rates = sorted({row["learning_rate"] for row in rows})
    losses: dict[tuple[str, str], dict[float, float]] = {}
    for row in rows:
        losses.setdefault((row["backbone"], row["features"]), {})[row["learning_rate"]] = row["eval_loss"]["mean"]
    lines = []
    for (backbone, features), by_rate in losses.items():
        best = min(by_rate.values())
        cells = [f"**{loss:.4f}**" if loss == best else f"{loss:.4f}" for loss in map(by_rate.__getitem__, rates)]
        lines.append([backbone, _POOLINGS.get(features, features.replace("_", " ")), *cells])
    note = f"Loss of the validation pairs after {result['arguments']['epochs']:g} epochs at most; the lowest is taken."
    heads = ["", "features", *(f"{rate:g}" for rate in rates)]
    return "\n".join([*render_table(heads, lines, num_left=2), "", note])


def _cost(result: Result) -> str:
    if "cost" not in result:
        return (
            "Not measured: the run behind this page was stopped and taken up again, and not all of its time was kept."
        )
    rows = [
        [stage, f"{seconds['wall_s']:.0f} s", f"{seconds['cpu_s']:.0f} s"] for stage, seconds in result["cost"].items()
    ]
    wall, cpu = (sum(each[name] for each in result["cost"].values()) for name in ("wall_s", "cpu_s"))
    rows.append(["all", f"{wall:.0f} s", f"{cpu:.0f} s"])
    cores = result["cpu"]["usable_cores"]
    note = (
        f"{result['num_runs']} runs, {result['cpu']['name']}, {cores} cores. Where the processor time, divided by the "
        "cores, is well below the time, others used the machine."
    )
    return "\n".join([*render_table(["stage", "time", "processor time"], rows, num_left=2), "", note])


def _accuracies(row: Mapping[str, Any], columns: Sequence[str] = COLUMNS) -> list[str]:
    """Return the cells of a row: accuracies, then the most ties of any seed and the number of pairs."""
    cells = [_percent(row["accuracy"][name]) for name in columns]
    return [*cells, str(row["num_ties"]["overall_micro"]), str(row["num_pairs"]["overall_micro"])]


def _baselines(found: Mapping[str, Any], columns: Sequence[str] = COLUMNS) -> list[list[str]]:
    """Return a line for each baseline."""
    lines = []
    for kind, measured in found.items():
        accuracy = measured["accuracy"]
        cells = ["-" if accuracy[name] is None else f"{100 * accuracy[name]:.2f}" for name in columns]
        counts = [str(accuracy[name]["overall_micro"]) for name in ("num_ties", "num_pairs")]
        lines.append([kind, "baseline", *cells, *counts])
    return lines


def name_centering(row: Mapping[str, Any]) -> str:
    """Return what to call the lambda of a row."""
    return f"lambda {row['lambda']:g}" if row["lambda"] else "no centering"


def _percent(found: Mapping[str, float | None] | None) -> str:
    if found is None:
        return "-"
    mean, half = found["mean"], found["half_width"]
    return f"{100 * (mean or 0):.2f}" + ("" if half is None else f" ± {100 * half:.2f}")


def _number(found: Mapping[str, float], digits: int = 2) -> str:
    return f"{found['mean']:.{digits}f}"


def _title(name: str) -> str:
    titles = {"semi_wild": "semi-wild", "colloquialness": "colloq."}
    return titles.get(name, name.replace("_", " "))


if __name__ == "__main__":
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))
