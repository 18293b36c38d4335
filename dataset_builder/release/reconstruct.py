"""Rebuild the pairs of a metadata release from the user's own audio, each pair by itself.

Recordings are found by their references, cut and resampled as in the build, and compared with the released
fingerprints. Pairs that cannot be rebuilt are reported by kind:

- recordings: `missing_audio`, `wrong_audio`, `truncated_audio`, `reencoded_audio` (accepted with `allow_reencoded`),
  `undecodable_audio`, `outside_root` (a path that climbs out), `missing_enhancement`;
- pairs: `synthesis_failed`, `implausible_speech`, `language`, `no_reference_clip`, `unusable_audio`;
- releases: `no_reference`, `invalid_row`, `invalid_shard`.

Synthetic audio may differ: some engines are not deterministic, and a scrubbed text is spoken as it was scrubbed.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sdiareward.common.files import require_other_folder
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.pairs.schema import make_stable_id

from ..formats.shards import count_pairs, list_paths, read_shard
from ..pairing.pairing import list_audible
from ..parts import PartFolder, run_jobs
from ..reports.data_card import read_finished, read_report, summarise_skipped, write_report
from .rebuilding import RebuildSettings, Rebuilt, rebuild_row
from .recorded_parts import AudioRoots, find_part, needs_copy


logger = logging.getLogger(__name__)


class _Task(NamedTuple):
    """A released pair; `key` is a hash of it and of what decides how it is rebuilt."""

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
    """Rebuild a metadata release as a data set folder; return its report.

    `<output>-work` keeps finished pairs: a rerun, after more audio was obtained for instance, makes the others only.
    """
    require_other_folder(release_folder, output)
    options = dict(synthesizer_options or {})
    tasks, damaged = _read_tasks(release_folder, [allow_reencoded, list_audible(options)])
    if dry_run:
        return {"pairs": count_pairs((task.split, task.row) for task in tasks), **summarise_skipped(damaged)}
    plan_id = make_stable_id(*sorted(task.key for task in tasks))
    finished = read_finished(output, plan_id)
    if finished and not finished["skipped"]:
        logger.warning("%s is complete; delete its report.json to rebuild it.", output)
        return finished
    work = Path(f"{output}-work")
    parts = PartFolder(work / "pairs")
    settings = RebuildSettings(audio_roots, work / "recordings", allow_reencoded, options)
    _copy_recordings(tasks, settings, num_workers)
    skipped = damaged + _rebuild_pairs(tasks, settings, parts, num_workers)
    counts = parts.write_shards(output, {task.key: task.split for task in tasks})
    turns: Counter[str] = Counter()
    for task in tasks:
        turns.update(parts.read_notes(task.key) or {})
    config = {**_read_public_config(release_folder), "allow_reencoded": allow_reencoded}
    return write_report(output, counts, skipped, config, plan_id=plan_id, released=len(tasks), turns=dict(turns))


def _read_tasks(folder: Path, settings: Any) -> tuple[list[_Task], list[Skipped]]:
    import pyarrow as pa

    tasks, damaged = [], []
    for path in list_paths(folder):
        try:
            for split, row in read_shard(path):
                key = make_stable_id(split, json.dumps([row, settings], sort_keys=True, default=repr))
                tasks.append(_Task(key, split, row))
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = f"cannot be read to its end ({error}); get the release again."
            damaged.append(Skipped(f"{path.parent.name}/{path.name}", "invalid_shard", reason))
    return sorted(tasks, key=lambda task: task.row["pair_id"]), damaged


def _copy_recordings(tasks: Sequence[_Task], settings: RebuildSettings, num_workers: int) -> None:
    """Decode and enhance each recording once, before several pairs ask for it at the same time."""
    references = {
        reference["uri"]: reference
        for task in tasks
        for turn in task.row["chosen"]
        for reference in turn["audio_ref"]
        if needs_copy(reference)
    }
    decode = partial(_decode_one, roots=settings.roots, cache_dir=settings.cache_dir)
    for _ in run_jobs(decode, list(references.values()), num_workers, "recordings"):
        pass


def _decode_one(reference: Mapping[str, Any], roots: AudioRoots, cache_dir: Path) -> None:
    try:
        find_part(reference, roots, cache_dir)
    except (SkipError, ValueError):
        logger.debug("%s will be reported with its pairs", reference["uri"])


def _rebuild_pairs(
    tasks: Sequence[_Task], settings: RebuildSettings, parts: PartFolder, num_workers: int
) -> list[Skipped]:
    todo = [task for task in tasks if not parts.has(task.key)]
    rebuild = partial(_rebuild_one, settings=settings, parts=parts)
    skipped = filter(None, run_jobs(rebuild, todo, num_workers, "pairs"))
    return sorted(skipped, key=lambda skip: (skip.item, skip.kind, skip.reason))


def _rebuild_one(task: _Task, settings: RebuildSettings, parts: PartFolder) -> Skipped | None:
    result = rebuild_row(task.split, task.row, settings)
    if not isinstance(result, Rebuilt):
        return result
    parts.write(task.key, [result.row], result.turns)
    return None


def _read_public_config(folder: Path) -> dict[str, Any]:
    config = read_report(folder).get("config", {})
    return {key: config.get(key) for key in ("seed", "channel")}
