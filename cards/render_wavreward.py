"""Render the tables of WavReward: `python -m sdiareward.cards.render_wavreward` renders the guide to its evaluation.

All numbers come from results of `benchmarks.wavreward_ablations` and `benchmarks.wavreward_speed`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_table
from sdiareward.evaluation.summary import percent
from sdiareward.judges.wavreward.score_tables import render_table_one, shown_columns

from .render import not_measured, render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "wavreward_evaluation.md"
RESULTS = _ROOT / "benchmarks" / "results"
# Rows of Table 1 by section.
SECTIONS = {
    "I. direct inference": {"direct": "what all start from"},
    "II. supervised fine-tuning": {"sft_full": "SFT, all weights", "sft_lora": "SFT, LoRA"},
    "III. WavReward": {
        "no_reasoning": "without thoughts",
        "no_multi_sample": "without multiple samples",
        "no_nonlinear_reward": "without the nonlinear reward",
        "wavreward": "WavReward",
    },
}
_BASELINES = {"most_frequent": "most frequent score", "text": "words alone", "acoustic": "sound alone"}


def render_guide(guide: str, results: Path = RESULTS) -> str:
    """Return the guide with its numbers taken from the result files; a block without one says so.

    Args:
        guide (`str`): Text with the blocks `ablations` and `speed`.
        results (`Path`): Folder of the result files.
    """
    sources: dict[str, tuple[str, Callable[[Any], str]]] = {
        "ablations": ("wavreward_ablations", lambda result: "\n".join(_ablation_lines(result))),
        "speed": ("wavreward_speed", render_speed),
    }
    blocks = {}
    for name, (source, render) in sources.items():
        path = results / f"{source}.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        blocks[name] = not_measured(source) if found is None else render(found)
    return render_readme(guide, blocks)


def render_ablations(result: Mapping[str, Any]) -> str:
    """Render the rows of Table 1 that were made here, as Markdown.

    Args:
        result (`Mapping`): What `benchmarks.wavreward_ablations` found: `settings`, `rows` and `baselines`.
    """
    return (
        "\n".join(
            [f"# WavReward and what it lacks: {Path(result['settings']['config']).stem}", "", *_ablation_lines(result)]
        )
        + "\n"
    )


def _ablation_lines(result: Mapping[str, Any]) -> list[str]:
    rows = {row["variant"]: row for row in result["rows"]}
    scores = {
        f"{section}: {title}": rows[name]["scores"]
        for section, titles in SECTIONS.items()
        for name, title in titles.items()
        if name in rows
    }
    scores |= {f"IV. baseline: {_BASELINES[name]}": found for name, found in result["baselines"].items()}
    lines = [
        "Scores that are exactly right in percent, 95% intervals over scenarios; an answer without a score is wrong.",
        "",
        *render_table_one(scores, shown_columns(scores.values())),
        "",
        *_cost_table(rows),
    ]
    return lines


def _cost_table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a row for each variant: how far WavReward is ahead, what its answers look like, and what it cost."""
    cells = []
    for titles in SECTIONS.values():
        for name, title in titles.items():
            if name not in rows:
                continue
            row, form = rows[name], rows[name]["scores"]["in_domain"]["form"]
            training = "-" if row["training_s"] is None else f"{row['training_s']:.0f} s"
            shares = [percent(form[share]) for share in ("share_follows_format", "share_valid")]
            thoughts = "yes" if row["reasoning"] else "no"
            cost = (*shares, f"{form['mean_tokens']:.1f}", training)
            cells.append([title, *_difference_cells(row["difference"]), thoughts, *cost])
    heads = ("", "WavReward has more right, points", "95%", "p", "thoughts", "form as asked for, %", "has a score, %")
    return render_table((*heads, "tokens of an answer", "training"), cells)


def _difference_cells(difference: Mapping[str, Any] | None) -> list[str]:
    if difference is None:
        return ["-", "-", "-"]
    bounds = difference["interval"]
    width = "-" if bounds is None else f"{100 * bounds[0]:+.1f} to {100 * bounds[1]:+.1f}"
    return [f"{100 * difference['difference']:+.2f}", width, f"{difference['p_value']:.3f}"]


def render_speed(result: Mapping[str, Any]) -> str:
    """Render the real-time factors of Table 5.

    Args:
        result (`Mapping`): What `benchmarks.wavreward_speed` found.
    """
    rows = [
        [
            name,
            f"{way['real_time_factor']:.3f}",
            f"{median(way['seconds']):.1f} s",
            f"{way['mean_tokens']:.0f}",
        ]
        for name, way in result["ways"].items()
    ]
    settings, device = result["settings"], result["device"]
    fixed = [settings[name] for name in ("reasoning_tokens", "score_tokens")]
    lengths = "" if fixed == [None, None] else " The number of tokens is set, not the judge's choice."
    where = result["cpu"]["name"] if device["name"] == "cpu" else device["name"]
    note = (
        f"{result['dialogues']} dialogues, {result['audio_s']:.0f} s; {device['million_parameters']:g} M parameters "
        f"in {device['dtype']} on {where}; medians of {settings['rounds']} rounds.{lengths}"
    )
    heads = ("", "real-time factor", "time", "tokens of an answer")
    return "\n".join([*render_table(heads, rows), "", note])


def main() -> None:
    """Render the guide."""
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
