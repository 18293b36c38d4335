"""Build ChatReward: scenarios -> splits -> speech -> filters -> Parquet with a card and a report (section 3.2.3).

Finished scenarios stay in part files until the last shard is written, so that a killed build resumes. A build with
another configuration starts anew. A finished build is not repeated. The same configuration gives the same samples if
the synthesizers are deterministic.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sdiareward.common.locks import lock_folder
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.schema import make_stable_id

from ...parts import PartFolder, run_jobs
from ...reports.data_card import make_content_id, read_finished, save_report, summarise_skipped
from .data_card import render_card
from .recording import Recorder
from .scenarios import Scenario, assign_splits, read_scenarios, take_evenly
from .schema import features
from .settings import ChatRewardConfig
from .statistics_report import compute_statistics
from .voices import read_engine_versions


logger = logging.getLogger(__name__)
_PARTS = ".parts"


@dataclass(frozen=True)
class Plan:
    """A scenario to record, and the split of its samples."""

    scenario: Scenario
    split: str

    @property
    def part(self) -> str:
        """Name of its part: an id may hold characters that a file name must not have."""
        return make_stable_id(self.scenario.scenario_id)


def build(config: ChatRewardConfig) -> dict[str, Any]:
    """Build the data set of `config` and return its report, which also lies in the folder as `report.json`.

    Raises:
        FileNotFoundError: There is no such file of scenarios.
        ValueError: A scenario breaks a rule, an engine is not installed, or no sample is left.
        ComponentError: The recogniser cannot be loaded.
        UserError: Another process builds into the folder, or a worker was killed.
    """
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
    report = _write_report(output, notes, plan_id, config, read_engine_versions(casts))
    shutil.rmtree(output / _PARTS)
    return report


def _record_all(plans: Sequence[Plan], parts: PartFolder, config: ChatRewardConfig) -> None:
    """Have the scenarios spoken that are not finished yet."""
    todo = [plan for plan in plans if not parts.has(plan.part)]
    record = partial(_record_part, recorder=Recorder(config), parts=parts)
    for _ in run_jobs(record, todo, config.num_workers, "scenarios"):
        pass


def _record_part(plan: Plan, recorder: Recorder, parts: PartFolder) -> None:
    recorded = recorder.record(plan.scenario, plan.split)
    notes = {"drops": recorded.skipped, "rejected": recorded.rejected}
    parts.write(plan.part, recorded.rows, {name: list(map(asdict, items)) for name, items in notes.items()})


def _write_report(
    output: Path,
    notes: Sequence[Mapping[str, Any]],
    plan_id: str,
    config: ChatRewardConfig,
    versions: Mapping[str, str],
) -> dict[str, Any]:
    skipped, rejected = (
        [Skipped(**entry) for note in notes for entry in note[name]] for name in ("drops", "rejected")
    )
    statistics = compute_statistics(output)
    report = {
        "build_id": make_content_id(output),
        "plan_id": plan_id,
        "config": json.loads(json.dumps(config.identity())),
        "synthesizers": dict(versions),
        "scenarios": {"read": len(notes), **statistics["scenarios"]},
        "samples": statistics["by"]["split"],
        "rejected_lines": dict(sorted(Counter(skip.kind for skip in rejected).items())),
        **summarise_skipped(skipped),
        "rejected": [asdict(skip) for skip in rejected],
    }
    return save_report(output, report, render_card(report, statistics))
