"""Build a data set of preference pairs: sources -> splits -> pairs -> Parquet with a card and a report.

Every finished pair is kept in a part file named by its id until the last shard is written: a build that was killed
goes on where it stopped, and one whose configuration changed makes only the pairs that differ. A build whose result is
already there does nothing. The same configuration gives the same report, byte for byte, and the same shards too where
the synthesizers are deterministic.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sdiareward.audio_sdiareward import AudioError
from sdiareward.common.files import write_file
from sdiareward.common.locks import lock_folder
from sdiareward.common.worker_pool import open_worker_pool
from sdiareward.dataset_builder.episodes import Drop, Episode, Recording, ScriptPair, validate_episode
from sdiareward.pairs.schema import features, stable_id, validate_row
from sdiareward.perturbations.channel import ChannelSettings
from sdiareward.synthesis import SynthesisError, is_available

from .formats.shards import ShardWriter, count_pairs
from .pairing.pairing import PairPlan, SynthesizerSpec, TurnDurationError, make_row, plan_pairs
from .pairing.reference_clips import NoReference
from .pairing.splits import assign_splits
from .pipeline.inspection import SilentAudioError, inspect_episode
from .pipeline.media import TruncatedAudioError
from .reports.data_card import describe_drops, read_finished, write_report
from .sources import read_source


logger = logging.getLogger(__name__)
# What may differ between two builds of the same data set.
_PLACES = ("output_dir", "work_dir", "num_workers", "engine")
DROP_KIND_BY_ERROR: tuple[tuple[type[Exception], str], ...] = (
    (NoReference, "no_reference_clip"),
    (SilentAudioError, "silent_audio"),
    (TruncatedAudioError, "truncated_audio"),
    (TurnDurationError, "turn_duration"),
    (AudioError, "unusable_audio"),
    (FileNotFoundError, "missing_audio"),
    (SynthesisError, "synthesis_failed"),
    (ValueError, "invalid_pair"),
)


@dataclass(frozen=True)
class SourceConfig:
    """One corpus: its name, where it lies, its options, and how many of its first episodes to take."""

    name: str
    path: str | None = None
    limit: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BuildConfig:
    """Everything that decides what a build writes.

    Args:
        output_dir (`str`): Folder to write; name it `sdiareward` for `load_dataset("sdiareward")`.
        sources (`tuple[SourceConfig, ...]`): Corpora to read.
        synthesizers (`dict[str, SynthesizerChoice]`): Who speaks, by criterion.
        synthesizer_options (`dict[str, dict]`): Options of synthesizers that take some, such as an endpoint's address.
        channel (`ChannelSettings`, *optional*): Channel matching; None switches it off.
        validation, test (`float`): Shares of each source's episodes.
        seed (`int`): Seed of the splits and of the choice of synthesizers.
        pipeline (`Mapping`, *optional*): Settings of the pipeline (section B.1) for sources of long recordings.
        work_dir (`str`, *optional*): Where the pipeline keeps what it has done; `<output_dir>-work` by default.
        engine (`str`): What runs the pipeline, `"datasets"` or `"ray"`.
        num_workers (`int`): Processes.
    """

    output_dir: str
    sources: tuple[SourceConfig, ...]
    synthesizers: dict[str, SynthesizerSpec]
    synthesizer_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    channel: ChannelSettings | None = field(default_factory=ChannelSettings)
    validation: float = 0.1
    test: float = 0.2
    seed: int = 0
    pipeline: Mapping[str, Any] | None = None
    work_dir: str | None = None
    engine: Literal["datasets", "ray"] = "datasets"
    num_workers: int = 2

    def __post_init__(self) -> None:
        if self.engine not in ("datasets", "ray"):
            raise ValueError(f"engine is {self.engine!r}; it must be 'datasets' or 'ray'.")
        if self.num_workers < 1:
            raise ValueError(f"num_workers is {self.num_workers}; it must be at least 1.")
        if Path(self.output_dir) == Path():
            raise ValueError("output_dir is empty; name a folder to write.")


def build(config: BuildConfig, *, dry_run: bool = False) -> dict[str, Any]:
    """Build the data set of `config` and return its report, which also lies in the folder as `report.json`.

    Args:
        config (`BuildConfig`): What to build.
        dry_run (`bool`): Only read the sources and say how many pairs would be made; the pipeline does not run.

    Raises:
        UserError: Another process builds into the folder, or a worker was killed.
        ValueError: A synthesizer is not installed, or there is nothing to build from.
    """
    if dry_run:
        plans, drops = _plan(config, dry_run)
        return {"pairs": count_pairs((plan.split, plan.label) for plan in plans), **describe_drops(drops)}
    with lock_folder(config.output_dir):
        return _build(config)


def _build(config: BuildConfig) -> dict[str, Any]:
    plans, drops = _plan(config, dry_run=False)
    output = Path(config.output_dir)
    settings = {key: value for key, value in asdict(config).items() if key not in _PLACES}
    plan_id = stable_id(json.dumps(settings, sort_keys=True), *sorted(plan.pair_id for plan in plans))
    finished = None if (output / ".parts").exists() else read_finished(output, plan_id)
    if finished:
        logger.warning("%s is up to date; delete its report.json to build it again.", output)
        return finished
    _require_synthesizers(plans)
    parts = output / ".parts"
    parts.mkdir(parents=True, exist_ok=True)
    left_out = _make_pairs(plans, parts, config.num_workers)
    drops += left_out
    counts = _write_shards(plans, parts, output)
    report = write_report(output, counts, drops, settings, plan_id=plan_id, noted=_read_notes(plans, parts))
    if any(drop.kind == "missing_audio" for drop in left_out):
        # It was there when the sources were read, and may come back: then only what lacks it is made.
        logger.warning("%s: recordings have vanished; when they are back, run the same command again.", output)
    else:
        shutil.rmtree(parts)
    return report


def _plan(config: BuildConfig, dry_run: bool) -> tuple[list[PairPlan], list[Drop]]:
    drops: list[Drop] = []
    items = list(_read_items(config, drops, dry_run))
    if not items and not dry_run:
        raise ValueError(
            f"the sources {[s.name for s in config.sources]} hold no usable episode: "
            f"{[drop.reason for drop in drops[:3]]}."
        )
    episodes = [item.spoken if isinstance(item, ScriptPair) else item for item in items]
    assignment = assign_splits(episodes, validation=config.validation, test=config.test, seed=config.seed)
    options = config.synthesizer_options
    return list(plan_pairs(items, assignment, config.synthesizers, config.channel, config.seed, options)), drops


def _read_items(config: BuildConfig, drops: list[Drop], dry_run: bool) -> Iterator[Episode | ScriptPair]:
    """Yield the valid episodes and scripts; put everything else on `drops`."""
    seen: set[tuple[str, str]] = set()
    for item in _read_sources(config, drops, dry_run):
        sides = (item.written, item.spoken) if isinstance(item, ScriptPair) else (item,)
        name = f"{sides[-1].source} {sides[-1].name}"
        try:
            for side in sides:
                validate_episode(side)
        except ValueError as error:
            drops.append(Drop(name, "invalid_episode", str(error)))
            continue
        if (sides[-1].source, sides[-1].name) in seen:
            drops.append(Drop(name, "duplicate_id", f"{name} comes twice; the first is kept, name each once."))
            continue
        seen.add((sides[-1].source, sides[-1].name))
        yield item


def _read_sources(config: BuildConfig, drops: list[Drop], dry_run: bool) -> Iterator[Episode | ScriptPair]:
    recordings: list[Recording] = []
    for source in config.sources:
        count = 0
        for item in read_source(source.name, source.path, source.options):
            if isinstance(item, Drop):
                drops.append(item)
                continue
            if source.limit is not None and count >= source.limit:
                break
            count += 1
            if isinstance(item, Recording):
                recordings.append(item)
            else:
                yield item
    if recordings and not dry_run:
        yield from _run_pipeline(recordings, config, drops)


def _run_pipeline(recordings: Sequence[Recording], config: BuildConfig, drops: list[Drop]) -> Iterator[Episode]:
    from .pipeline import make_settings, run_pipeline

    settings = make_settings(config.pipeline or {})
    work = Path(config.work_dir or f"{config.output_dir.rstrip('/')}-work")
    result = run_pipeline(recordings, settings, work, engine=config.engine, num_workers=config.num_workers)
    drops += result.drops
    yield from result.episodes


def _require_synthesizers(plans: Iterable[PairPlan]) -> None:
    options = {plan.synthesizer: plan.options for plan in plans}
    if missing := sorted(name for name in options if not is_available(name, options[name])):
        raise ValueError(
            f"synthesizers {missing} cannot be used: they are not installed, or work by synthesizer_options that are "
            "not given; install them or take them out of the config."
        )


def _part_path(parts: Path, plan: PairPlan) -> Path:
    return parts / f"{plan.pair_id}.parquet"


def _make_pairs(plans: Sequence[PairPlan], parts: Path, num_workers: int) -> list[Drop]:
    """Make the pairs that have no part file yet; return what was skipped, with reasons."""
    from tqdm import tqdm

    todo = [plan for plan in plans if not _part_path(parts, plan).is_file()]
    drops = []
    with open_worker_pool(num_workers) as pool:
        futures = [pool.submit(_make_part, plan, parts) for plan in todo]
        for future in tqdm(as_completed(futures), total=len(futures), desc="pairs", unit="pair"):
            if drop := future.result():
                drops.append(drop)
    return sorted(drops, key=lambda drop: (drop.item, drop.kind, drop.reason))


def _make_part(plan: PairPlan, parts: Path) -> Drop | None:
    """Make one pair and keep it on disk; return the reason if it had to be skipped."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        row = make_row(plan)
        validate_row(row)
    except tuple(kind for kind, _ in DROP_KIND_BY_ERROR) as error:
        name = next(name for kind, name in DROP_KIND_BY_ERROR if isinstance(error, kind))
        return Drop(f"{plan.chosen.source} {plan.chosen.name} {plan.synthesizer}", name, str(error))
    path = _part_path(parts, plan)
    if plan.criterion == "modality" and (notes := [asdict(note) for note in inspect_episode(plan.chosen)]):
        write_file(path.with_suffix(".json"), json.dumps(notes))
    temporary = path.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist([row], schema=features().arrow_schema), temporary)
    os.replace(temporary, path)
    return None


def _read_notes(plans: Iterable[PairPlan], parts: Path) -> list[dict[str, str]]:
    """Return what was noted on the recordings of the pairs that were made, each recording once."""
    notes: dict[tuple[str, str], dict[str, str]] = {}
    for plan in plans:
        path = _part_path(parts, plan).with_suffix(".json")
        if path.is_file() and _part_path(parts, plan).is_file():
            notes |= {(note["item"], note["kind"]): note for note in json.loads(path.read_text(encoding="utf-8"))}
    return [notes[key] for key in sorted(notes)]


def _write_shards(plans: Sequence[PairPlan], parts: Path, output: Path) -> list[dict[str, Any]]:
    """Gather the part files into shards by criterion and split; return the counts of what they hold."""
    import pyarrow.parquet as pq

    with ShardWriter(output) as writer:
        for plan in sorted(plans, key=lambda plan: plan.pair_id):
            if _part_path(parts, plan).is_file():
                writer.write(plan.split, pq.read_table(_part_path(parts, plan)).to_pylist()[0])
    return writer.counts
