"""Build a data set of preference pairs: sources -> splits -> pairs -> Parquet with a card and a report.

Every finished pair is kept in a part file named by its id until the last shard is written: a build that was killed
goes on where it stopped, and one whose configuration changed makes only the pairs that differ.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from sdiareward.audio_sdiareward import AudioError
from sdiareward.dataset_builder.channel import ChannelSettings
from sdiareward.dataset_builder.pairing import PairPlan, SynthesizerChoice, make_row, plan_pairs
from sdiareward.dataset_builder.schema import (
    Episode,
    ScriptPair,
    features,
    stable_id,
    validate_episode,
    validate_row,
)
from sdiareward.dataset_builder.sources import read_source
from sdiareward.dataset_builder.splits import SPLITS, assign_splits
from sdiareward.dataset_builder.synthesis import SynthesisError, is_available
from sdiareward.records import write_file


logger = logging.getLogger(__name__)
_ROWS_PER_SHARD = 200
_ROWS_PER_GROUP = 20
_CARD_TEMPLATE = Path(__file__).resolve().parent.parent / "cards" / "dataset_card.md"


@dataclass(frozen=True)
class SourceConfig:
    """One corpus: its name, where it lies, and how many of its first episodes to take."""

    name: str
    path: str | None = None
    limit: int | None = None


@dataclass(frozen=True)
class BuildConfig:
    """Everything that decides what a build writes.

    Args:
        output_dir (`str`): Folder to write; name it `sdiareward` for `load_dataset("sdiareward")`.
        sources (`tuple[SourceConfig, ...]`): Corpora to read.
        synthesizers (`dict[str, SynthesizerChoice]`): Who speaks, by criterion.
        channel (`ChannelSettings`, *optional*): Channel matching; None switches it off.
        validation, test (`float`): Shares of each source's episodes.
        seed (`int`): Seed of the splits and of the choice of synthesizers.
        num_workers (`int`): Processes.
    """

    output_dir: str
    sources: tuple[SourceConfig, ...]
    synthesizers: dict[str, SynthesizerChoice]
    channel: ChannelSettings | None = field(default_factory=ChannelSettings)
    validation: float = 0.1
    test: float = 0.2
    seed: int = 0
    num_workers: int = 2


def build(config: BuildConfig) -> dict[str, Any]:
    """Build the data set of `config` and return its report, which also lies in the folder as `report.json`.

    Raises:
        ValueError: A synthesizer is not installed, or there is nothing to build from.
    """
    skipped: list[dict[str, str]] = []
    items = list(_read_items(config.sources, skipped))
    if not items:
        raise ValueError(f"the sources {[s.name for s in config.sources]} hold no usable episode; see the report.")
    episodes = [item.spoken if isinstance(item, ScriptPair) else item for item in items]
    assignment = assign_splits(episodes, validation=config.validation, test=config.test, seed=config.seed)
    plans = list(plan_pairs(items, assignment, config.synthesizers, config.channel, config.seed))
    _require_synthesizers(plans)
    output = Path(config.output_dir)
    parts = output / ".parts"
    parts.mkdir(parents=True, exist_ok=True)
    skipped += _make_pairs(plans, parts, config.num_workers)
    counts = _write_shards(plans, parts, output)
    # Audio of the same pairs may still differ where a synthesizer draws its own noise: every build is its own.
    build_id = stable_id(*sorted(plan.pair_id for plan in plans), time.time_ns())
    report = {"build_id": build_id, "config": asdict(config), "pairs": counts, "skipped": skipped}
    write_file(output / "report.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    write_file(output / "README.md", render_card(report))
    shutil.rmtree(parts)
    return report


def _read_items(sources: Sequence[SourceConfig], skipped: list[dict[str, str]]) -> Iterator[Episode | ScriptPair]:
    """Yield the valid episodes and scripts; put the others on `skipped` with their reason."""
    for source in sources:
        for index, item in enumerate(read_source(source.name, source.path)):
            if source.limit is not None and index >= source.limit:
                break
            sides = (item.written, item.spoken) if isinstance(item, ScriptPair) else (item,)
            try:
                for side in sides:
                    validate_episode(side)
            except ValueError as error:
                skipped.append({"item": f"{sides[0].source} {sides[0].name}", "reason": str(error)})
                continue
            yield item


def _require_synthesizers(plans: Iterable[PairPlan]) -> None:
    missing = sorted({plan.synthesizer for plan in plans if not is_available(plan.synthesizer)})
    if missing:
        raise ValueError(f"synthesizers {missing} are not installed; install them or take them out of the config.")


def _part_path(parts: Path, plan: PairPlan) -> Path:
    return parts / f"{plan.pair_id}.parquet"


def _make_pairs(plans: Sequence[PairPlan], parts: Path, num_workers: int) -> list[dict[str, str]]:
    """Make the pairs that have no part file yet; return what was skipped, with reasons."""
    from tqdm import tqdm

    todo = [plan for plan in plans if not _part_path(parts, plan).is_file()]
    skipped = []
    # Not forked: the synthesizers' runtimes start threads, which a fork would leave locked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool:
        futures = {pool.submit(_make_part, plan, parts): plan for plan in todo}
        for future in tqdm(as_completed(futures), total=len(futures), desc="pairs", unit="pair"):
            if reason := future.result():
                plan = futures[future]
                skipped.append(
                    {"item": f"{plan.chosen.source} {plan.chosen.name} {plan.synthesizer}", "reason": reason}
                )
    return sorted(skipped, key=lambda entry: entry["item"])


def _make_part(plan: PairPlan, parts: Path) -> str | None:
    """Make one pair and keep it on disk; return the reason if it had to be skipped."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        row = make_row(plan)
        validate_row(row)
    except (AudioError, SynthesisError, ValueError, FileNotFoundError) as error:
        return str(error)
    path = _part_path(parts, plan)
    temporary = path.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist([row], schema=features().arrow_schema), temporary)
    os.replace(temporary, path)
    return None


