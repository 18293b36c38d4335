"""The card, the report and the statistics of a data set folder, read without its audio.

The statistics are Table 1, the panels of Figure 5, hours and distributions. "Real" means recorded: the chosen side of
a modality pair, and both sides of a pair without a synthesizer. Everything else is synthetic, such as both sides of a
colloquialness pair.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import yaml

from sdiareward.common.errors import Skipped
from sdiareward.common.files import replace_atomically, write_file
from sdiareward.common.package import CARDS
from sdiareward.common.tables import escape_code, escape_markdown, render_table
from sdiareward.esdr_accuracy.pairwise import SUBSETS
from sdiareward.pairs.schema import JOINT, SIDES, make_stable_id

from ..episodes import is_recorded
from ..shards import COUNTED, SPLITS, read_rows


# Tags of our data sets on the Hub.
HEADER: dict[str, Any] = {
    "pretty_name": "SDiaReward pairs",
    "task_categories": ["audio-classification"],
    "tags": ["spoken-dialogue", "reward-model", "preference"],
}
# The purpose for which the speakers of a source were recorded.
_SPOKE_FOR = {
    "amazon_queen": "The actors of {} were recorded for a game, not for speech research.",
    "asterisk": "The announcer of {} was recorded for telephone systems, not for speech research.",
    "meld": "The actors of {} were recorded for television, not for speech research.",
    "sample": "The actors and the announcer of {} were recorded for a game and telephone systems, not for research.",
    "youtube": "People in recordings from the web ({}) may not have agreed to publication.",
}
_UNKNOWN_SPEAKERS = "We do not know what the speakers of {} were recorded for or agreed to; ask its publisher."
# Sources without recordings of people.
_SYNTHETIC_ONLY = ("balanced_scripts", "colloquial_scripts")
_BY = ("split", "criterion", "subset", "source", "synthesizer", "language", "license")
# Columns of a pair other than its turns.
LABELS = ("pair_id", "group_id", "primary", "secondary", *_BY[1:])
# Leaf columns, so that audio is not read.
_COLUMNS = [*LABELS, *(f"{side}.list.element.{leaf}" for side in SIDES for leaf in ("text", "duration_s"))]
_CATEGORY = ("source", "primary", "secondary")
_KINDS = ("real", "synthetic")
_MEASURES = ("dialogue_s", "turns", "turn_s", "words_per_turn")
_COLORS = {"real": "#0072b2", "synthetic": "#d55e00"}
_BIN_S = 10
_CATEGORIES_SHOWN = 30


def make_report(
    folder: Path, counts: Any, skipped: Sequence[Skipped], settings: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """Return the report of a data set folder with complete shards."""
    try:
        rows = [(split, row) for split, row in read_rows(folder, ["language", "group_id"])]
    except FileNotFoundError:  # No pairs are left.
        rows = []
    report = {"build_id": make_content_id(folder), **more, "config": dict(settings), "pairs": list(counts)}
    report |= {"languages": list_languages(row["language"] for _, row in rows)}
    report |= {"groups": count_groups((split, row["group_id"]) for split, row in rows)}
    return {**report, **summarise_skipped(skipped)}


def write_report(folder: Path, *args: Any, **more: Any) -> dict[str, Any]:
    """Write `README.md` and `report.json` of a data set folder; arguments as in `make_report`."""
    report = make_report(folder, *args, **more)
    return save_report(folder, report, render_card(report))


def save_report(folder: Path, report: dict[str, Any], card: str) -> dict[str, Any]:
    """Write the card of a folder and then its report, which marks the folder as complete; return the report."""
    write_file(folder / "README.md", card)
    write_file(folder / "report.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report


def read_report(folder: Path) -> dict[str, Any]:
    path = folder / "report.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def read_finished(folder: Path, plan_id: str) -> dict[str, Any] | None:
    """Return the report of a complete folder with this `plan_id`, a hash of its settings, else None."""
    report = read_report(folder) if (folder / "data").is_dir() else {}
    return report if report.get("plan_id") == plan_id else None


def read_public_settings(folder: Path) -> dict[str, Any]:
    """Return the seed and channel of a build from its report; its other settings may have local paths."""
    config = read_report(folder).get("config", {})
    return {key: config.get(key) for key in ("seed", "channel")}


def count_groups(groups: Iterable[tuple[str, str]]) -> dict[str, int]:
    found = set(groups)
    return {"all": len({group for _, group in found}), **Counter(split for split, _ in sorted(found))}


def describe_groups(report: Mapping[str, Any]) -> str:
    """Describe the number of groups and why some were joined; empty without counts."""
    counts, joined = report.get("groups") or {}, report.get("joined") or {}
    text = ", ".join(f"{split} {count}" for split, count in counts.items())
    if joined.get("groups"):
        copies = f"{joined['equal_copies']} recordings are equal copies, {joined['near_copies']} near copies"
        shared = f"{joined['groups']} with shared recordings were joined: {joined['by_file']} share a file, {copies}"
        text += f" ({shared})"
    return text and f"groups: {text}"


def list_languages(codes: Iterable[str | None]) -> list[str]:
    """Return the known languages of codes such as `en-US`, in the Hub's form."""
    return sorted({code.partition("-")[0].lower() for code in codes if code and code != "und"})


