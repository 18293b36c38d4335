"""Assign dialogues to train, validation and test by group, and synthesizers to dialogues.

Test is for measuring only: its groups are in no other split, and only it holds the held-out synthesizers.
"""

from __future__ import annotations

from collections.abc import Iterable

from sdiareward.dataset_builder.episodes import Episode
from sdiareward.pairs.schema import make_stable_id


def assign_splits(
    episodes: Iterable[Episode], *, validation: float, test: float, seed: int
) -> dict[tuple[str, str], str]:
    """Give every unit `(source, split_group)` a split, in shares of each source and by hash, whatever the order."""
    if test != 1 and not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise ValueError(
            f"validation={validation} and test={test} must be shares that leave something for training; test=1 puts "
            "everything into test."
        )
    sizes: dict[tuple[str, str], int] = {}
    for episode in episodes:
        sizes[split_unit(episode)] = sizes.get(split_unit(episode), 0) + 1
    assignment = {}
    for source in {source for source, _ in sizes}:
        units = sorted((unit for unit in sizes if unit[0] == source), key=lambda unit: make_stable_id(seed, *unit))
        total = sum(sizes[unit] for unit in units)
        done = 0
        for unit in units:
            middle = (done + sizes[unit] / 2) / total
            assignment[unit] = "test" if middle < test else "validation" if middle < test + validation else "train"
            done += sizes[unit]
    return assignment


def split_unit(episode: Episode) -> tuple[str, str]:
    """Return the unit that is never divided: the recording or dialogue, or the coarser unit of its source."""
    return episode.source, episode.split_group or episode.group


def choose_synthesizers(key: str, names: Iterable[str], count: int | None, seed: int) -> list[str]:
    """Choose `count` synthesizers for one dialogue (None: all), the same ones for the same key and seed."""
    ordered = sorted(names, key=lambda name: make_stable_id(seed, key, name))
    return ordered if count is None else ordered[:count]
