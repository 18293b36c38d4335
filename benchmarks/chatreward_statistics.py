"""Describe a built ChatReward folder, and measure whether its voices do what their labels say.

    python -m benchmarks.chatreward_statistics --folder runs/chatreward

Writes to `benchmarks/results`: `chatreward_statistics.json` and `.md` (Table 4, shares, rejected lines by cast,
measurements), `chatreward_attributes.png` (figure 6) and `chatreward_words.png` (figure 7).

Measured on every answer of the attributes age, emotion, pitch, speed and volume: words a second, median fundamental
frequency (WORLD's DIO) and level. The median of each category is compared with the other categories.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_table
from sdiareward.dataset_builder.recipes.chatreward.loading import load_samples
from sdiareward.dataset_builder.recipes.chatreward.schema import CATEGORIES, NO_VOICE, SPLITS
from sdiareward.dataset_builder.recipes.chatreward.statistics_report import write_statistics


RESULTS = Path(__file__).parent / "results"
_MEASURED = ("age", "emotion", "pitch", "speed", "volume")
_COLUMNS = ("words_per_second", "pitch_hz", "level_dbfs")


def measure_answer(row: Mapping[str, Any]) -> dict[str, float]:
    """Measure the answer of a sample.

    Args:
        row (`Mapping`): A sample with its audio.

    Returns:
        `dict[str, float]`: `words_per_second`, `pitch_hz` (median of the voiced frames) and `level_dbfs`.
    """
    import pyworld

    question_samples = round(row["question_s"] * SAMPLING_RATE)
    gap_samples = round((row["duration_s"] - row["question_s"] - row["response_s"]) * SAMPLING_RATE)
    answer = read_audio(row["audio"])[question_samples + gap_samples :].astype(np.float64)
    pitch, _ = pyworld.dio(answer, SAMPLING_RATE, f0_floor=50.0)
    return {
        "words_per_second": len(row["response"].split()) / row["response_s"],
        "pitch_hz": float(np.median(pitch[pitch > 0])) if pitch.any() else float("nan"),
        "level_dbfs": float(10 * np.log10(np.mean(answer**2))),
    }


def measure(folder: Path) -> list[dict[str, Any]]:
    """Return the median measurements of the answers of each category, and their number."""
    groups: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for split in SPLITS:
        samples = load_samples(folder, split)
        for row in tqdm(samples, desc=f"measure {split}"):
            if row["attribute"] in _MEASURED and row["response_category"]:
                groups[row["attribute"], row["response_category"]].append(measure_answer(row))
    ordered = [(name, category) for name in _MEASURED for category in CATEGORIES[name] if (name, category) in groups]
    return [
        {"attribute": name, "category": category, "answers": len(groups[name, category])}
        | {column: round(float(np.nanmedian([m[column] for m in groups[name, category]])), 2) for column in _COLUMNS}
        for name, category in ordered
    ]


def count_rejected(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Count the lines of a report that were spoken and rejected, by kind and cast."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for skip in report["rejected"]:
        if skip["kind"] == NO_VOICE:
            continue
        counts[skip["kind"]][skip["reason"].split(":")[0]] += 1
    return {kind: dict(sorted(by_cast.items())) for kind, by_cast in sorted(counts.items())}


def render(measured: Sequence[Mapping[str, Any]], report: Mapping[str, Any], rejected: Mapping[str, Any]) -> str:
    """Render measurements and skipped samples as Markdown."""
    num_lines = sum(sum(by_cast.values()) for by_cast in rejected.values())
    lines = [
        "",
        "## What the filters took out",
        "",
        f"{num_lines} lines were rejected and tried with the next voice; "
        f"{len(report['skipped'])} samples are missing ({report['drops']}).",
        "",
    ]
    rows = [[kind, cast, count] for kind, by_cast in rejected.items() for cast, count in by_cast.items()]
    lines += render_table(["rejected for", "cast", "lines"], rows)
    lines += ["", "## What is measured of the answers", ""]
    head = ["attribute", "category", "answers", *_COLUMNS]
    lines += render_table(head, [[row[name] for name in head] for row in measured])
    return "\n".join(lines) + "\n"


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    folder: Path = field(default=Path("runs/chatreward"), metadata={"help": "folder of ChatReward"})
    output_dir: Path = field(default=RESULTS, metadata={"help": "folder to write"})


def main() -> None:
    """Write the results."""
    (args,) = parse_arguments(
        (Arguments,), None, prog="python -m benchmarks.chatreward_statistics", description=__doc__
    )
    statistics = write_statistics(args.folder, args.output_dir)
    report = json.loads((args.folder / "report.json").read_text(encoding="utf-8"))
    measured, rejected = measure(args.folder), count_rejected(report)
    page = args.output_dir / "chatreward_statistics.md"
    write_file(page, page.read_text(encoding="utf-8") + render(measured, report, rejected))
    build = {name: report[name] for name in ("build_id", "synthesizers", "config", "drops")}
    found = {**statistics, "build": build, "rejected": rejected, "measured": measured}
    text = json.dumps(found, indent=2, ensure_ascii=False)
    write_file(args.output_dir / "chatreward_statistics.json", text + "\n")
    print(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
