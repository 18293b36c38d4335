"""Rebuild the pairs of a metadata release from audio that the user obtained.

Every pair goes its own way: its recordings are found by their references, cut and resampled as the build did, compared
with the released fingerprints, and made into a row again with the same ids, channel and noise; the synthetic sides are
spoken anew by the same synthesizer. What cannot be rebuilt is listed in the report, by kind:

- of the recordings: `missing_audio`, `wrong_audio`, `truncated_audio`, `reencoded_audio` (taken with
  `allow_reencoded`), `undecodable_audio`, `outside_root` (a path that climbs out), `missing_enhancement`;
- of the pair: `synthesis_failed`, `no_reference_clip`, `unusable_audio`;
- of the release, which a stranger wrote: `no_reference`, `invalid_row`, `invalid_shard`.

The synthetic audio is compared too, and the comparison reported; it is no condition, for some engines never say a text
twice alike, and a text that was scrubbed is spoken scrubbed.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any, NamedTuple

from sdiareward.common.files import write_file
from sdiareward.common.locks import lock_folder
from sdiareward.common.worker_pool import open_worker_pool
from sdiareward.dataset_builder.episodes import Drop
from sdiareward.pairs.schema import features, stable_id

from ..formats.shards import ShardWriter, count_pairs
from ..reports.data_card import describe_drops, read_finished, write_report
from .rebuilding import RebuildSettings, Rebuilt, rebuild_row
from .recorded_parts import AudioRoots, PartError, find_part, is_long


logger = logging.getLogger(__name__)
_ROWS_PER_BATCH = 200


class _Task(NamedTuple):
    """A released pair, and a hash of it and of what decides how it is rebuilt."""

    key: str
    split: str
    row: dict[str, Any]


def reconstruct(
    release_folder: Path,
    audio_roots: AudioRoots,
    output: Path,
    *,
    allow_reencoded: bool = False,
    synthesizer_options: Mapping[str, Mapping[str, Any]] | None = None,
    num_workers: int = 2,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Rebuild a metadata release as a data set folder and return its report, which also lies there as `report.json`.

    Decoded recordings and finished pairs are kept in `<output>-work`: an interrupted run goes on where it stopped, and
    one after more audio was obtained rebuilds only what was missing. The folder may be deleted when all is there.

    Args:
        release_folder (`Path`): As `release` writes it.
        audio_roots (`AudioRoots`): Where the user's copies of the corpora lie.
        output (`Path`): Folder to write; name it `sdiareward` for `load_dataset("sdiareward")`.
        allow_reencoded (`bool`): Take recordings that went through another codec or have another level.
        synthesizer_options (`Mapping[str, Mapping]`, *optional*): Options of the synthesizers that take some, by name.
        num_workers (`int`): Processes.
        dry_run (`bool`): Only read the release and say how many pairs would be rebuilt.

    Returns:
        `dict`: Beside what a build reports: `released` (pairs in the release) and `turns` (see `Rebuilt`).

    Raises:
        FileNotFoundError: The folder holds no release.
        UserError: Another process rebuilds into the folder, or a worker was killed.
    """
    options = dict(synthesizer_options or {})
    tasks, drops = _read_tasks(release_folder, [allow_reencoded, options])
    if dry_run:
        return {"pairs": count_pairs((task.split, task.row) for task in tasks), **describe_drops(drops)}
    plan_id = stable_id(*sorted(task.key for task in tasks), len(drops))
    with lock_folder(output):
        finished = read_finished(output, plan_id)
        if finished and not finished["skipped"]:
            logger.warning("%s is complete; delete its report.json to rebuild it.", output)
            return finished
        work = Path(f"{output}-work")
        (work / "pairs").mkdir(parents=True, exist_ok=True)
        settings = RebuildSettings(audio_roots, work / "recordings", allow_reencoded, options)
        _decode_long_recordings(tasks, settings, num_workers)
        drops += _rebuild_pairs(tasks, settings, work / "pairs", num_workers)
        counts, turns = _write_shards(tasks, work / "pairs", output)
        config = {**_public_config(release_folder), "allow_reencoded": allow_reencoded}
        return write_report(output, counts, drops, config, plan_id=plan_id, released=len(tasks), turns=dict(turns))


