"""Statistics of a ChatReward folder, read without its audio: Table 4, and figures 6 and 7 of the WavReward paper."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sdiareward.common.files import replace_atomically, write_file
from sdiareward.common.markdown import render_table

from ...formats.shards import read_rows
from .schema import CATEGORIES, PARTS, SPLITS


_BY = ("split", "part", "attribute", "score", "topic", "synthesizer", "language", "license")
_COLUMNS = (
    *("sample_id", "scenario_id", "part", "attribute", "category", "response_category", "topic", "score"),
    *("design_score", "question", "response", "duration_s", "synthesizer", "language", "license"),
    *("question_wer", "response_wer"),
)
_WORDS_SHOWN = 120
# Okabe and Ito's colours and two greys, which differ in lightness too.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#555555", "#aaaaaa")
# The most common English words tell nothing about a dialogue.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a about all am an and any are as at be but by can could do for from has have how i if in into is it its me "
        "my no not now of on one or our out put so that the their them then there they this to two up was we what "
        "when where which who will with would you your",
    )
)


def read_labels(folder: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the columns of each sample but its audio, and its `split`."""
    for split, row in read_rows(Path(folder), _COLUMNS):
        yield {**row, "split": split}


def compute_statistics(folder: str | Path) -> dict[str, Any]:
    """Return the statistics of a ChatReward folder.

    Returns:
        `dict[str, Any]`: `samples`, `hours`; `scenarios` by split; `by`: samples and hours by split, part, attribute,
        score, topic, synthesizer, language and licence; `table4`: attribute, categories present (of the voices that
        are asked for or heard), samples and hours, the content part as a row of its own; `categories`: samples by
        attribute and category; `words`: how often each word is spoken, without the most common words;
        `mean_wer` of the lines that were checked, None without any.

    Raises:
        FileNotFoundError: The folder holds no shards.
    """
    rows = list(read_labels(folder))
    scenarios = {(row["split"], row["scenario_id"]) for row in rows}
    rates = [row[name] for row in rows for name in ("question_wer", "response_wer") if row[name] is not None]
    return {
        "samples": len(rows),
        "hours": _sum_hours(rows),
        "scenarios": {split: sum(name == split for name, _ in scenarios) for split in SPLITS},
        "by": {name: _count(rows, name) for name in _BY},
        "table4": [_make_table4_row(name, rows) for name in (*CATEGORIES, None)],
        "categories": {
            name: dict(Counter(str(row["category"]) for row in rows if row["attribute"] == name))
            for name in CATEGORIES
        },
        "words": dict(_count_words(rows).most_common(_WORDS_SHOWN)),
        "mean_wer": round(sum(rates) / len(rates), 4) if rates else None,
    }


def _sum_hours(rows: Sequence[Mapping[str, Any]]) -> float:
    return round(sum(row["duration_s"] for row in rows) / 3600, 4)


def _count(rows: Sequence[Mapping[str, Any]], column: str) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[str(row[column])].append(row)
    return {name: {"samples": len(group), "hours": _sum_hours(group)} for name, group in sorted(groups.items())}


