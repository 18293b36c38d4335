"""The card of a ChatReward folder, rendered from its report and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any

from sdiareward.common.escaping import escape_markdown
from sdiareward.common.markdown import render_table

from .schema import LANGUAGE_TAGS, MIXED_LANGUAGES, NO_VOICE, SPLITS
from .statistics_report import render_table4


_CARD = Template("""\
---
pretty_name: ChatReward
language:
$languages
license: other
task_categories:
- audio-classification
tags:
- spoken-dialogue
- reward-model
- synthetic
configs:
- config_name: default
  description: build $build_id
  data_files:
$files
---

# ChatReward: spoken answers with scores

$samples samples ($hours h) of $scenarios scenarios, built by `sdiareward.dataset_builder.recipes.chatreward` (seed
$seed) after section 3.2 of the WavReward paper. A sample is a spoken question, $gap_s s of silence and a spoken answer
in one recording (mono, 16 kHz), with a score from 1 to 5: 5 for the right content in the right voice, 3 for the right
content in a voice that does not suit it, 1 for an answer beside the point. All samples of a scenario are in one split.

$table4

$splits

All speech is synthetic: $synthesizers. Speed and volume are signal processing; pitch, age and
emotion are rules on a vocoder, unless an endpoint spoke by instruction; sounds are made by signal processing, unless
clips were given. What is learned from emotions by rule need not hold for people.

Filters: word error rate $words; emotion classifier $emotion. $rejected lines were rejected and spoken by another voice
where there was one; $skipped samples are missing, each with its reason in `report.json`. Expert scores: $experts.
""")


def render_card(report: Mapping[str, Any], statistics: Mapping[str, Any]) -> str:
    """Render the card.

    Args:
        report (`Mapping`): What `report.json` holds.
        statistics (`Mapping`): From `statistics_report.describe`.
    """
    config, present = report["config"], [name for name in SPLITS if name in statistics["by"]["split"]]
    counts = statistics["by"]["split"]
    experts = report.get("experts")
    return _CARD.substitute(
        languages="\n".join(f"- {tag}" for tag in _languages(statistics)),
        build_id=report["build_id"],
        files="\n".join(f"  - split: {name}\n    path: data/{name}-*.parquet" for name in present),
        samples=statistics["samples"],
        hours=f"{statistics['hours']:.2f}",
        scenarios=sum(statistics["scenarios"].values()),
        seed=config["seed"],
        gap_s=config["gap_s"],
        table4="\n".join(render_table4(statistics)),
        splits="\n".join(
            render_table(
                ["split", "scenarios", "samples", "hours"],
                [
                    [name, statistics["scenarios"][name], counts[name]["samples"], f"{counts[name]['hours']:.2f}"]
                    for name in present
                ],
            )
        ),
        synthesizers=", ".join(map(escape_markdown, report["synthesizers"].values())),
        words="not checked"
        if config["max_wer"] is None
        else f"at most {config['max_wer']} ({config['asr']['model']})",
        emotion=config["emotion"]["model"] if config["emotion"] else "none",
        rejected=sum(count for kind, count in report["rejected_lines"].items() if kind != NO_VOICE),
        skipped=len(report["skipped"]),
        experts=f"{experts['ratings']} of {experts['raters']} raters on {experts['rated']} samples"
        if experts
        else "none",
    )


def _languages(statistics: Mapping[str, Any]) -> list[str]:
    """Return the tags of all languages that are spoken."""
    found = set(statistics["by"]["language"])
    if MIXED_LANGUAGES in found:
        found = (found - {MIXED_LANGUAGES}) | set(LANGUAGE_TAGS.values())
    return sorted(found)
