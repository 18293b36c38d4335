"""Plan pairs about the conversation itself: both sides have one voice and one channel, and one side is broken.

The paper's pairs can be separated by the voice (modality) or by the words (colloquialness). Here neither helps:

- `context`: an answer, all answers, the order of the answers or the transcript belong to another dialogue, or an
  exchange is repeated. Both sides are recordings, or one synthesizer speaks both.
- `fluency`: the words of the answers are shuffled, or the last answer is cut off. One synthesizer speaks both sides.
- `prosody`: the recording through the WORLD vocoder, its own intonation against a flat one or an uneven tempo.

Their criterion is `joint`: its prompt asks for both. They belong to none of the paper's subsets. `primary` is the
family and `secondary` the kind: each is reported separately. A replaced turn comes from the same source and split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from sdiareward.chat_sdiareward import MAX_TURNS
from sdiareward.dataset_builder.episodes import RECORDING, Episode, Part, ScriptPair, Turn
from sdiareward.pairs.schema import JOINT, make_stable_seed
from sdiareward.perturbations.channel import ChannelSettings

from .pairing import PairPlan, SynthesizerSpec, split_options
from .splits import shuffle, split_unit


KINDS = {
    "context": ("last_answer", "near_answer", "all_answers", "order", "transcript", "repetition"),
    "fluency": ("shuffled_words", "cut_off"),
    "prosody": ("flat", "uneven"),
}


class Pool(list[Episode]):
    """The episodes of a source in a split, from which a broken dialogue takes turns."""

    @cached_property
    def partners(self) -> dict[str, Episode]:
        """The episode that each recorded one exchanges its words with, by name: the nearest in words per turn.

        Partners are of different groups, have the same number of turns, and no turn with the same words.
        """
        found: dict[str, Episode] = {}
        recorded = filter(_is_recorded, self)
        left = sorted(recorded, key=lambda episode: (_count_words(episode.turns).sum(), episode.name))
        while left:
            episode = left.pop(0)
            sizes = _count_words(episode.turns)
            if suited := [index for index, other in enumerate(left) if _can_exchange_words(episode, other)]:
                nearest = min(suited, key=lambda index: int(np.abs(_count_words(left[index].turns) - sizes).sum()))
                other = left.pop(nearest)
                found |= {episode.name: other, other.name: episode}
        return found


@dataclass(frozen=True)
class FamilySpec:
    kinds: tuple[str, ...] | None = None  # None: all of the family.
    per_dialogue: int = 1  # Pairs per dialogue, each of another kind.

    def __post_init__(self) -> None:
        if self.per_dialogue < 1 or self.kinds == ():
            raise ValueError(f"per_dialogue is {self.per_dialogue}, kinds {self.kinds}; give one, or omit the family.")


def validate_families(families: Mapping[str, FamilySpec]) -> None:
    for family, spec in families.items():
        if family not in KINDS:
            raise ValueError(f"families: {family!r} is none of {sorted(KINDS)}.")
        if unknown := sorted(set(spec.kinds or ()) - set(KINDS[family])):
            raise ValueError(f"families: {family} has no kinds {unknown}; it has {sorted(KINDS[family])}.")


def plan_family_pairs(
    items: Iterable[Episode | ScriptPair],
    assignment: Mapping[tuple[str, str], str],
    families: Mapping[str, FamilySpec],
    synthesizers: SynthesizerSpec | None,
    channel: ChannelSettings | None,
    seed: int,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[PairPlan]:
    """Return the pairs of the families; a kind that a dialogue cannot give is omitted."""
    # Each dialogue once: a script against a caricature has the spoken side of its scenario.
    episodes: dict[tuple[str, str], Episode] = {}
    for item in items:
        episode = item.spoken if isinstance(item, ScriptPair) else item
        if not (isinstance(item, ScriptPair) and episode.secondary == "caricature"):
            episodes.setdefault((episode.source, episode.name), episode)
    pools: dict[tuple[str, str], Pool] = {}
    for episode in episodes.values():
        pools.setdefault((episode.source, assignment[split_unit(episode)]), Pool()).append(episode)
    plans = []
    for episode, family in product(episodes.values(), families):
        split, spec = assignment[split_unit(episode)], families[family]
        pool, name, key = pools[episode.source, split], episode.name, f"{episode.source}/{episode.name}"
        names = synthesizers.for_dialogue(split, f"{family}/{key}", seed) if synthesizers else []
        if _is_recorded(episode):
            names = ["world" if family == "prosody" else RECORDING]
        done = 0
        for kind in shuffle(spec.kinds or KINDS[family], seed, f"{family}/{key}"):
            rng = np.random.default_rng(make_stable_seed(seed, family, kind, key))
            if done == spec.per_dialogue or not (rejected := break_dialogue(kind, episode, pool, rng)):
                continue
            done += 1
            label = {"primary": family, "secondary": kind}
            sides = replace(episode, **label), replace(rejected, name=f"{name}/{kind}", **label)
            for engine in names:
                own, voices = split_options((options or {}).get(engine, {}), JOINT)
                changed = (engine, {**own, "contour": kind}) if family == "prosody" else None
                own |= {"contour": "kept"} if changed else {}
                plans.append(PairPlan(JOINT, *sides, engine, split, channel, own, None, voices, changed, family))
    return plans


def break_dialogue(kind: str, episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    """Return the dialogue broken in the way of a kind; None if it cannot be."""
    turns, answers, is_spoken = episode.turns, range(1, len(episode.turns), 2), not _is_recorded(episode)
    last = answers[-1]
    new: dict[int, Turn | None] = {}
    match kind:
        case "last_answer" | "near_answer" | "all_answers":
            # The near one is of an earlier exchange, or of another part of the recording.
            is_near = kind == "near_answer"
            others = [other for other in pool if (other.group_id == episode.group_id) == is_near]
            if not is_near:
                others = [others[index] for index in rng.permutation(len(others))[:8].tolist()]
            candidates = [turn for other in others for turn in other.turns[1::2]]
            for index in answers if kind == "all_answers" else [last]:
                new[index] = _find_nearest(turns[index], [turn for turn in candidates if turn not in new.values()])
        case "order" if len({turns[index].text for index in answers}) > 1:
            # Every question gets the answer of another one.
            moved = np.roll(answers, -int(rng.integers(1, len(answers)))).tolist()
            new = {index: turns[place] for index, place in zip(answers, moved, strict=True)}
        # Both dialogues are whole conversations, right in one pair and wrong in the other: only the recordings decide.
        case "transcript" if not is_spoken and (other := pool.partners.get(episode.name)):
            for index, (turn, said) in enumerate(zip(turns, other.turns, strict=True)):
                texts = [said.text, *[""] * (len(turn.parts) - 1)]
                parts = (replace(part, text=text) for part, text in zip(turn.parts, texts, strict=True))
                new[index] = Turn(turn.role, tuple(parts))
        case "repetition" if len(turns) + 2 <= MAX_TURNS:
            return replace(episode, turns=(*turns, *turns[-2:]))
        case "shuffled_words" if is_spoken:
            for index in answers:
                words = turns[index].text.split()
                shuffled = " ".join(words[place] for place in rng.permutation(len(words)))
                new[index] = Turn("assistant", (Part(shuffled),))
        case "cut_off" if is_spoken and len(words := turns[last].text.split()) >= 4:
            kept = int(rng.integers(len(words) // 3, 2 * len(words) // 3 + 1))
            new[last] = Turn("assistant", (Part(" ".join(words[:kept])),))
        case "flat" | "uneven" if not is_spoken:
            return episode
    changed = tuple(turn for index, own in enumerate(turns) if (turn := new.get(index, own)) is not None)
    # A turn has no replacement, or all words stay the same.
    if len(changed) < len(turns) or [turn.text for turn in changed] == [turn.text for turn in turns]:
        return None
    return replace(episode, turns=changed)


def _is_recorded(episode: Episode) -> bool:
    return all(part.audio is not None for turn in episode.turns for part in turn.parts)


def _count_words(turns: Sequence[Turn]) -> np.ndarray:
    return np.array([len(turn.text.split()) for turn in turns])


def _find_nearest(turn: Turn, candidates: Iterable[Turn]) -> Turn | None:
    others = [other for other in candidates if other.text != turn.text]
    size = len(turn.text.split())
    return min(others, key=lambda other: (abs(len(other.text.split()) - size), other.text), default=None)


def _can_exchange_words(one: Episode, other: Episode) -> bool:
    if one.group_id == other.group_id or len(one.turns) != len(other.turns):
        return False
    return all(turn.text != own.text for turn, own in zip(one.turns, other.turns, strict=True))
