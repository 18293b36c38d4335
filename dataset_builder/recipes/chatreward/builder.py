"""Build ChatReward: scenarios -> splits -> speech -> filters -> Parquet with a card and a report (section 3.2.3).

Every scenario that is done is kept in part files until the last shard is written: a build that was killed goes on
where it stopped, and one whose configuration changed speaks everything anew. A build whose result is there does
nothing. The same configuration gives the same samples where the synthesizers are deterministic.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.locks import lock_folder
from sdiareward.common.worker_pool import open_worker_pool
from sdiareward.dataset_builder.episodes import Drop
from sdiareward.pairs.schema import stable_id

from ...formats.shards import ShardWriter
from ...reports.data_card import content_id, describe_drops, read_finished
from .data_card import render_card
from .recording import Recorder
from .scenarios import Scenario, read_scenarios
from .schema import features
from .settings import ChatRewardConfig
from .splits import assign_splits, take_evenly
from .statistics_report import compute_statistics
from .voices import engine_versions


logger = logging.getLogger(__name__)
_PARTS = ".parts"


@dataclass(frozen=True)
class Plan:
    """A scenario that is to be spoken, and where what is done of it lies.

    Args:
        scenario (`Scenario`): What is said.
        split (`str`): Where its samples go.
        part (`Path`): Parquet file of its samples; the JSON file beside it is written last and marks it as done.
    """

    scenario: Scenario
    split: str
    part: Path

    @property
    def notes(self) -> Path:
        """What was dropped and rejected."""
        return self.part.with_suffix(".json")


def build(config: ChatRewardConfig) -> dict[str, Any]:
    """Build the data set of `config` and return its report, which also lies in the folder as `report.json`.

    Args:
        config (`ChatRewardConfig`): What to build.

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
    plan_id = stable_id(json.dumps([config.identity(), content], sort_keys=True))
    if finished := None if (output / _PARTS).exists() else read_finished(output, plan_id):
        logger.warning("%s is up to date; delete its report.json to build it again.", output)
        return finished
    casts = config.read_casts()
    plans = _make_plans(config, scenarios, output / _PARTS / plan_id)
    _record_all(plans, config)
    _write_shards(plans, output)
    report = _write_report(output, plans, plan_id, config, engine_versions(casts))
    shutil.rmtree(output / _PARTS)
    return report


def _make_plans(config: ChatRewardConfig, scenarios: Sequence[Scenario], folder: Path) -> list[Plan]:
    folder.mkdir(parents=True, exist_ok=True)
    splits = assign_splits(scenarios, test=config.test, seed=config.seed)
    # An id may hold characters that no file name takes.
    return [
        Plan(scenario, splits[scenario.scenario_id], folder / f"{stable_id(scenario.scenario_id)}.parquet")
        for scenario in scenarios
    ]


def _record_all(plans: Sequence[Plan], config: ChatRewardConfig) -> None:
    """Speak the scenarios that have no part file yet."""
    from tqdm import tqdm

    todo = [plan for plan in plans if not plan.notes.is_file()]
    progress: Any = {"total": len(plans), "initial": len(plans) - len(todo), "desc": "scenarios"}
    if config.num_workers == 1:
        recorder = Recorder(config)
        for plan in tqdm(todo, **progress):
            _record_part(plan, recorder)
        return
    with open_worker_pool(config.num_workers, _start_worker, (config,)) as pool:
        futures = [pool.submit(_record_in_worker, plan) for plan in todo]
        for future in tqdm(as_completed(futures), **progress):
            future.result()


_WORKER: dict[str, Recorder] = {}


def _start_worker(config: ChatRewardConfig) -> None:
    _WORKER["recorder"] = Recorder(config)


def _record_in_worker(plan: Plan) -> None:
    _record_part(plan, _WORKER["recorder"])


def _record_part(plan: Plan, recorder: Recorder) -> None:
    """Speak a scenario and keep its samples on disk, then what became of the others."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    recorded = recorder.record(plan.scenario, plan.split)
    temporary = plan.part.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist(recorded.rows, schema=features().arrow_schema), temporary)
    os.replace(temporary, plan.part)
    notes = {name: [asdict(drop) for drop in getattr(recorded, name)] for name in ("drops", "rejected")}
    write_file(plan.notes, json.dumps(notes, ensure_ascii=False))


class SampleWriter(ShardWriter):
    """The shards of ChatReward, `data/<split>-NNNNN-of-NNNNN.parquet`; use it as a context manager."""

    def __init__(self, folder: Path):
        super().__init__(folder, features())

    def write(self, split: str, row: Mapping[str, Any]) -> None:
        """Add one sample to `split`."""
        # Pairs have a folder for each criterion; an empty name puts samples right under `data`.
        super().write(split, {**row, "criterion": ""})

    def _count(self, split: str, row: Mapping[str, Any]) -> None:
        """Samples have no two sides to count the hours of; `statistics_report` counts them."""


def _write_shards(plans: Sequence[Plan], output: Path) -> None:
    with SampleWriter(output) as writer:
        for plan in plans:
            for row in _read_part(plan):
                writer.write(plan.split, row)


def _read_part(plan: Plan) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    yield from pq.read_table(plan.part).to_pylist()


def _write_report(
    output: Path, plans: Sequence[Plan], plan_id: str, config: ChatRewardConfig, versions: Mapping[str, str]
) -> dict[str, Any]:
    notes = [json.loads(plan.notes.read_text(encoding="utf-8")) for plan in plans]
    drops, rejected = ([Drop(**drop) for note in notes for drop in note[name]] for name in ("drops", "rejected"))
    statistics = compute_statistics(output)
    if not statistics["samples"]:
        raise ValueError(f"no sample is left of {len(plans)} scenarios: {[drop.reason for drop in drops[:3]]}.")
    report = {
        "build_id": content_id(output),
        "plan_id": plan_id,
        "config": json.loads(json.dumps(config.identity())),
        "synthesizers": dict(versions),
        "scenarios": {"read": len(plans), **statistics["scenarios"]},
        "samples": statistics["by"]["split"],
        "rejected_lines": dict(sorted(Counter(drop.kind for drop in rejected).items())),
        **describe_drops(drops),
        "rejected": [asdict(drop) for drop in rejected],
    }
    return write_report(output, report, statistics)


def write_report(output: Path, report: dict[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Write the card and, last, the report of a folder whose shards are complete; return the report."""
    write_file(output / "README.md", render_card(report, statistics))
    write_file(output / "report.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report