def summarise_skipped(skipped: Sequence[Skipped]) -> dict[str, Any]:
    """Return the report's entries on skipped items: counts by kind, and all items with reasons."""
    drops = Counter(skip.kind for skip in skipped)
    return {"drops": dict(sorted(drops.items())), "skipped": [asdict(skip) for skip in skipped]}


def make_content_id(folder: Path) -> str:
    """Return 16 hexadecimal digits that depend only on the shards of a data set folder."""
    digest = hashlib.sha256()
    for path in sorted((folder / "data").rglob("*.parquet")):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def summarise(report: Mapping[str, Any]) -> str:
    """Summarise a run: pairs, hours, skipped items by kind, each with its first reason."""
    rows = report["pairs"]
    lines = [f"{sum(row['pairs'] for row in rows)} pairs"]
    if rows and "chosen_h" in rows[0]:
        hours = [sum(row[f"{side}_h"] for row in rows) for side in SIDES]
        lines[0] += f", {hours[0]:.2f} h chosen, {hours[1]:.2f} h rejected"
    for name in COUNTED:
        counts: Counter[str] = Counter()
        for row in rows:
            counts[row[name]] += row["pairs"]
        lines.append(f"  by {name}: " + ", ".join(f"{key} {count}" for key, count in sorted(counts.items())))
    lines += [f"  by {text}"] if (text := describe_groups(report)) else []
    lines.append(f"{len(report['skipped'])} skipped")
    for kind, count in report["drops"].items():
        first = next(skip for skip in report["skipped"] if skip["kind"] == kind)
        lines.append(f"  {kind}: {count}; the first: {first['item']}: {' '.join(first['reason'].split())}")
    return "\n".join(lines)


def render_card(
    report: Mapping[str, Any], *, header: str | None = None, publication: str = "", name: str = "sdiareward"
) -> str:
    """Render the card of a folder that `datasets` loads by `name`."""
    rows, config, skipped = report["pairs"], report["config"], len(report["skipped"])
    channel = json.dumps(config["channel"]) if config.get("channel") else "off"
    sources = sorted({*(report.get("sources") or {row["source"] for row in rows})} - {*_SYNTHETIC_ONLY})
    speakers = [_SPOKE_FOR.get(source, _UNKNOWN_SPEAKERS).format(escape_code(source)) for source in sources]
    known = (report.get("bench") or {}).get("num_known_groups")
    groups = f"{known} groups of the test split have other pairs in training" if known else ""
    return Template((CARDS / "dataset_card.md").read_text(encoding="utf-8")).substitute(
        header=render_header(report, list_configs(rows)) if header is None else header,
        table="\n".join(render_table(list(rows[0]), [list(row.values()) for row in rows], num_left=5)) if rows else "",
        total=sum(row["pairs"] for row in rows),
        skipped=f"{skipped} {'item was' if skipped == 1 else 'items were'} skipped",
        channel=escape_code(channel if "channel" in config else "not recorded"),
        speakers=" ".join(speakers) or "There are no recordings of people.",
        seed=escape_markdown(config.get("seed", "none")),
        publication=publication,
        groups=". ".join(filter(None, [groups or "each group is in only one split", describe_groups(report)])),
        name=name,
        split=next((split for split in SPLITS if any(row["split"] == split for row in rows)), SPLITS[0]),
    )


