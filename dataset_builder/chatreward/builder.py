"""Build ChatReward: scenarios -> splits -> speech -> filters -> Parquet with a card and a report (section 3.2.3).

Finished scenarios stay in part files until the last shard is written: a killed build resumes; another configuration
starts anew; a finished build is not repeated. Deterministic synthesizers give the same samples again.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sdiareward.common.escaping import escape_markdown
from sdiareward.common.locks import lock_folder
from sdiareward.common.skipped import Skipped
from sdiareward.common.tables import render_table
from sdiareward.pairs.schema import make_stable_id

from ..formats.shards import read_rows
from ..parts import PartFolder, run_jobs
from ..reports.data_card import (
    list_languages,
    make_content_id,
    read_column,
    read_finished,
    render_header,
    save_report,
    summarise_skipped,
)
from .recording import Recorder
from .scenarios import Scenario, assign_splits, read_scenarios, take_evenly
from .schema import LANGUAGE_TAGS, MIXED_LANGUAGES, features
from .settings import ChatRewardConfig
from .voices import read_engine_versions


logger = logging.getLogger(__name__)
_PARTS = ".parts"
_CARD = """---
{header}
---

# ChatReward: spoken answers with scores

Built by `sdiareward build chatreward` (seed {seed}) after section 3.2 of the WavReward paper. A sample is a spoken
question, {gap_s} s of silence and a spoken answer in one recording (mono, 16 kHz), with a score from 1 to 5: 5 for the
right content in the right voice, 3 for the right content in a voice that does not suit it, 1 for an answer beside the
point. Where experts gave `expert_scores`, the score is their median. All samples of a scenario are in one split.
`audio` is left encoded: `soundfile.read(io.BytesIO(row["audio"]["bytes"]))` decodes it.

{table}

All speech is synthetic: {synthesizers}. {skipped} samples are missing, each with its reason in `report.json`.
"""


@dataclass(frozen=True)
class Plan:
    scenario: Scenario
    split: str

    @property
    def part(self) -> str:
        """Name of its part: an id may hold characters that a file name must not have."""
        return make_stable_id(self.scenario.scenario_id)


def build(config: ChatRewardConfig) -> dict[str, Any]:
    """Build the data set of `config`; return its report."""
    with lock_folder(config.output_dir):
        return _build(config)


def _build(config: ChatRewardConfig) -> dict[str, Any]:
    output = Path(config.output_dir)
    scenarios = take_evenly(read_scenarios(config.scenarios), config.limit)
    content = [scenario.as_row() for scenario in scenarios]
    plan_id = make_stable_id(json.dumps([config.identity(), content], sort_keys=True))
    if finished := None if (output / _PARTS).exists() else read_finished(output, plan_id):
        logger.warning("%s is up to date; delete its report.json to build it again.", output)
        return finished
    casts = config.read_casts()
    splits = assign_splits(scenarios, test=config.test, seed=config.seed)
    plans = [Plan(scenario, splits[scenario.scenario_id]) for scenario in scenarios]
    parts = PartFolder(output / _PARTS / plan_id, features())
    _record_all(plans, parts, config)
    notes = [parts.read_notes(plan.part) for plan in plans]
    reasons = [entry["reason"] for note in notes for entry in note["drops"]]
    if len(reasons) == sum(len(scenario.answers) for scenario in scenarios):
        raise ValueError(f"no sample is left of {len(plans)} scenarios: {reasons[:3]}.")
    parts.write_shards(output, {plan.part: plan.split for plan in plans})
    report = _make_report(notes, plan_id, config, read_engine_versions(casts))
    report["scenarios"] = {"read": len(plans), **Counter(plan.split for plan in plans)}
    report = save_samples_report(output, report)
    shutil.rmtree(output / _PARTS)
    return report


def _record_all(plans: Sequence[Plan], parts: PartFolder, config: ChatRewardConfig) -> None:
    todo = [plan for plan in plans if not parts.has(plan.part)]
    record = partial(_record_part, recorder=Recorder(config), parts=parts)
    for _ in run_jobs(record, todo, config.num_workers, "scenarios"):
        pass


def _record_part(plan: Plan, recorder: Recorder, parts: PartFolder) -> None:
    recorded = recorder.record(plan.scenario, plan.split)
    notes = {"drops": recorded.skipped, "rejected": recorded.rejected}
    parts.write(plan.part, recorded.rows, {name: list(map(asdict, items)) for name, items in notes.items()})


def _make_report(
    notes: Sequence[Mapping[str, Any]], plan_id: str, config: ChatRewardConfig, versions: Mapping[str, str]
) -> dict[str, Any]:
    skipped, rejected = (
        [Skipped(**entry) for note in notes for entry in note[name]] for name in ("drops", "rejected")
    )
    return {
        "plan_id": plan_id,
        "config": json.loads(json.dumps(config.identity())),
        "synthesizers": dict(versions),
        "rejected_lines": dict(sorted(Counter(skip.kind for skip in rejected).items())),
        **summarise_skipped(skipped),
        "rejected": [asdict(skip) for skip in rejected],
    }


def save_samples_report(output: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Write the card and the report of a folder; return the report with the content of its shards."""
    languages = set(list_languages(code for _, code in read_column(output, "language")))
    if MIXED_LANGUAGES in languages:
        languages = languages - {MIXED_LANGUAGES} | set(LANGUAGE_TAGS.values())
    found = {"build_id": make_content_id(output), "samples": _count_samples(output), "languages": sorted(languages)}
    report = {**report, **found}
    return save_report(output, report, _render_card(report))


def _count_samples(folder: Path) -> list[dict[str, Any]]:
    """Return samples and hours by split and attribute, as in Table 4."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for split, row in read_rows(folder, ("attribute", "duration_s")):
        seconds[split, row["attribute"] or "content"].append(row["duration_s"])
    return [
        {"split": split, "attribute": attribute, "samples": len(found), "hours": round(sum(found) / 3600, 4)}
        for (split, attribute), found in sorted(seconds.items())
    ]


def _render_card(report: Mapping[str, Any]) -> str:
    rows = report["samples"]
    splits = sorted({row["split"] for row in rows}, reverse=True)
    files = [{"split": split, "path": f"data/{split}-*.parquet"} for split in splits]
    configs = [{"config_name": "default", "data_files": files}]
    tags = ["spoken-dialogue", "reward-model", "synthetic"]
    return _CARD.format(
        header=render_header(report, configs, pretty_name="ChatReward", tags=tags),
        seed=report["config"]["seed"],
        gap_s=report["config"]["gap_s"],
        table="\n".join(render_table(list(rows[0]), [list(row.values()) for row in rows], num_left=2)),
        synthesizers=", ".join(map(escape_markdown, report["synthesizers"].values())),
        skipped=len(report["skipped"]),
    )
