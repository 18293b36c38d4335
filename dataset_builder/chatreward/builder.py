"""Build ChatReward: scenarios -> splits -> speech -> filters -> Parquet with a card and a report (section 3.2.3).

Finished scenarios stay in part files until the last shard is written: a killed build resumes; another configuration
starts anew; a finished build is not repeated. Deterministic synthesizers give the same samples again.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from sdiareward.common.escaping import escape_markdown
from sdiareward.common.locks import lock_folder
from sdiareward.common.parts import Make, Processes, Rows, run_parts
from sdiareward.common.skipped import Skipped
from sdiareward.common.tables import render_table
from sdiareward.pairs.schema import make_stable_id

from ..formats.shards import read_rows
from ..reports.data_card import (
    list_languages,
    make_content_id,
    read_finished,
    render_header,
    save_report,
    summarise_skipped,
)
from ..row_parts import choose_size, open_row_parts, write_shards
from .recording import Recorder
from .scenarios import assign_splits, read_scenarios, take_evenly
from .schema import LANGUAGE_TAGS, MIXED_LANGUAGES, features
from .settings import ChatRewardConfig
from .voices import read_engine_versions


logger = logging.getLogger(__name__)
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


def build(config: ChatRewardConfig) -> dict[str, Any]:
    """Build the data set of `config`; return its report."""
    output = Path(config.output_dir)
    with lock_folder(output):
        scenarios = take_evenly(read_scenarios(config.scenarios), config.limit)
        identity = json.loads(json.dumps(config.identity()))
        plan_id = make_stable_id(json.dumps([identity, [s.as_row() for s in scenarios]], sort_keys=True))
        work = output / ".parts" / plan_id
        if finished := None if work.parent.exists() else read_finished(output, plan_id):
            logger.warning("%s is up to date; delete its report.json to build it again.", output)
            return finished
        casts = config.read_casts()
        splits = assign_splits(scenarios, test=config.test, seed=config.seed)
        plans = {scenario.scenario_id: (scenario, splits[scenario.scenario_id]) for scenario in scenarios}
        parts = open_row_parts(work, {}, features())
        pending = [plans[name] for name in parts.find_pending(list(plans))]
        engine, load = Processes(config.num_workers), partial(_load, config)
        run_parts(parts, pending, load, choose_size(len(plans)), engine, label="scenarios", unit="scenario")
        skipped, rejected = list[Skipped](), list[Skipped]()
        found = {row["item"]: json.loads(row["notes"]) for row in parts.iter_rows(["notes"])}
        for name in plans:
            skipped += [Skipped(**entry) for entry in found[name]["skipped"]]
            rejected += [Skipped(**entry) for entry in found[name]["rejected"]]
        if len(skipped) == sum(len(scenario.answers) for scenario in scenarios):
            raise ValueError(f"no sample is left of {len(plans)} scenarios: {[s.reason for s in skipped[:3]]}.")
        write_shards(parts, {name: split for name, (_, split) in plans.items()}, output, features())
        report = {
            "plan_id": plan_id,
            "config": identity,
            "synthesizers": read_engine_versions(casts),
            "rejected_lines": dict(sorted(Counter(skip.kind for skip in rejected).items())),
            **summarise_skipped(skipped),
            "rejected": [asdict(skip) for skip in rejected],
            "scenarios": {"read": len(plans), **Counter(splits.values())},
        }
        report = save_samples_report(output, report)
        shutil.rmtree(work.parent)
        return report


def _load(config: ChatRewardConfig) -> Make:
    recorder = Recorder(config)

    def record(parts: Iterable[Any]) -> Iterator[Rows]:
        for part in parts:
            rows = []
            for scenario, split in part:
                found = recorder.record(scenario, split)
                notes = {"skipped": [*map(asdict, found.skipped)], "rejected": [*map(asdict, found.rejected)]}
                rows.append({"item": scenario.scenario_id, "rows": found.rows, "notes": json.dumps(notes)})
            yield rows

    return record


def save_samples_report(output: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Write the card and the report of a folder; return the report with the content of its shards."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    codes = set()
    for split, row in read_rows(output, ("attribute", "duration_s", "language")):
        seconds[split, row["attribute"] or "content"].append(row["duration_s"])
        codes |= {*LANGUAGE_TAGS.values()} if row["language"] == MIXED_LANGUAGES else {row["language"]}
    # Samples and hours by split and attribute, as in Table 4.
    samples = [
        {"split": split, "attribute": attribute, "samples": len(found), "hours": round(sum(found) / 3600, 4)}
        for (split, attribute), found in sorted(seconds.items())
    ]
    report = {**report, "build_id": make_content_id(output), "samples": samples, "languages": list_languages(codes)}
    return save_report(output, report, _render_card(report))


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