def render_header(report: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], **changes: Any) -> str:
    """Render the header of a folder's card; `changes` replace values of `HEADER`."""
    # `datasets` caches a local folder by its name and card, not its files. Without the description, it could return
    # this build for another one in a folder of the same name.
    configs = [{**config, "description": f"build {report['build_id']}"} for config in configs]
    languages = {"language": report["languages"]} if report.get("languages") else {}
    header = {**HEADER, **changes, **languages, "license": "other", "configs": configs}
    return yaml.safe_dump(header, sort_keys=False, allow_unicode=True).strip()


def list_configs(rows: Sequence[Mapping[str, Any]], folder: str = "data") -> list[dict[str, Any]]:
    """Return the configurations of a data set: everything, each criterion, and the benchmark (the test split)."""
    configs = []
    for name in ("default", *sorted({row["criterion"] for row in rows}), "esdr_bench"):
        files: list[dict[str, Any]] = []
        for split in ("test",) if name == "esdr_bench" else SPLITS:
            present = sorted({row["criterion"] for row in rows if row["split"] == split})
            if name in present:
                files.append({"split": split, "path": f"{folder}/{name}/{split}-*.parquet"})
            elif name in ("default", "esdr_bench"):
                # Families are tested separately from the paper's pairs.
                wanted = [criterion for criterion in present if criterion != JOINT or split != "test"]
                paths = [f"{folder}/{criterion}/{split}-*.parquet" for criterion in wanted]
                if wanted:
                    path = f"{folder}/*/{split}-*.parquet" if wanted == present else paths
                    files.append({"split": split, "path": path})
        if files:
            configs.append({"config_name": name, "data_files": files})
    return configs


