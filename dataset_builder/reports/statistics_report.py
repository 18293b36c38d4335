"""Statistics of a data set folder, read without its audio: Table 1, the panels of Figure 5, hours and distributions.

"Real" is a recording: the chosen side of a modality pair, and both sides of a pair that no synthesizer speaks.
Everything else is synthetic, such as both sides of a colloquialness pair.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.common.files import replace_atomically, write_file
from sdiareward.common.tables import render_table
from sdiareward.esdr_accuracy.pairwise import SUBSETS
from sdiareward.pairs.schema import SIDES, make_stable_id

from ..episodes import is_recorded
from ..formats.shards import SPLITS, read_rows


_BY = ("split", "criterion", "subset", "source", "synthesizer", "language", "license")
# Columns of a pair besides its turns.
LABELS = ("pair_id", "group_id", "primary", "secondary", *_BY[1:])
# Named leaves: the audio is not read.
_COLUMNS = [*LABELS, *(f"{side}.list.element.{leaf}" for side in SIDES for leaf in ("text", "duration_s"))]
_CATEGORY = ("source", "primary", "secondary")
_KINDS = ("real", "synthetic")
_MEASURES = ("dialogue_s", "turns", "turn_s", "words_per_turn")
_COLORS = {"real": "#0072b2", "synthetic": "#d55e00"}
_BIN_S = 10
_CATEGORIES_SHOWN = 30


def compute_statistics(folder: Path, *, split: str | None = None) -> dict[str, Any]:
    pairs: list[dict[str, Any]] = []
    recordings: dict[str, float] = {}
    series: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in _MEASURES} for kind in _KINDS}
    for row_split, row in read_rows(folder, columns=_COLUMNS):
        if split not in (None, row_split):
            continue
        pair = {**{name: row[name] for name in LABELS}, "split": row_split, **dict.fromkeys(_KINDS, 0.0)}
        for side in SIDES:
            kind = _KINDS[not is_recorded(row["criterion"], side, row["synthesizer"])]
            durations_s = [turn["duration_s"] for turn in row[side]]
            measured = series[kind]
            measured["dialogue_s"].append(sum(durations_s))
            measured["turns"].append(len(durations_s))
            measured["turn_s"].extend(durations_s)
            measured["words_per_turn"].extend(len(turn["text"].split()) for turn in row[side])
            pair[kind] += sum(durations_s)
            if kind == "real":
                heard = make_stable_id(row["group_id"], *(f"{t['text']} {t['duration_s']}" for t in row[side]))
                recordings[heard] = sum(durations_s)
        pairs.append(pair)
    subsets = Counter((pair["subset"], name) for pair in pairs for name in (pair["split"], "total"))
    categories = Counter(tuple(pair[name] for name in _CATEGORY) for pair in pairs)
    return {
        "pairs": len(pairs),
        "groups": len({pair["group_id"] for pair in pairs}),
        "turns": sum(len(measured["turn_s"]) for measured in series.values()),
        "real_h": _to_hours(series["real"]["dialogue_s"]),
        "distinct_real_h": _to_hours(recordings.values()),  # A dialogue of several pairs counts once.
        "synthetic_h": _to_hours(series["synthetic"]["dialogue_s"]),
        "table1": {s: {name: subsets[s, name] for name in (*SPLITS, "total")} for s in SUBSETS},
        "by": {name: _count_by(pairs, name) for name in _BY},
        "categories": [
            {**dict(zip(_CATEGORY, key, strict=True)), "pairs": count}
            for key, count in sorted(categories.items(), key=str)
        ],
        "distributions": {
            kind: {name: _describe_distribution(values) for name, values in measured.items()}
            for kind, measured in series.items()
        },
        "histograms": {
            name: {kind: _compute_histogram(series[kind][name], width) for kind in _KINDS}
            for name, width in (("dialogue_s", _BIN_S), ("turns", 1))
        },
    }


def read_labels(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield `LABELS` and `split` of each pair of a data set folder; no audio is read."""
    for split, row in read_rows(folder, columns=list(LABELS)):
        yield {**row, "split": split}


