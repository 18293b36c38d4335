"""The card of a ChatReward folder, rendered from its report and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any

from sdiareward.common.escaping import escape_markdown
from sdiareward.common.markdown import render_table
from sdiareward.common.package_files import CARDS

from .schema import LANGUAGE_TAGS, MIXED_LANGUAGES, NO_VOICE, SPLITS
from .statistics_report import render_table4
from .voices import CLONING, ENDPOINT, VOCODED


_TEMPLATE = CARDS / "chatreward_card.md"


def render_card(report: Mapping[str, Any], statistics: Mapping[str, Any]) -> str:
    """Render the card of a folder from its `report.json` and its `compute_statistics`."""
    config, present = report["config"], [name for name in SPLITS if name in statistics["by"]["split"]]
    counts = statistics["by"]["split"]
    experts = report.get("experts")
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        languages="\n".join(f"- {tag}" for tag in _list_languages(statistics)),
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
        toys="\n".join(_list_toys(config)),
        experts=f"{experts['ratings']} of {experts['raters']} raters on {experts['rated']} samples"
        if experts
        else "none",
    )


def _list_toys(config: Mapping[str, Any]) -> list[str]:
    """Return what stands in for the paper's material, each with what it means for a judge."""
    endpoint, events = config.get("endpoint") or {}, config.get("events") or {}
    casts = config.get("casts_by_attribute") or {}
    offline = set(config["casts"]) - {ENDPOINT, CLONING}
    spoken = {
        ENDPOINT: set(endpoint.get("attributes", ())),
        CLONING: set((config.get("cloning") or {}).get("attributes", ())),
    }
    ruled = [
        attribute
        for attribute in VOCODED
        if any(name in offline or attribute not in spoken[name] for name in casts.get(attribute, config["casts"]))
    ]
    toys = []
    if config.get("scenarios") is None:
        toys.append("- The scenarios are the 140 of the package, a toy beside the 10,000 of the paper.")
    if ruled:
        toys.append(
            f"- {', '.join(ruled).capitalize()}: at least in part rules on a vocoder, which are toys. What is learned "
            "from them need not hold for people."
        )
    if events.get("synthesised", True):
        whose = "where there was no clip" if events.get("folder") else "all of them"
        toys.append(f"- Sounds made of oscillators and noise ({whose}) are toys: twelve formulas, not recordings.")
    return toys or ["No voice is a rule on a vocoder, and no sound is synthesised."]


def _list_languages(statistics: Mapping[str, Any]) -> list[str]:
    """Return the tags of all languages that are spoken."""
    found = set(statistics["by"]["language"])
    if MIXED_LANGUAGES in found:
        found = (found - {MIXED_LANGUAGES}) | set(LANGUAGE_TAGS.values())
    return sorted(found)
