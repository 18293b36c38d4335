"""Add training pairs made from the existing ones: copies through other channels, and pairs against their own attacks.

A model that sees every pair through several channels learns that the channel carries nothing. A model that sees an
intact and a broken dialogue in the same voices learns to listen to the conversation.

Nothing is stored: a row is changed when it is read. The change depends on its pair and the seed alone, so a resumed
run reads the same rows. Only the training split is augmented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.dataset_builder.synthesis import find_voice
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.loading import name_pairs
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.schema import MAX_TURN_S, SIDES, make_stable_id, make_stable_seed
from sdiareward.perturbations.attacks import ATTACKS, Attack, AttackContext
from sdiareward.perturbations.decoded_pairs import AuditPair, Turn, decode_pairs, to_messages
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
# Names that stand for several perturbations, none of which is held out for the audit.
PRESETS = {
    "all": tuple(_TRAINING),
    # Microphone, room, line and file: nothing moves in time.
    "channel": tuple(name for name, perturbation in _TRAINING.items() if perturbation.keeps_length),
}
AUGMENT_SIDES = ("both", "each")
# Part of the key of precomputed rows; raise it when the same settings give other rows.
_FORMAT = 2
# Rows are read again soon: the two sides of a pair one after the other, and a pair for each of its attacks.
_CACHED_ROWS, _CACHED_PAIRS = 4, 16
# A turn is changed a little beyond what the model hears of it, since a higher speed moves samples into that part.
_MARGIN = 1.1


@dataclass(frozen=True)
class AugmentationSettings:
    """The augmentation options of `TrainArguments`."""

    augmentations: Sequence[str] = field(default_factory=list)
    augmented_copies: int = 1
    augment_sides: str = "both"
    hard_negatives: Sequence[str] = field(default_factory=list)
    hard_negative_share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("augmentations", "hard_negatives"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is {getattr(self, name)!r}; give a list of names, even for one.")
        if self.augmentations and self.augmented_copies < 1:
            raise ValueError(f"augmented_copies is {self.augmented_copies}; give at least 1, or omit augmentations.")
        if self.augment_sides not in AUGMENT_SIDES:
            raise ValueError(f"augment_sides is {self.augment_sides!r}; it must be one of {', '.join(AUGMENT_SIDES)}.")
        if not 0 < self.hard_negative_share <= 1:
            raise ValueError(f"hard_negative_share is {self.hard_negative_share:g}; it must lie above 0, up to 1.")
        self.list_perturbations()
        self.find_attacks()

    def list_perturbations(self) -> tuple[str, ...]:
        """Return the names of the perturbations, with the presets expanded."""
        names = [name for given in self.augmentations for name in PRESETS.get(given, (given,))]
        require_known(names)
        return tuple(dict.fromkeys(names))

    def find_attacks(self) -> dict[str, Attack]:
        unknown = [name for name in self.hard_negatives if name not in ATTACKS]
        if unknown:
            raise ValueError(f"the hard negative is {unknown[0]!r}; it must be one of {', '.join(sorted(ATTACKS))}.")
        return {name: ATTACKS[name] for name in self.hard_negatives}


def augment(pairs: Any, settings: AugmentationSettings, max_turn_s: float = MAX_TURN_S) -> Any:
    """Return [`AugmentedPairs`], or the pairs themselves if `settings` add nothing."""
    adds = settings.augmentations or settings.hard_negatives
    return AugmentedPairs(pairs, settings, max_turn_s) if adds else pairs


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
        rows: Sequence[int] | None = None,
    ):
        self.pairs = pairs
        self.settings = settings
        self.max_turn_s = max_turn_s
        self.column_names = list(dict.fromkeys([*pairs.column_names, "pair_id"]))
        self._perturbations, self._attacks = settings.list_perturbations(), settings.find_attacks()
        self._variants = [variant for row, name in enumerate(name_pairs(pairs)) for variant in self._plan(row, name)]
        # Numbers of the rows that `select` kept.
        self._rows = range(len(self._variants)) if rows is None else rows
        self._variants = [self._variants[row] for row in self._rows]
        self._read = lru_cache(_CACHED_ROWS)(self._read_variant)
        self._decoded = _DecodedPairs(pairs, _CACHED_PAIRS)
        self._outlines = _DecodedPairs(pairs, None, audio=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let each process of a data loader build its own."""
        return AugmentedPairs, (self.pairs, self.settings, self.max_turn_s, self._rows)

    def select(self, rows: Sequence[int]) -> AugmentedPairs:
        """Return the rows with the given numbers, as `datasets.Dataset.select` does."""
        return AugmentedPairs(self.pairs, self.settings, self.max_turn_s, [self._rows[row] for row in rows])

    def fingerprint(self) -> str:
        """Return a hash of the pairs and the settings, the key of the precomputed rows; every recording is read."""
        # The names that a preset stands for, since these may change.
        settings = sorted({**asdict(self.settings), "augmentations": list(self._perturbations)}.items())
        return make_stable_id(_FORMAT, fingerprint_pairs([], self.pairs), self.max_turn_s, settings, list(self._rows))

    def __len__(self) -> int:
        return len(self._variants)

    def __getitem__(self, key: Any) -> Any:
        """Return a changed row by its number, or a column other than the two sides by its name."""
        if isinstance(key, str):
            return self._read_column(key)
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
        return np.random.default_rng(make_stable_seed(self.settings.seed, variant.pair_id, *more))

    def _read_column(self, name: str) -> list[Any]:
        if name == "pair_id":
            return [variant.pair_id for variant in self._variants]
        values = list(self.pairs[name])
        return [values[variant.row] for variant in self._variants]

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
        self._pairs, self._audio = pairs, audio
        self._read = lru_cache(num_kept)(self._decode)

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: Any) -> Any:
        return self._read(index)

    def _decode(self, index: int) -> AuditPair:
        return decode_pairs(self._pairs, [index], self._audio)[0]
