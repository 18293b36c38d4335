"""Add training pairs made from the existing ones: copies through other channels, and pairs against their own attacks.

`augmentations` adds copies of each pair, each through a random chain of perturbations (`registry.PERTURBATIONS`): a
model that sees every pair through several channels learns that the channel carries nothing. `voice_share` of the
copies are first spoken by other voices, which have been through one vocoder. `hard_negatives` adds pairs whose
rejected side is an attack on the chosen side (`attacks.ATTACKS`): where both sides have the same voices, one intact
and one broken, the model learns to listen to the conversation. `written_copies` adds pairs without their recordings
where the two sides differ in their words: the words alone take a fraction of the tokens. `written_negatives` adds more
pairs of this kind (`written_pairs`), also from `written_sources`. `excerpt_share` of the given pairs, of their copies
and of the attacks are cut to some of their exchanges (`excerpts`): more pairs fit into the same time. `turn_pairs`
adds pairs of one turn with other words, or with another sound (`turns`). `pair_shares` leaves out some of the given
pairs, their copies and attacks, so that no kind outweighs the rest.

Nothing is stored: a row is changed when it is read. The change depends on its pair and the seed alone, so a resumed
run reads the same rows. Only the training split is augmented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.dataset_builder.sources import WRITTEN_SOURCES
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
from sdiareward.perturbations.vocoder import load_world
from sdiareward.perturbations.voice_shaping import VoiceShape, draw_voice

from .excerpts import draw_excerpt
from .turns import TurnPair, make_turn_pairs
from .written_pairs import WRITTEN_KINDS, make_pairs_of_sources, make_written_pairs, remove_recordings


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
    """What is added to the training pairs.

    Args:
        augmentations (`list[str]`): Perturbations of the copies, by name, or `all` or `channel` for those of
            [`PRESETS`]; empty for no copies.
        augmented_copies (`int`): Number of copies of each pair, in addition to the pair itself.
        augment_sides (`str`): `both` applies the same perturbations to the two sides of a copy; `each` draws them for
            each side, so that the channel does not predict the preferred side.
        voice_share (`float`): Share of the copies that another voice speaks before the perturbations, 0 to 1, drawn
            for each side where `augment_sides` is `each`; needs `pyworld`.
        hard_negatives (`list[str]`): Attacks that the chosen side of a pair is compared with, by name.
        hard_negative_share (`float`): Share of the pairs that each of these attacks is applied to, 0 to 1.
        written_copies (`int`): Number of copies without recordings of each pair whose sides have different texts.
        written_negatives (`list[str]`): Kinds of pairs without recordings, by name: each adds one of each written
            dialogue. A name that stands twice adds two.
        written_sources (`list[str]`): Sources of written dialogues that they are made of, too, each by its name or as
            `NAME=PATH`.
        excerpt_share (`float`): Share of the given pairs, of their copies and of the attacks that are cut to some of
            their exchanges, 0 to 1.
        turn_pairs (`int`): Number of pairs of each turn with its own words and with those of another turn,
            and of each turn that both sides say with another sound; all but the first of a turn go through
            the `augmentations`, like a copy.
        turn_pair_share (`float`): Share of the pairs of turns that are used, above 0 and up to 1.
        pair_shares (`dict[str, float]`): Share of the given pairs that are used, 0 to 1, by the name of a
            kind (column `secondary`), else of a synthesizer, else of a family (`primary`), else of a criterion; all of
            the rest.
        seed (`int`): Seed of the random draws.

    Raises:
        ValueError: A name is unknown or a value is out of range.
    """

    augmentations: Sequence[str] = field(default_factory=list)
    augmented_copies: int = 1
    augment_sides: str = "both"
    voice_share: float = 0.0
    hard_negatives: Sequence[str] = field(default_factory=list)
    hard_negative_share: float = 1.0
    written_copies: int = 0
    written_negatives: Sequence[str] = field(default_factory=list)
    written_sources: Sequence[str] = field(default_factory=list)
    excerpt_share: float = 0.0
    turn_pairs: int = 0
    turn_pair_share: float = 1.0
    pair_shares: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("augmentations", "hard_negatives", "written_negatives", "written_sources"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is {getattr(self, name)!r}; give a list of names, even for one.")
        if self.augmentations and self.augmented_copies < 1:
            raise ValueError(f"augmented_copies is {self.augmented_copies}; give at least 1, or omit augmentations.")
        if self.augment_sides not in AUGMENT_SIDES:
            raise ValueError(f"augment_sides is {self.augment_sides!r}; it must be one of {', '.join(AUGMENT_SIDES)}.")
        if not 0 <= self.voice_share <= 1:
            raise ValueError(f"voice_share is {self.voice_share:g}; it must lie between 0 and 1.")
        if not 0 < self.hard_negative_share <= 1:
            raise ValueError(f"hard_negative_share is {self.hard_negative_share:g}; it must lie above 0, up to 1.")
        if self.written_copies < 0:
            raise ValueError(f"written_copies is {self.written_copies}; give 0 for none, or a number of copies.")
        if unknown := [name for name in self.written_negatives if name not in WRITTEN_KINDS]:
            raise ValueError(f"the written negative is {unknown[0]!r}; it must be one of {', '.join(WRITTEN_KINDS)}.")
        if unknown := [source for source in self.written_sources if source.partition("=")[0] not in WRITTEN_SOURCES]:
            raise ValueError(f"the written source is {unknown[0]!r}; it must be one of {', '.join(WRITTEN_SOURCES)}.")
        if not 0 <= self.excerpt_share <= 1:
            raise ValueError(f"excerpt_share is {self.excerpt_share:g}; it must lie between 0 and 1.")
        if self.turn_pairs < 0:
            raise ValueError(f"turn_pairs is {self.turn_pairs}; give 0 for none, or a number of pairs of each turn.")
        if not 0 < self.turn_pair_share <= 1:
            raise ValueError(f"turn_pair_share is {self.turn_pair_share:g}; it must lie above 0, up to 1.")
        for name, share in self.pair_shares.items():
            if not 0 <= share <= 1:
                raise ValueError(f"pair_shares gives {share:g} for {name!r}; it must lie between 0 and 1.")
        self.list_perturbations()
        self.find_attacks()

    def list_perturbations(self) -> tuple[str, ...]:
        """Return the names of the perturbations, with the presets expanded."""
        names = [name for given in self.augmentations for name in PRESETS.get(given, (given,))]
        require_known(names)
        return tuple(dict.fromkeys(names))

    def find_attacks(self) -> dict[str, Attack]:
        """Return the attacks by name."""
        unknown = [name for name in self.hard_negatives if name not in ATTACKS]
        if unknown:
            raise ValueError(f"the hard negative is {unknown[0]!r}; it must be one of {', '.join(sorted(ATTACKS))}.")
        return {name: ATTACKS[name] for name in self.hard_negatives}


def augment(pairs: Any, settings: AugmentationSettings, max_turn_s: float) -> Any:
    """Return [`AugmentedPairs`], or the pairs themselves if `settings` add nothing."""
    changes = replace(settings, seed=0) != AugmentationSettings()
    return AugmentedPairs(pairs, settings, max_turn_s) if changes else pairs


@dataclass(frozen=True)
class _Variant:
    """How a pair is read: as it is, as a copy with a number from 1 on, against an attack, of words, or of a turn."""

    row: int
    pair_id: str
    copy: int = 0
    attack: str | None = None
    made: Mapping[str, Any] | None = None
    turn: TurnPair | None = None


class AugmentedPairs(Sequence[Any]):
    """The pairs of a training split and the pairs that `settings` add, read like the data set itself.

    Args:
        pairs (`datasets.Dataset`): Pairs from `loading.load_pairs`.
        settings ([`AugmentationSettings`]): What is added.
        max_turn_s (`float`, *optional*, defaults to 60.0): Seconds of each turn that the model hears: copies are cut
            a little later, and the sounds of attacks are placed within them.
        rows (`Sequence[int]`, *optional*): Numbers of the rows that are kept, as [`AugmentedPairs.select`] gives
            them; by default all.

    Example:
        >>> rows = AugmentedPairs(pairs, AugmentationSettings(["channel"], augmented_copies=2))  # doctest: +SKIP
        >>> len(rows) == 3 * len(pairs)  # doctest: +SKIP
        True
    """

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
        if settings.voice_share:
            # If it is missing, the run ends here, not at the first copy.
            load_world()
        names = name_pairs(pairs)
        shares = _find_shares(pairs, settings.pair_shares)
        kept = [row for row, name in enumerate(names) if self._draw(name, "kept").random() < shares[row]]
        self._variants = [variant for row in kept for variant in self._plan(row, names[row])]
        if settings.written_negatives:
            made = make_written_pairs(pairs, names, settings.written_negatives, settings.seed)
            self._variants += [_Variant(row, pair["pair_id"], made=pair) for row, pair in made]
            # Of no row: they replace all labels of the first one.
            more = make_pairs_of_sources(settings.written_sources, settings.written_negatives, settings.seed)
            self._variants += [_Variant(0, pair["pair_id"], made=pair) for pair in more]
        if settings.turn_pairs:
            for row, turn in make_turn_pairs(pairs, settings.turn_pairs, settings.seed):
                if self._draw(turn.pair_id, "kept").random() < settings.turn_pair_share:
                    labels = {"criterion": turn.criterion}
                    self._variants.append(_Variant(row, turn.pair_id, turn.copy, made=labels, turn=turn))
        self._rows = rows
        if rows is not None:
            self._variants = [self._variants[row] for row in rows]
        self._read = lru_cache(_CACHED_ROWS)(self._read_variant)
        self._decoded = _DecodedPairs(pairs, _CACHED_PAIRS)
        self._outlines = _DecodedPairs(pairs, None, audio=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let each process of a data loader build its own."""
        return AugmentedPairs, (self.pairs, self.settings, self.max_turn_s, self._rows)

    def select(self, rows: Sequence[int]) -> AugmentedPairs:
        """Return some of the rows, by their numbers, as `datasets.Dataset.select` does."""
        kept = list(rows) if self._rows is None else [self._rows[row] for row in rows]
        return AugmentedPairs(self.pairs, self.settings, self.max_turn_s, kept)

    def fingerprint(self) -> str:
        """Return a hash of the pairs and the settings, the key of the precomputed rows; every recording is read."""
        # The names that a preset stands for, since these may change.
        settings = sorted({**asdict(self.settings), "augmentations": list(self._perturbations)}.items())
        kept: list[Any] = [] if self._rows is None else [self._rows]
        if self.settings.written_sources:
            kept += [variant.made for variant in self._variants if variant.made]
        return make_stable_id(_FORMAT, fingerprint_pairs([], self.pairs), self.max_turn_s, settings, *kept)

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
        if self.settings.written_copies:
            pair = self.pairs[row]
            chosen, rejected = (remove_recordings(pair[side]) for side in SIDES)
            if chosen != rejected and all(turn["content"] for turn in [*chosen, *rejected]):
                made = {"chosen": chosen, "rejected": rejected}
                for copy in range(1, self.settings.written_copies + 1):
                    yield _Variant(row, f"{pair_id}, written {copy}", made=made)

    def _make_rng(self, variant: _Variant, *more: Any) -> np.random.Generator:
        return self._draw(variant.pair_id, *more)

    def _draw(self, *names: Any) -> np.random.Generator:
        return np.random.default_rng(make_stable_seed(self.settings.seed, *names))

    def _read_column(self, name: str) -> list[Any]:
        if name == "pair_id":
            return [variant.pair_id for variant in self._variants]
        values = list(self.pairs[name])
        return [(variant.made or {}).get(name, values[variant.row]) for variant in self._variants]

    def _read_variant(self, index: int) -> dict[str, Any]:
        variant = self._variants[index]
        row = {**self.pairs[variant.row], "pair_id": variant.pair_id, **(variant.made or {})}
        if variant.turn is not None:
            row |= variant.turn.make_sides(row)
        elif variant.made is not None:
            return row
        if variant.attack is not None:
            chosen, rejected = self._decoded[variant.row].chosen, self._apply_attack(variant)
            row["rejected"] = to_messages(rejected)
        else:
            chosen, rejected = row["chosen"], row["rejected"]
        if kept := self._draw_excerpt(variant, chosen, rejected):
            row |= {side: [row[side][number] for number in kept] for side in SIDES}
        if variant.copy and self._perturbations:
            row |= {side: self._perturb(row[side], variant, side) for side in SIDES}
        return row

    def _draw_excerpt(self, variant: _Variant, chosen: Sequence[Any], rejected: Sequence[Any]) -> list[int] | None:
        rng = self._make_rng(variant, "excerpt")
        return draw_excerpt(chosen, rejected, rng) if rng.random() < self.settings.excerpt_share else None

    def _perturb(self, turns: Sequence[Mapping[str, Any]], variant: _Variant, side: str) -> list[dict[str, Any]]:
        """Apply one chain of perturbations to all turns of a side, as one microphone and one line would."""
        own = [side] if self.settings.augment_sides == "each" else []
        rng, voice = self._make_rng(variant, *own), self._draw_voice(variant, own)
        chain, seed = draw_chain(self._perturbations, rng), int(rng.integers(2**32))
        end = round(_MARGIN * self.max_turn_s * SAMPLING_RATE)

        def change(_: int, array: np.ndarray) -> np.ndarray:
            spoken = voice(array[:end], SAMPLING_RATE) if voice else array[:end]
            return apply_chain(spoken, SAMPLING_RATE, chain, seed=seed)

        return change_recordings(turns_to_messages(turns), change)

    def _draw_voice(self, variant: _Variant, own: Sequence[str]) -> VoiceShape | None:
        rng = self._make_rng(variant, "voice", *own)
        return draw_voice(rng) if rng.random() < self.settings.voice_share else None

    def _apply_attack(self, variant: _Variant) -> list[Turn]:
        attack = self._attacks[str(variant.attack)]
        rng = self._make_rng(variant, "attack")
        context = AttackContext(rng, self._decoded, self.max_turn_s, outlines=self._outlines, speak=find_voice())
        turns = attack.build(self._decoded[variant.row], context)
        if turns is None:
            raise ValueError(f"{variant.attack!r} does not apply to this pair; it needs {attack.needs}.")
        return turns


def _find_shares(pairs: Any, shares: Mapping[str, float]) -> list[float]:
    """Return the share of each pair's kind that is used.

    Raises:
        ValueError: No pair is of a kind that is named.
    """
    columns = [
        list(pairs[name]) if name in pairs.column_names else [None] * len(pairs)
        for name in ("secondary", "synthesizer", "primary", "criterion")
    ]
    kinds = {kind for column in columns for kind in column if kind}
    if unknown := sorted(set(shares) - kinds):
        known = ", ".join(sorted(kinds)) or "no kind"
        raise ValueError(f"pair_shares names {unknown[0]!r}, but no pair is of that kind; the pairs are of {known}.")
    return [next((shares[kind] for kind in row if kind in shares), 1.0) for row in zip(*columns, strict=True)]


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