def _write_shards(plans: Sequence[PairPlan], parts: Path, output: Path) -> list[dict[str, Any]]:
    """Gather the part files into shards by criterion and split; return the counts of what they hold."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.rmtree(output / "data", ignore_errors=True)
    done = sorted((plan for plan in plans if _part_path(parts, plan).is_file()), key=lambda plan: plan.pair_id)
    for criterion, split in sorted({(plan.criterion, plan.split) for plan in done}):
        members = [plan for plan in done if (plan.criterion, plan.split) == (criterion, split)]
        folder = output / "data" / criterion
        folder.mkdir(parents=True, exist_ok=True)
        shards = [members[i : i + _ROWS_PER_SHARD] for i in range(0, len(members), _ROWS_PER_SHARD)]
        for index, shard in enumerate(shards):
            table = pa.concat_tables(pq.read_table(_part_path(parts, plan)) for plan in shard)
            table = table.replace_schema_metadata(features().arrow_schema.metadata)
            path = folder / f"{split}-{index:05d}-of-{len(shards):05d}.parquet"
            pq.write_table(table, path.with_suffix(".tmp"), row_group_size=_ROWS_PER_GROUP)
            os.replace(path.with_suffix(".tmp"), path)
    columns = ("criterion", "split", "subset", "source", "synthesizer")
    keys = Counter((p.criterion, p.split, p.chosen.subset, p.chosen.source, p.synthesizer) for p in done)
    return [dict(zip(columns, key, strict=True)) | {"pairs": count} for key, count in sorted(keys.items())]


def render_card(report: dict[str, Any]) -> str:
    """Render the data-set card of a build from its report."""
    rows = report["pairs"]
    criteria = sorted({row["criterion"] for row in rows})
    configs = [("default", "*"), *((criterion, criterion) for criterion in criteria)]
    yaml = []
    for name, folder in configs:
        present = [s for s in SPLITS if any(r["split"] == s and folder in ("*", r["criterion"]) for r in rows)]
        # `datasets` caches a local folder under its last name and its card, not its files: without this line another
        # build in a folder of the same name would be answered with this one.
        yaml += [f"- config_name: {name}", f"  description: build {report['build_id']}", "  data_files:"]
        for split in present:
            yaml += [f"  - split: {split}", f"    path: data/{folder}/{split}-*.parquet"]
    table = ["| criterion | split | subset | source | synthesizer | pairs |", "|---|---|---|---|---|--:|"]
    table += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    channel = report["config"]["channel"]
    return Template(_CARD_TEMPLATE.read_text(encoding="utf-8")).substitute(
        configs="\n".join(yaml),
        table="\n".join(table),
        total=sum(row["pairs"] for row in rows),
        skipped=len(report["skipped"]),
        channel=json.dumps(channel) if channel else "off",
        seed=report["config"]["seed"],
    )