def _count_by(pairs: Sequence[Mapping[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for pair in pairs:
        groups[str(pair[name])].append(pair)
    return {
        key: {"pairs": len(group), **{f"{kind}_h": _to_hours(pair[kind] for pair in group) for kind in _KINDS}}
        for key, group in sorted(groups.items())
    }


def _to_hours(seconds: Iterable[float]) -> float:
    return round(sum(seconds) / 3600, 4)


def _describe_distribution(values: Sequence[float]) -> dict[str, float] | None:
    """Return mean, deviation, range and percentiles; None for an empty series."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    p5, median, p95 = np.percentile(array, (5, 50, 95))
    numbers = {"mean": array.mean(), "std": array.std(), "min": array.min(), "p5": p5, "median": median}
    numbers |= {"p95": p95, "max": array.max()}
    return {"n": len(values), **{name: round(float(value), 3) for name, value in numbers.items()}}


def _compute_histogram(values: Sequence[float], width: int) -> dict[str, int]:
    """Return the number of values in each bin, by its lower edge; the bins are `width` wide."""
    counts = Counter(math.floor(value / width) * width for value in values)
    return {str(edge): counts[edge] for edge in sorted(counts)}


def write_statistics(folder: Path, output: Path, *, split: str | None = None) -> dict[str, Any]:
    """Write `stats.json`, `stats.md` and `stats.png` to `output`; return the statistics."""
    statistics = compute_statistics(folder, split=split)
    output.mkdir(parents=True, exist_ok=True)
    plot_overview(statistics, output / "stats.png")
    write_file(output / "stats.md", render_statistics(statistics, "stats.png"))
    write_file(output / "stats.json", json.dumps(statistics, indent=2, ensure_ascii=False) + "\n")
    return statistics


def render_statistics(statistics: Mapping[str, Any], figure: str | None = None) -> str:
    """Render the statistics as Markdown; `figure` is the path of the PNG of `plot_overview`, if there is one."""
    lines = [
        "# Statistics",
        "",
        f"{statistics['pairs']} pairs of {statistics['groups']} recordings or dialogues, {statistics['turns']} turns; "
        f"{statistics['real_h']:.2f} h real ({statistics['distinct_real_h']:.2f} h without repetition) against "
        f"{statistics['synthetic_h']:.2f} h synthetic.",
        "",
        *render_table1(statistics["table1"]),
    ]
    for name, counts in statistics["by"].items():
        rows = [[key, c["pairs"], f"{c['real_h']:.2f}", f"{c['synthetic_h']:.2f}"] for key, c in counts.items()]
        lines += ["", *render_table([name, "pairs", "real, h", "synthetic, h"], rows)]
    head = ["side", "measure", "n", "mean", "std", "min", "p5", "median", "p95", "max"]
    rows = [
        [kind, name, *numbers.values()]
        for kind, measures in statistics["distributions"].items()
        for name, numbers in measures.items()
        if numbers
    ]
    lines += ["", *render_table(head, rows)]
    if figure:
        lines += ["", f"![Categories, durations and turns]({figure})"]
    return "\n".join(lines) + "\n"


def render_table1(table: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Render pairs by category and split as the lines of a Markdown table (Table 1 of the paper)."""
    columns = (*SPLITS, "total")
    rows = [[subset, *(counts[name] for name in columns)] for subset, counts in table.items()]
    rows.append(["all", *(sum(counts[name] for counts in table.values()) for name in columns)])
    return render_table(["category", *columns], rows)


def plot_overview(statistics: Mapping[str, Any], path: Path) -> None:
    """Draw the three panels of Figure 5 into a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5), layout="constrained")
    FigureCanvasAgg(figure)
    categories, durations, turns = figure.subplots(1, 3)
    _draw_categories(categories, statistics["categories"])
    _draw_histograms(durations, statistics["histograms"]["dialogue_s"], _BIN_S, shift=0.0)
    # A number of turns is not an interval: its bars are centred on it.
    _draw_histograms(turns, statistics["histograms"]["turns"], 1, shift=-0.45)
    durations.set(title="(b) Duration", xlabel="seconds per dialogue", ylabel="dialogues")
    turns.set(title="(c) Turns", xlabel="turns per dialogue", ylabel="dialogues")
    durations.legend()
    with replace_atomically(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)


def _draw_categories(axes: Any, categories: Sequence[Mapping[str, Any]]) -> None:
    """Draw the pairs of each secondary category, coloured by source; the smallest are summed up."""
    counts: Counter[tuple[str, str]] = Counter()
    for entry in categories:
        counts[entry["source"], entry["secondary"]] += entry["pairs"]
    shown = counts.most_common(_CATEGORIES_SHOWN)
    if rest := counts.total() - sum(count for _, count in shown):
        shown.append((("", f"{len(counts) - len(shown)} more"), rest))
    shown.sort(key=lambda item: (item[0][0], -item[1]), reverse=True)
    sources = sorted({source for (source, _), _ in shown})
    axes.barh(
        [f"{source} · {secondary}" if source else secondary for (source, secondary), _ in shown],
        [count for _, count in shown],
        color=[f"C{sources.index(source) + 2}" for (source, _), _ in shown],
    )
    axes.tick_params(axis="y", labelsize=7)
    axes.set(title="(a) Category", xlabel="pairs")


def _draw_histograms(axes: Any, histograms: Mapping[str, Mapping[str, int]], width: int, shift: float) -> None:
    for number, (kind, counts) in enumerate(histograms.items()):
        lefts = [int(edge) + (0.45 * number + shift) * width for edge in counts]
        axes.bar(lefts, list(counts.values()), width=0.45 * width, align="edge", label=kind, color=_COLORS[kind])
    axes.grid(axis="y", alpha=0.3)
