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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from sdiareward.common.files import require_other_folder
from sdiareward.common.parts import Make, Processes, Rows, run_parts
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.pairs.schema import make_stable_id

from ..formats.shards import count_pairs, list_paths, read_shard
from ..pairing.pairing import list_audible
from ..reports.data_card import read_finished, read_public_settings, summarise_skipped, write_report
from ..row_parts import choose_size, open_row_parts, write_shards
from .rebuilding import RebuildSettings, Rebuilt, rebuild_row
from .recorded_parts import AudioRoots, find_part, needs_copy


logger = logging.getLogger(__name__)
# Key, split and row of a released pair; the key is a hash of it and of what decides how it is rebuilt.
Task = tuple[str, str, dict[str, Any]]


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
    work = Path(f"{output}-work")
    options = dict(synthesizer_options or {})
    settings = RebuildSettings(audio_roots, work / "recordings", allow_reencoded, options)
    skipped: list[Skipped] = []
    tasks = {task[0]: task for task in _read_tasks(release_folder, [allow_reencoded, list_audible(options)], skipped)}
    if dry_run:
        return {"pairs": count_pairs((split, row) for _, split, row in tasks.values()), **summarise_skipped(skipped)}
    plan_id = make_stable_id(*sorted(tasks))
    finished = read_finished(output, plan_id)
    if finished and not finished["skipped"]:
        logger.warning("%s is complete; delete its report.json to rebuild it.", output)
        return finished
    parts = open_row_parts(work, {})
    pending = [tasks[key] for key in parts.find_pending(list(tasks), _find_skipped, "notes")]
    engine, load = Processes(num_workers), partial(_load, settings)
    _copy_recordings(pending, settings, engine)
    run_parts(parts, pending, load, choose_size(len(tasks)), engine, label="pairs", unit="pair")
    counts, notes = write_shards(parts, {key: split for key, (_, split, _) in tasks.items()}, output)
    turns: Counter[str] = Counter()
    for note in notes:
        turns.update(note.get("turns", {}))
        skipped += [Skipped(**note["skip"])] if "skip" in note else []
    config = {**read_public_settings(release_folder), "allow_reencoded": allow_reencoded}
    return write_report(output, counts, skipped, config, plan_id=plan_id, released=len(tasks), turns=dict(turns))


def _read_tasks(folder: Path, settings: Any, damaged: list[Skipped]) -> list[Task]:
    """Return the pairs of a release in the order of their ids; append the shards that cannot be read to `damaged`."""
    import pyarrow as pa

    tasks = []
    for path in list_paths(folder):
        try:
            for split, row in read_shard(path):
                key = make_stable_id(split, json.dumps([row, settings], sort_keys=True, default=repr))
                tasks.append((key, split, row))
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = f"cannot be read to its end ({error}); get the release again."
            damaged.append(Skipped(f"{path.parent.name}/{path.name}", "invalid_shard", reason))
    return sorted(tasks, key=lambda task: task[2]["pair_id"])


def _find_skipped(rows: Rows) -> Iterator[bool]:
    """Pairs that could not be rebuilt are tried again."""
    return ("skip" in json.loads(row["notes"]) for row in rows)


def _copy_recordings(tasks: Iterable[Task], settings: RebuildSettings, engine: Processes) -> None:
    """Decode and enhance each recording once, before several pairs ask for it at the same time."""
    references = {
        reference["uri"]: reference
        for _, _, row in tasks
        for turn in row["chosen"]
        for reference in turn["audio_ref"]
        if needs_copy(reference)
    }
    for _ in engine(partial(_load_decoder, settings), [[reference] for reference in references.values()]):
        pass


def _load_decoder(settings: RebuildSettings) -> Make:
    def decode(parts: Iterable[Any]) -> Iterator[Rows]:
        for (reference,) in parts:
            # What fails here is reported with its pairs.
            with suppress(SkipError, ValueError):
                find_part(reference, settings.roots, settings.cache_dir)
            yield []

    return decode


def _load(settings: RebuildSettings) -> Make:
    def rebuild(parts: Iterable[Any]) -> Iterator[Rows]:
        for part in parts:
            rows = []
            for key, split, row in part:
                result = rebuild_row(split, row, settings)
                notes = {"turns": result.turns} if isinstance(result, Rebuilt) else {"skip": vars(result)}
                made = [result.row] if isinstance(result, Rebuilt) else []
                rows.append({"item": key, "rows": made, "notes": json.dumps(notes)})
            yield rows

    return rebuild