def _make_table4_row(attribute: str | None, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = [row for row in rows if row["attribute"] == attribute]
    found = {row["category"] for row in own}
    categories = [name for name in CATEGORIES[attribute] if name in found] if attribute else []
    return {
        "attribute": attribute or "content",
        "categories": categories,
        "samples": len(own),
        "hours": _sum_hours(own),
    }


def _count_words(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Count the words of questions (once for each scenario) and answers, lower case, without the commonest."""
    texts = {row["question"] for row in rows} | {row["response"] for row in rows}
    words = (word for text in sorted(texts) for word in re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower()))
    return Counter(word for word in words if word not in _COMMON)


def write_statistics(folder: str | Path, output: str | Path, *, stem: str = "chatreward") -> dict[str, Any]:
    """Write `STEM_statistics.json` and `.md`, `STEM_attributes.png` (figure 6) and `STEM_words.png` (figure 7).

    Raises:
        FileNotFoundError: `folder` holds no shards.
    """
    statistics, output = compute_statistics(folder), Path(output)
    output.mkdir(parents=True, exist_ok=True)
    figures = (f"{stem}_attributes.png", f"{stem}_words.png")
    plot_attributes(statistics, output / figures[0])
    draw_words(statistics, output / figures[1])
    write_file(output / f"{stem}_statistics.md", render_statistics(statistics, figures))
    text = json.dumps(statistics, indent=2, ensure_ascii=False)
    write_file(output / f"{stem}_statistics.json", text + "\n")
    return statistics


def render_table4(statistics: Mapping[str, Any]) -> list[str]:
    """Render samples and hours by attribute as the lines of a Markdown table (Table 4)."""
    rows = [
        [row["attribute"], ", ".join(row["categories"]), row["samples"], f"{row['hours']:.2f}"]
        for row in statistics["table4"]
    ]
    rows.append(["all", "", statistics["samples"], f"{statistics['hours']:.2f}"])
    return render_table(["attribute", "categories", "samples", "hours"], rows)


def render_statistics(statistics: Mapping[str, Any], figures: Sequence[str] = ()) -> str:
    """Render the statistics as Markdown."""
    scenarios = statistics["scenarios"]
    lines = [
        "# ChatReward: statistics",
        "",
        f"{statistics['samples']} samples, {statistics['hours']:.2f} h, of {sum(scenarios.values())} scenarios "
        f"({scenarios['train']} in train, {scenarios['test']} in test).",
        "",
        *render_table4(statistics),
    ]
    for name in ("part", "split", "score", "synthesizer", "language"):
        counts = statistics["by"][name]
        order = [key for key in PARTS if key in counts] if name == "part" else list(counts)
        rows = [
            [
                key,
                counts[key]["samples"],
                f"{counts[key]['samples'] / statistics['samples']:.0%}",
                counts[key]["hours"],
            ]
            for key in order
        ]
        lines += ["", *render_table([name, "samples", "share", "hours"], rows)]
    lines += [line for figure in figures for line in ("", f"![{Path(figure).stem}]({figure})")]
    return "\n".join(lines) + "\n"


def plot_attributes(statistics: Mapping[str, Any], path: Path) -> None:
    """Draw the samples of each attribute as a pie and of each category as bars into a PNG (figure 6)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    shares, bars = figure.subplots(1, 2, width_ratios=(1, 1.4))
    present = [name for name in CATEGORIES if statistics["categories"][name]]
    colors = dict(zip(CATEGORIES, _COLORS, strict=True))
    sizes = [sum(statistics["categories"][name].values()) for name in present]
    labels = [f"{name} {size}" for name, size in zip(present, sizes, strict=True)]
    shares.pie(sizes, labels=labels, colors=[colors[name] for name in present], startangle=90, counterclock=False)
    shares.set_title("samples by attribute")
    entries = [(name, category) for name in present for category in CATEGORIES[name]]
    entries = [entry for entry in entries if statistics["categories"][entry[0]].get(entry[1])][::-1]
    counts = [statistics["categories"][name][category] for name, category in entries]
    names = [f"{name}: {category}" for name, category in entries]
    bars.barh(names, counts, color=[colors[name] for name, _ in entries], edgecolor="#333333", linewidth=0.4)
    bars.tick_params(axis="y", labelsize=7)
    bars.margins(y=0.01)
    bars.set(title="samples by category", xlabel="samples")
    with replace_atomically(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120, metadata={"Software": None})


def draw_words(statistics: Mapping[str, Any], path: Path) -> None:
    """Draw the most frequent words as a cloud into a PNG, with the package `wordcloud` (figure 7)."""
    from wordcloud import WordCloud

    cloud = WordCloud(width=1000, height=560, background_color="white", random_state=0, colormap="cividis")
    with replace_atomically(path) as temporary:
        cloud.generate_from_frequencies(statistics["words"]).to_image().save(temporary, format="png")