def read_labels(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield `LABELS` and `split` of each pair in a data set folder, without reading audio."""
    for split, row in read_rows(folder, columns=list(LABELS)):
        yield {**row, "split": split}


def compute_statistics(folder: Path, *, split: str | None = None) -> dict[str, Any]:
    pairs: list[dict[str, Any]] = []
    recordings: dict[str, float] = {}
    series: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row_split, row in read_rows(folder, columns=_COLUMNS):
        if split not in (None, row_split):
            continue
        pair = {**{name: row[name] for name in LABELS}, "split": row_split, **dict.fromkeys(_KINDS, 0.0)}
        for side in SIDES:
            kind = _KINDS[not is_recorded(row["criterion"], side, row["synthesizer"])]
            durations_s = [turn["duration_s"] for turn in row[side]]
            words = [len(turn["text"].split()) for turn in row[side]]
            measured = ([sum(durations_s)], [len(durations_s)], durations_s, words)
            for name, values in zip(_MEASURES, measured, strict=True):
                series[kind, name] += values
            pair[kind] += sum(durations_s)
            if kind == "real":
                heard = make_stable_id(row["group_id"], *(f"{t['text']} {t['duration_s']}" for t in row[side]))
                recordings[heard] = sum(durations_s)
        pairs.append(pair)
    subsets = Counter((pair["subset"], name) for pair in pairs for name in (pair["split"], "total"))
    categories = sorted(Counter(tuple(pair[name] for name in _CATEGORY) for pair in pairs).items(), key=str)
    return {
        "pairs": len(pairs),
        "groups": len({pair["group_id"] for pair in pairs}),
        "turns": sum(len(series[kind, "turn_s"]) for kind in _KINDS),
        "real_h": _to_hours(series["real", "dialogue_s"]),
        "distinct_real_h": _to_hours(recordings.values()),  # Count a dialogue once, even if it is in several pairs.
        "synthetic_h": _to_hours(series["synthetic", "dialogue_s"]),
        "table1": {s: {name: subsets[s, name] for name in (*SPLITS, "total")} for s in SUBSETS},
        "by": {name: _count_by(pairs, name) for name in _BY},
        "categories": [{**dict(zip(_CATEGORY, key, strict=True)), "pairs": count} for key, count in categories],
        "distributions": {
            kind: {name: _describe_distribution(series[kind, name]) for name in _MEASURES} for kind in _KINDS
        },
        "histograms": {
            name: {kind: _compute_histogram(series[kind, name], width) for kind in _KINDS}
            for name, width in (("dialogue_s", _BIN_S), ("turns", 1))
        },
    }


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
    names = ("mean", "std", "min", "p5", "median", "p95", "max")
    numbers = (array.mean(), array.std(), *np.percentile(array, (0, 5, 50, 95, 100)))
    return {"n": len(values), **{name: round(float(value), 3) for name, value in zip(names, numbers, strict=True)}}


def _compute_histogram(values: Sequence[float], width: int) -> dict[str, int]:
    """Count the values in bins of size `width`, by lower edge."""
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
    """Render the statistics as Markdown; `figure` is the path of `plot_overview`'s PNG, if any."""
    found = statistics
    hours = f"{found['real_h']:.2f} h real ({found['distinct_real_h']:.2f} h without repetition)"
    about = f"{found['pairs']} pairs of {found['groups']} recordings or dialogues, {found['turns']} turns; {hours}"
    lines = ["# Statistics", "", f"{about}, {found['synthetic_h']:.2f} h synthetic."]
    lines += ["", *render_table1(found["table1"])]
    for name, counts in found["by"].items():
        rows = [[key, c["pairs"], f"{c['real_h']:.2f}", f"{c['synthetic_h']:.2f}"] for key, c in counts.items()]
        lines += ["", *render_table([name, "pairs", "real, h", "synthetic, h"], rows)]
    measured = [(kind, *item) for kind, measures in found["distributions"].items() for item in measures.items()]
    rows = [[kind, name, *numbers.values()] for kind, name, numbers in measured if numbers]
    head = ["side", "measure", "n", "mean", "std", "min", "p5", "median", "p95", "max"]
    lines += [
        "",
        *render_table(head, rows),
        *(["", f"![Categories, durations and turns]({figure})"] if figure else []),
    ]
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
    # Pairs per secondary category, coloured by source; the smallest categories are summed.
    counts: Counter[tuple[str, str]] = Counter()
    for entry in statistics["categories"]:
        counts[entry["source"], entry["secondary"]] += entry["pairs"]
    shown = counts.most_common(_CATEGORIES_SHOWN)
    if rest := counts.total() - sum(count for _, count in shown):
        shown.append((("", f"{len(counts) - len(shown)} more"), rest))
    shown.sort(key=lambda item: (item[0][0], -item[1]), reverse=True)
    sources = sorted({source for (source, _), _ in shown})
    names = [f"{source} · {secondary}" if source else secondary for (source, secondary), _ in shown]
    colors = [f"C{sources.index(source) + 2}" for (source, _), _ in shown]
    categories.barh(names, [count for _, count in shown], color=colors)
    categories.tick_params(axis="y", labelsize=7)
    categories.set(title="(a) Category", xlabel="pairs")
    # Bars are centred on the number of turns.
    for axes, name, width, shift in ((durations, "dialogue_s", _BIN_S, 0.0), (turns, "turns", 1, -0.45)):
        for number, (kind, bins) in enumerate(statistics["histograms"][name].items()):
            lefts = [int(edge) + (0.45 * number + shift) * width for edge in bins]
            axes.bar(lefts, list(bins.values()), width=0.45 * width, align="edge", label=kind, color=_COLORS[kind])
        axes.grid(axis="y", alpha=0.3)
    durations.set(title="(b) Duration", xlabel="seconds per dialogue", ylabel="dialogues")
    turns.set(title="(c) Turns", xlabel="turns per dialogue", ylabel="dialogues")
    durations.legend()
    with replace_atomically(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