def _read_tasks(folder: Path, settings: Any) -> tuple[list[_Task], list[Drop]]:
    """Read what can be read; a damaged shard or a second row of the same pair costs no other."""
    tasks: dict[str, _Task] = {}
    drops: list[Drop] = []
    for split, row in _read_shards(folder, drops):
        # Times may be NaN and texts anything: a dump is stable where they are equal.
        key = stable_id(split, json.dumps([row, settings], sort_keys=True, default=repr))
        name = str(row.get("pair_id"))
        if name in tasks:
            drops.append(Drop(f"pair {name[:40]}", "invalid_row", "this pair comes twice; the first is taken."))
        tasks.setdefault(name, _Task(key, split, row))
    return sorted(tasks.values(), key=lambda task: str(task.row.get("pair_id"))), drops


def _read_shards(folder: Path, drops: list[Drop]) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = sorted((folder / "data").glob("*/*-of-*.parquet"))
    if not paths:
        raise FileNotFoundError(f"{folder}: holds no data/<criterion>/<split>-*.parquet; give a release's folder.")
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=_ROWS_PER_BATCH):
                    yield from ((path.name.split("-")[0], row) for row in batch.to_pylist())
        # The last for texts that are none.
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = f"cannot be read to its end ({error}); get the release again."
            drops.append(Drop(f"{path.parent.name}/{path.name}", "invalid_shard", reason))


def _decode_long_recordings(tasks: Sequence[_Task], settings: RebuildSettings, num_workers: int) -> None:
    """Decode each long recording once, before several pairs ask for it at the same time."""
    references: dict[str, Mapping[str, Any]] = {}
    for task in tasks:
        try:
            references |= {reference["uri"]: reference for reference in _long_references(task.row)}
        except (AttributeError, LookupError, TypeError):
            continue  # Not the shape of a row: it is reported when its turn comes.
    jobs = [(reference, settings.roots, settings.cache_dir) for reference in references.values()]
    for _ in _run(_decode_one, jobs, num_workers, "recordings"):
        pass


def _long_references(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [reference for turn in row["chosen"] for reference in turn["audio_ref"] if is_long(reference)]


def _decode_one(reference: Mapping[str, Any], roots: AudioRoots, cache_dir: Path) -> None:
    try:
        find_part(reference, roots, cache_dir)
    except (PartError, LookupError, TypeError, ValueError):
        logger.debug("%s will be reported with its pairs", reference.get("uri"))


def _rebuild_pairs(tasks: Sequence[_Task], settings: RebuildSettings, pairs: Path, num_workers: int) -> list[Drop]:
    """Rebuild the pairs that were not rebuilt before; return why others could not be."""
    jobs = [(task, settings, pairs) for task in tasks if _read_note(pairs, task) is None]
    drops = [drop for drop in _run(_rebuild_one, jobs, num_workers, "pairs") if drop]
    return sorted(drops, key=lambda drop: (drop.item, drop.kind, drop.reason))


def _rebuild_one(task: _Task, settings: RebuildSettings, pairs: Path) -> Drop | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    result = rebuild_row(task.split, task.row, settings)
    if not isinstance(result, Rebuilt):
        return result
    path = pairs / f"{task.key}.parquet"
    unfinished = path.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist([result.row], schema=features().arrow_schema), unfinished)
    os.replace(unfinished, path)
    # Last, for it says that the row is there.
    write_file(path.with_suffix(".json"), json.dumps(result.turns))
    return None


def _read_note(pairs: Path, task: _Task) -> dict[str, int] | None:
    """Return what was counted when the pair was rebuilt; None when it has not been."""
    path = pairs / f"{task.key}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _run(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], num_workers: int, name: str) -> Iterator[Any]:
    """Yield what `function` returns for each job, in this process for one worker, with a progress bar."""
    from tqdm import tqdm

    if num_workers <= 1 or len(jobs) <= 1:
        yield from (function(*job) for job in tqdm(jobs, desc=name))
        return
    with open_worker_pool(num_workers) as pool:
        futures = [pool.submit(function, *job) for job in jobs]
        for future in tqdm(as_completed(futures), total=len(futures), desc=name):
            yield future.result()


def _write_shards(tasks: Iterable[_Task], pairs: Path, output: Path) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Gather the rebuilt rows into shards; return the counts of what they hold and of how the turns compare."""
    import pyarrow.parquet as pq

    turns: Counter[str] = Counter()
    with ShardWriter(output) as writer:
        for task in tasks:
            if (note := _read_note(pairs, task)) is not None:
                turns.update(note)
                writer.write(task.split, pq.read_table(pairs / f"{task.key}.parquet").to_pylist()[0])
    return writer.counts, turns


def _public_config(folder: Path) -> dict[str, Any]:
    """Return what the release's report says of the build, for the card; nothing where it says nothing."""
    try:
        config = json.loads((folder / "report.json").read_text(encoding="utf-8"))["config"]
        return {key: config.get(key) for key in ("seed", "channel")}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
