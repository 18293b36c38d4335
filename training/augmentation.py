"""Add training pairs made from the existing ones: copies through other channels, and pairs against their own attacks.

A model that sees every pair through several channels learns that the channel carries nothing. A model that sees an
intact and a broken dialogue in the same voices learns to listen to the conversation.

Nothing is stored: a row is changed when it is read. The change depends on its pair and the seed alone, so a resumed
run reads the same rows. Only the training split is augmented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.common.files import hash_json
from sdiareward.dataset_builder.synthesis import find_voice
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.loading import name_pairs
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.schema import MAX_TURN_S, SIDES, make_stable_seed
from sdiareward.perturbations.attacks import ATTACKS, Attack, AttackContext
from sdiareward.perturbations.decoded_pairs import Turn, decode_pairs, to_messages
from sdiareward.perturbations.registry import (
    PERTURBATIONS,
    apply_chain,
    change_recordings,
    draw_chain,
    require_known,
)


if TYPE_CHECKING:
    import datasets

_TRAINING = {name: perturbation for name, perturbation in PERTURBATIONS.items() if not perturbation.is_held_out}
# Names of several perturbations each. None is held out for the audit.
PRESETS = {
    "all": tuple(_TRAINING),
    # Microphone, room, line and file: nothing moves in time.
    "channel": tuple(name for name, perturbation in _TRAINING.items() if perturbation.keeps_length),
}
AUGMENT_SIDES = ("both", "each")
# What an option needs beside it.
_NEEDED_BY = {
    **dict.fromkeys(("augmented_copies", "augment_sides"), "augmentations"),
    "hard_negative_share": "hard_negatives",
}
# Rows are read again soon: the two sides of a pair one after the other, and a pair for each of its attacks.
_CACHED_ROWS, _CACHED_PAIRS = 4, 16
# A turn is changed a little beyond what the model hears of it, since a higher speed moves samples into that part.
_MARGIN = 1.1


def make_option(default: Any, text: str, **metadata: Any) -> Any:
    """Return a field with a help text, as `TrlParser` reads it."""
    return field(metadata={"help": text, **metadata}, **{"default_factory" if default is list else "default": default})


@dataclass
class AugmentationSettings:
    """Which training pairs are added; the arguments of the script extend them."""

    augmentations: list[str] = make_option(
        list,
        "Perturbations for copies of the training pairs, by name; all or channel for those that the audit does not "
        "hold out.",
    )
    augmented_copies: int = make_option(1, "Copies of each training pair, in addition to the pair itself.")
    augment_sides: str = make_option(
        "both",
        "both puts the two sides of a copy through the same perturbations; each draws perturbations for each side.",
    )
    hard_negatives: list[str] = make_option(
        list, "Attacks by name; each adds training pairs of a chosen side against the attack on it."
    )
    hard_negative_share: float = make_option(1.0, "Share of the pairs that each attack is applied to, from 0 to 1.")

    def __post_init__(self) -> None:
        if self.augmented_copies < 1:
            raise ValueError(f"augmented_copies is {self.augmented_copies}; give at least 1, or omit augmentations.")
        if self.augment_sides not in AUGMENT_SIDES:
            raise ValueError(f"augment_sides is {self.augment_sides!r}; it must be one of {', '.join(AUGMENT_SIDES)}.")
        if not 0 < self.hard_negative_share <= 1:
            raise ValueError(f"hard_negative_share is {self.hard_negative_share:g}; it must be above 0 and at most 1.")
        self.list_perturbations()
        self.find_attacks()
        for name, needed in _NEEDED_BY.items():
            if not getattr(self, needed) and getattr(self, name) != getattr(AugmentationSettings, name):
                raise ValueError(f"{name} has no effect without {needed}; give {needed} too, or omit {name}.")

    def list_perturbations(self) -> tuple[str, ...]:
        """Return the names of the perturbations, with the presets expanded."""
        names = [name for given in self.augmentations for name in PRESETS.get(given, (given,))]
        require_known(names)
        return tuple(dict.fromkeys(names))

    def find_attacks(self) -> dict[str, Attack]:
        if unknown := [name for name in self.hard_negatives if name not in ATTACKS]:
            raise ValueError(f"the hard negative is {unknown[0]!r}; it must be one of {', '.join(sorted(ATTACKS))}.")
        return {name: ATTACKS[name] for name in self.hard_negatives}


class _Variant(NamedTuple):
    row: int
    pair_id: str
    copy: int = 0  # From 1 on; 0 is the pair as it is.
    attack: str | None = None


class AugmentedPairs(Sequence[Any]):
    """The pairs of a training split and the pairs that `settings` add, read like the data set itself."""

    def __init__(
        self,
        pairs: datasets.Dataset,
        settings: AugmentationSettings,
        max_turn_s: float = MAX_TURN_S,
        seed: int = 0,
        rows: Sequence[int] | None = None,
    ):
        self.pairs, self.settings, self.max_turn_s, self.seed = pairs, settings, max_turn_s, seed
        self.column_names = list(dict.fromkeys([*pairs.column_names, "pair_id"]))
        self._perturbations, self._attacks = settings.list_perturbations(), settings.find_attacks()
        variants = [variant for row, name in enumerate(name_pairs(pairs)) for variant in self._plan(row, name)]
        # Numbers of the rows that `select` kept.
        self._rows = range(len(variants)) if rows is None else rows
        self._variants = [variants[row] for row in self._rows]
        self._read = lru_cache(_CACHED_ROWS)(self._read_variant)
        self._decoded = _DecodedPairs(pairs, _CACHED_PAIRS)
        self._outlines = _DecodedPairs(pairs, None, audio=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let each process of a data loader build its own."""
        return AugmentedPairs, (self.pairs, self.settings, self.max_turn_s, self.seed, self._rows)

    def select(self, rows: Sequence[int]) -> AugmentedPairs:
        """Return the rows with the given numbers, as `datasets.Dataset.select` does."""
        kept = [self._rows[row] for row in rows]
        return AugmentedPairs(self.pairs, self.settings, self.max_turn_s, self.seed, kept)

    def fingerprint(self) -> str:
        """Return a hash of the pairs and the settings, the key of the precomputed rows; every recording is read."""
        settings = {item.name: getattr(self.settings, item.name) for item in fields(AugmentationSettings)}
        # The names that a preset stands for, since these may change.
        settings |= {"augmentations": list(self._perturbations), "seed": self.seed}
        return hash_json([fingerprint_pairs([], self.pairs), self.max_turn_s, settings, list(self._rows)])

    def __len__(self) -> int:
        return len(self._variants)

    def __getitem__(self, key: Any) -> Any:
        """Return a changed row by its number, or a column other than the two sides by its name."""
        if key == "pair_id":
            return [variant.pair_id for variant in self._variants]
        if isinstance(key, str):
            values = list(self.pairs[key])
            return [values[variant.row] for variant in self._variants]
        if not 0 <= key < len(self):
            raise IndexError(f"row {key} of {len(self)}")
        return self._read(int(key))

    def _plan(self, row: int, pair_id: str) -> Iterator[_Variant]:
        yield _Variant(row, pair_id)
        for copy in range(1, self.settings.augmented_copies + 1 if self._perturbations else 1):
            yield _Variant(row, f"{pair_id}, copy {copy}", copy=copy)
        for attack in self._attacks:
            variant = _Variant(row, f"{pair_id}, {attack}", attack=attack)
            if self._make_rng(variant).random() < self.settings.hard_negative_share:
                yield variant

    def _make_rng(self, variant: _Variant, *more: Any) -> np.random.Generator:
        return np.random.default_rng(make_stable_seed(self.seed, variant.pair_id, *more))

    def _read_variant(self, index: int) -> dict[str, Any]:
        variant = self._variants[index]
        row = {**self.pairs[variant.row], "pair_id": variant.pair_id}
        if variant.attack is not None:
            row["rejected"] = to_messages(self._apply_attack(variant))
        elif variant.copy:
            row |= {side: self._perturb(row[side], variant, side) for side in SIDES}
        return row

    def _perturb(self, turns: Sequence[Mapping[str, Any]], variant: _Variant, side: str) -> list[dict[str, Any]]:
        """Apply one chain of perturbations to all turns of a side, as one microphone and one line would."""
        rng = self._make_rng(variant, *([side] if self.settings.augment_sides == "each" else []))
        chain, seed = draw_chain(self._perturbations, rng), int(rng.integers(2**32))
        end = round(_MARGIN * self.max_turn_s * SAMPLING_RATE)

        def change(_: int, array: np.ndarray) -> np.ndarray:
            return apply_chain(array[:end], SAMPLING_RATE, chain, seed=seed)

        return change_recordings(turns_to_messages(turns), change)

    def _apply_attack(self, variant: _Variant) -> list[Turn]:
        attack = self._attacks[str(variant.attack)]
        rng = self._make_rng(variant, "attack")
        context = AttackContext(rng, self._decoded, self.max_turn_s, outlines=self._outlines, speak=find_voice())
        turns = attack.build(self._decoded[variant.row], context)
        if turns is None:
            raise ValueError(f"{variant.attack!r} does not apply to this pair; it needs {attack.needs}.")
        return turns


class _DecodedPairs(Sequence[Any]):
    """Pairs in memory, decoded when they are read; the last `num_kept` of them, or all, are kept."""

    def __init__(self, pairs: datasets.Dataset, num_kept: int | None, audio: bool = True):
        self._num_pairs = len(pairs)
        self._read = lru_cache(num_kept)(lambda index: decode_pairs(pairs, [index], audio)[0])

    def __len__(self) -> int:
        return self._num_pairs

    def __getitem__(self, index: Any) -> Any:
        return self._read(index)
