"""Assign dialogues to train, validation and test by group, and synthesizers to dialogues.

Test is for measuring only: its groups are in no other split, and only it holds the held-out synthesizers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import AudioError
from sdiareward.dataset_builder.episodes import Episode
from sdiareward.pairs.content import join_units
from sdiareward.pairs.schema import make_stable_id

from ..parts import run_jobs
from ..pipeline.media import read_beginning, read_promised_s
from ..release.recording_check import COPY_S, TOLERANCE_S, find_copies, measure_energies


Unit = tuple[str, str]
# Fewer are read in this process.
_FILES_PER_WORKER = 100


def assign_splits(
    episodes: Iterable[Episode],
    *,
    validation: float,
    test: float,
    seed: int,
    joined: Mapping[Unit, Unit] | None = None,
) -> dict[Unit, str]:
    """Give every unit `(source, split_group)` a split, in shares of each source and by hash, whatever the order.

    Units that are `joined` (`join_groups`) then get one split together, the one that lacks most of its share.
    """
    if test != 1 and not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise ValueError(
            f"validation={validation} and test={test} must be shares that leave something for training; test=1 puts "
            "everything into test."
        )
    sizes: dict[Unit, int] = {}
    for episode in episodes:
        sizes[split_unit(episode)] = sizes.get(split_unit(episode), 0) + 1
    assignment: dict[Unit, str] = {}
    for source in {source for source, _ in sizes}:
        units = sorted((unit for unit in sizes if unit[0] == source), key=lambda unit: make_stable_id(seed, *unit))
        total = sum(sizes[unit] for unit in units)
        done = 0
        for unit in units:
            middle = (done + sizes[unit] / 2) / total
            assignment[unit] = "test" if middle < test else "validation" if middle < test + validation else "train"
            done += sizes[unit]
    shares = {"test": test} if test == 1 else {"train": 1 - validation - test, "test": test, "validation": validation}
    _assign_joined(assignment, sizes, joined or {}, {split: share for split, share in shares.items() if share}, seed)
    return assignment


def _assign_joined(
    assignment: dict[Unit, str],
    sizes: Mapping[Unit, int],
    joined: Mapping[Unit, Unit],
    shares: Mapping[str, float],
    seed: int,
) -> None:
    members: dict[Unit, list[Unit]] = defaultdict(list)
    filled: Counter[str] = Counter()
    for unit, split in assignment.items():
        if unit in joined:
            members[joined[unit]].append(unit)
        else:
            filled[split] += sizes[unit]
    for first in sorted(members, key=lambda unit: make_stable_id(seed, *unit)):
        split = min(shares, key=lambda split: filled[split] / shares[split])
        filled[split] += sum(sizes[unit] for unit in members[first])
        assignment.update(dict.fromkeys(members[first], split))


def join_groups(
    files: Mapping[Unit, Collection[str]], hash_file: Callable[[str], str | None], num_workers: int
) -> tuple[dict[Unit, Unit], dict[str, int]]:
    """Return the first unit of each that shares a recording with another, and the counts of what joins them."""
    units = sorted(files)
    hashes = {path: found for path in sorted(set().union(*files.values())) if (found := hash_file(path))}
    first: dict[str, str] = {}
    for path, found in hashes.items():
        first.setdefault(found, path)
    couples = find_near_copies([*first.values()], num_workers)
    shared: dict[str, list[object]] = defaultdict(list)
    for couple in couples:
        for path in couple:
            shared[hashes[path]].append(couple)
    contents = ({hashes.get(path, path) for path in files[unit]} for unit in units)
    found = join_units([*each, *(couple for key in each for couple in shared.get(key, ()))] for each in contents)
    sizes, by_file = Counter(found), Counter(join_units(files[unit] for unit in units))
    counts = {
        "groups": sum(size for size in sizes.values() if size > 1),
        "into": sum(size > 1 for size in sizes.values()),
        "by_file": sum(size for size in by_file.values() if size > 1),
        "equal_copies": len(hashes) - len(first),
        "near_copies": len({later for _, later in couples}),
    }
    return {unit: units[n] for unit, n in zip(units, found, strict=True) if sizes[n] > 1}, counts


def find_near_copies(paths: Collection[str], num_workers: int) -> list[tuple[str, str]]:
    """Return the couples of files that hold one recording in two encodings; only those of equal length are decoded."""
    seconds = sorted((found, path) for path in paths if (found := _read(read_promised_s, path)) is not None)
    near = [two[0] - one[0] <= TOLERANCE_S for one, two in zip(seconds, seconds[1:], strict=False)]
    wanted = [s for s, *sides in zip(seconds, [False, *near], [*near, False], strict=False) if any(sides)]
    workers = num_workers if len(wanted) > _FILES_PER_WORKER else 1
    measured = dict(run_jobs(_measure_beginning, [path for _, path in wanted], workers, "copies") if wanted else ())
    kept = [(found, path) for found, path in wanted if measured[path] is not None]
    couples = find_copies([(found, measured[path]) for found, path in kept])
    return [(kept[one][1], kept[other][1]) for one, other in couples]


def _measure_beginning(path: str) -> tuple[str, np.ndarray | None]:
    array = _read(partial(read_beginning, size_s=COPY_S[1]), path)
    return path, None if array is None else measure_energies(array)


def _read(read: Callable[[str], Any], path: str) -> Any:
    try:
        return read(path)
    # Its pairs are skipped with the reason.
    except (AudioError, OSError):
        return None


def split_unit(episode: Episode) -> Unit:
    """Return the unit that is never divided: the recording or dialogue, or the coarser unit of its source."""
    return episode.source, episode.split_group or episode.group


def choose_synthesizers(key: str, names: Iterable[str], count: int | None, seed: int) -> list[str]:
    """Choose `count` synthesizers for one dialogue (None: all), the same ones for the same key and seed."""
    ordered = sorted(names, key=lambda name: make_stable_id(seed, key, name))
    return ordered if count is None else ordered[:count]
