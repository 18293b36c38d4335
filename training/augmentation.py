"""More pairs to train on, made of those there are: through other channels, and against their own attacks.

A reward that hears the channel learns that it carries nothing where every pair comes through several: `augmentations`
adds copies of each pair, each through a random chain of nuisances (`effects.NUISANCES`). A reward that hears the
voices alone learns to listen to the conversation where the same recording is on both sides, once whole and once
broken: `hard_negatives` adds pairs whose rejected side is an attack (`audit.attacks.ATTACKS`).

Nothing is stored: a row is changed when it is read. What changes it depends on its pair and the seed alone, so that a
run which is started again reads the same rows. Only the training split is ever augmented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.pairs.loading import pair_names, turns_to_messages
from sdiareward.pairs.schema import MAX_TURN_S, SIDES, stable_id
from sdiareward.perturbations.effects import NUISANCES, apply_chain, change_recordings, draw_chain, require_known


if TYPE_CHECKING:
    import datasets

    from sdiareward.perturbations.decoded_pairs import AuditPair

# Names that stand for several nuisances.
PRESETS = {
    "all": tuple(NUISANCES),
    # What microphone, room, line and file do: nothing that moves anything in time.
    "channel": tuple(name for name, nuisance in NUISANCES.items() if nuisance.keeps_length),
}
AUGMENT_SIDES = ("both", "each")
# Part of what is computed ahead is found by: to be raised when the same settings give other rows.
_FORMAT = 1
# Asked for again soon: the two sides of a pair one after the other, and a pair by each of its attacks.
_ROWS_KEPT, _DONORS_KEPT = 4, 16
# Beyond what a model hears of a turn nothing is changed, but for what a higher speed brings into its hearing.
_SPARE = 1.1


@dataclass(frozen=True)
class AugmentationSettings:
    """What is added to the training pairs.

    Args:
        augmentations (`list[str]`): Nuisances that copies go through, by name, or `all` or `channel` for those of
            [`PRESETS`]; empty for no copies.
        augmented_copies (`int`): Copies of each pair, beside the pair as it is.
        augment_sides (`str`): `both` puts the two sides of a copy through the same changes; `each` through changes
            drawn for each, so that the channel says nothing about which side is which.
        hard_negatives (`list[str]`): Attacks that the chosen side of a pair is compared with, by name.
        hard_negative_share (`float`): Share of the pairs that each of these attacks is made of, 0 to 1.
        seed (`int`): Of what is random.

    Raises:
        ValueError: A name is unknown or a value is out of range.
    """

    augmentations: Sequence[str] = field(default_factory=list)
    augmented_copies: int = 1
    augment_sides: str = "both"
    hard_negatives: Sequence[str] = field(default_factory=list)
    hard_negative_share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("augmentations", "hard_negatives"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is {getattr(self, name)!r}; give a list of names, even of one.")
        if self.augmentations and self.augmented_copies < 1:
            raise ValueError(
                f"augmented_copies is {self.augmented_copies}; give at least 1, or leave augmentations out."
            )
        if self.augment_sides not in AUGMENT_SIDES:
            raise ValueError(f"augment_sides is {self.augment_sides!r}; it must be one of {', '.join(AUGMENT_SIDES)}.")
        if not 0 < self.hard_negative_share <= 1:
            raise ValueError(f"hard_negative_share is {self.hard_negative_share:g}; it must lie above 0, up to 1.")
        self.nuisances()
        self.attacks()

    def nuisances(self) -> tuple[str, ...]:
        """Return the names of the nuisances, those of presets among them."""
        names = [name for given in self.augmentations for name in PRESETS.get(given, (given,))]
        require_known(names)
        return tuple(dict.fromkeys(names))

    def attacks(self) -> dict[str, Any]:
        """Return the attacks by name."""
        if not self.hard_negatives:
            return {}
        from sdiareward.perturbations.attacks import ATTACKS

        unknown = [name for name in self.hard_negatives if name not in ATTACKS]
        if unknown:
            raise ValueError(f"the hard negative is {unknown[0]!r}; it must be one of {', '.join(sorted(ATTACKS))}.")
        return {name: ATTACKS[name] for name in self.hard_negatives}


def augment(pairs: Any, settings: AugmentationSettings, max_turn_s: float) -> Any:
    """Return [`AugmentedPairs`], or just the pairs where `settings` add nothing."""
    adds = settings.augmentations or settings.hard_negatives
    return AugmentedPairs(pairs, settings, max_turn_s) if adds else pairs


@dataclass(frozen=True)
class _Variant:
    """How a pair is read: as it is, as a copy with a number from 1 on, or against an attack."""

    row: int
    pair_id: str
    copy: int = 0
    attack: str | None = None


class AugmentedPairs(Sequence[Any]):
    """The pairs of a training split as they are and what `settings` add, to be read like the data set itself.

    Args:
        pairs (`datasets.Dataset`): Pairs as `loading.load_pairs` gives them.
        settings ([`AugmentationSettings`]): What is added.
        max_turn_s (`float`, *optional*, defaults to 60.0): What the model hears of a turn, in seconds: a copy ends a
            little later, and the sounds of attacks are placed within it.

    Example:
        >>> rows = AugmentedPairs(pairs, AugmentationSettings(["channel"], augmented_copies=2))  # doctest: +SKIP
        >>> len(rows) == 3 * len(pairs)  # doctest: +SKIP
        True
    """

    def __init__(self, pairs: datasets.Dataset, settings: AugmentationSettings, max_turn_s: float = MAX_TURN_S):
        self.pairs = pairs
        self.settings = settings
        self.max_turn_s = max_turn_s
        self.column_names = list(dict.fromkeys([*pairs.column_names, "pair_id"]))
        # What is computed of the rows ahead of training is found by it.
        self._fingerprint = stable_id(_FORMAT, pairs._fingerprint, max_turn_s, sorted(asdict(settings).items()))
        self._nuisances, self._attacks = settings.nuisances(), settings.attacks()
        self._variants = [variant for row, name in enumerate(pair_names(pairs)) for variant in self._plan(row, name)]
        self._read = lru_cache(_ROWS_KEPT)(self._read_variant)
        self._donors = _Donors(pairs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let the processes of a data loader make their own."""
        return AugmentedPairs, (self.pairs, self.settings, self.max_turn_s)

    def __len__(self) -> int:
        return len(self._variants)

    def __getitem__(self, key: Any) -> Any:
        """Return a row, changed, by its number; or a column but for the two sides by its name."""
        if isinstance(key, str):
            return self._column(key)
        if not 0 <= key < len(self):
            raise IndexError(f"row {key} of {len(self)}")
        return self._read(int(key))

    def _plan(self, row: int, pair_id: str) -> Iterator[_Variant]:
        yield _Variant(row, pair_id)
        for copy in range(1, self.settings.augmented_copies + 1 if self._nuisances else 1):
            yield _Variant(row, f"{pair_id}, copy {copy}", copy=copy)
        for attack in self._attacks:
            variant = _Variant(row, f"{pair_id}, {attack}", attack=attack)
            if self._rng(variant).random() < self.settings.hard_negative_share:
                yield variant

    def _rng(self, variant: _Variant, *more: Any) -> np.random.Generator:
        return np.random.default_rng(int(stable_id(self.settings.seed, variant.pair_id, *more), 16))

    def _column(self, name: str) -> list[Any]:
        if name == "pair_id":
            return [variant.pair_id for variant in self._variants]
        values = list(self.pairs[name])
        return [values[variant.row] for variant in self._variants]

    def _read_variant(self, index: int) -> dict[str, Any]:
        variant = self._variants[index]
        row = {**self.pairs[variant.row], "pair_id": variant.pair_id}
        if variant.attack is not None:
            row["rejected"] = self._attacked(variant)
        elif variant.copy:
            row |= {side: self._changed(row[side], variant, side) for side in SIDES}
        return row

    def _changed(self, turns: Sequence[Mapping[str, Any]], variant: _Variant, side: str) -> list[dict[str, Any]]:
        """Put all turns of a side through one chain of nuisances, as one microphone and one line would."""
        rng = self._rng(variant, *([side] if self.settings.augment_sides == "each" else []))
        chain, seed = draw_chain(self._nuisances, rng), int(rng.integers(2**32))
        end = round(_SPARE * self.max_turn_s * SAMPLING_RATE)
        return change_recordings(
            turns_to_messages(turns), lambda _, array: apply_chain(array[:end], SAMPLING_RATE, chain, seed=seed)
        )

    def _attacked(self, variant: _Variant) -> list[dict[str, Any]]:
        from sdiareward.perturbations.attacks import AttackContext
        from sdiareward.perturbations.decoded_pairs import to_messages

        attack = self._attacks[str(variant.attack)]
        context = AttackContext(self._rng(variant, "attack"), self._donors, self.max_turn_s)
        turns = attack.build(self._donors[variant.row], context)
        if turns is None:
            raise ValueError(f"there is no hard negative {variant.attack!r} of it, which needs {attack.needs}.")
        return to_messages(turns)


class _Donors(Sequence[Any]):
    """Pairs in memory, decoded when asked for."""

    def __init__(self, pairs: datasets.Dataset):
        self._pairs = pairs
        self._read = lru_cache(_DONORS_KEPT)(self._read_pair)

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: Any) -> Any:
        return self._read(index)

    def _read_pair(self, index: int) -> AuditPair:
        from sdiareward.perturbations.decoded_pairs import decode_pairs

        return decode_pairs(self._pairs, [index])[0]
