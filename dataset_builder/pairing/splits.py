"""Assign dialogues to train, validation and test by group, and synthesizers to dialogues.

Test is for measuring only: its groups are in no other split, and only it holds the held-out synthesizers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from typing import Any

from sdiareward.audio_sdiareward import AudioError
from sdiareward.dataset_builder.episodes import Episode
from sdiareward.pairs.content import join_units
from sdiareward.pairs.schema import make_stable_id

from ..pipeline.media import read_beginning
from ..recording_check import COPY_S, find_copies, measure_energies


Unit = tuple[str, str]


def assign_splits(
    episodes: Iterable[Episode], joined: Mapping[Unit, Unit], *, validation: float, test: float, seed: int
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
    filled: Counter[str] = Counter()
    for unit in assignment.keys() - joined.keys():
        filled[assignment[unit]] += sizes[unit]
    ordered = sorted(joined, key=lambda unit: (make_stable_id(seed, *joined[unit]), unit))
    for _, members in groupby(ordered, joined.get):
        together = list(members)
        split = min(filter(shares.get, shares), key=lambda split: filled[split] / shares[split])
        filled[split] += sum(sizes[unit] for unit in together)
        assignment |= dict.fromkeys(together, split)
    return assignment


def join_groups(
    files: Mapping[Unit, Collection[str]], hash_file: Callable[[str], str | None]
) -> tuple[dict[Unit, Unit], dict[str, int]]:
    """Return the first unit of each that shares a recording with another, and the counts of what joins them."""
    from tqdm import tqdm

    hashes = {path: hash_file(path) or path for path in sorted(set().union(*files.values()))}
    paths = {content: path for path, content in hashes.items()}
    measured = {
        content: _measure(path) for content, path in tqdm(paths.items(), desc="copies", disable=len(paths) < 100)
    }
    near: dict[str, list[object]] = {content: [] for content in paths}
    for couple in find_copies({content: found for content, found in measured.items() if found}):
        for content in couple:
            near[content].append(couple)
    same = join_units(near)
    found = join_units({unit: [same[hashes[path]] for path in of_unit] for unit, of_unit in files.items()})
    sizes, by_file = Counter(found.values()), Counter(join_units(files).values())
    counts = {name: sum(n for n in of.values() if n > 1) for name, of in (("groups", sizes), ("by_file", by_file))}
    counts |= {"equal_copies": len(hashes) - len(paths), "near_copies": len(paths) - len(set(same.values()))}
    return {unit: first for unit, first in found.items() if sizes[first] > 1}, counts


def _measure(path: str) -> tuple[float, Any] | None:
    try:
        array, seconds = read_beginning(path, COPY_S[1])
    # Its pairs are skipped with the reason.
    except (AudioError, OSError):
        return None
    return seconds, measure_energies(array)


def split_unit(episode: Episode) -> Unit:
    """Return the unit that is never divided: the recording or dialogue, or the coarser unit of its source."""
    return episode.source, episode.split_group or episode.group


def choose_synthesizers(key: str, names: Iterable[str], count: int | None, seed: int) -> list[str]:
    """Choose `count` synthesizers for one dialogue (None: all), the same ones for the same key and seed."""
    ordered = sorted(names, key=lambda name: make_stable_id(seed, key, name))
    return ordered if count is None else ordered[:count]
