"""Plan pairs about the conversation itself: both sides have one voice and one channel, and one side is broken.

The paper's pairs can be separated by the voice (modality) or by the words (colloquialness). Here neither helps:

- `context`: an answer, all answers, the order of the answers or the transcript belong to another dialogue, or an
  exchange is repeated. Both sides are recordings, or one synthesizer speaks both.
- `fluency`: the words of the answers are shuffled, or the last answer is cut off. One synthesizer speaks both sides.
- `prosody`: the recording through the WORLD vocoder, its own intonation against a flat one or an uneven tempo.

Their criterion is `joint`, whose prompt asks for both; they belong to none of the paper's subsets. `primary` is the
family and `secondary` the kind: each is reported separately. A replaced turn comes from the same source and split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sdiareward.chat_sdiareward import MAX_TURNS
from sdiareward.dataset_builder.episodes import RECORDING, Episode, Part, ScriptPair, Turn
from sdiareward.pairs.schema import JOINT, make_stable_seed
from sdiareward.perturbations.channel import ChannelSettings

from .pairing import PairPlan, SynthesizerSpec
from .reference_clips import split_options
from .splits import choose_synthesizers, split_unit


# The kind whose rejected side has the words of another dialogue beside its own sound.
OTHER_TRANSCRIPT = "transcript"
_WORLD = "world"


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
            suited = [index for index, other in enumerate(left) if _can_exchange_words(episode, other)]
            if suited:
                nearest = min(suited, key=lambda index: int(np.abs(_count_words(left[index].turns) - sizes).sum()))
                other = left.pop(nearest)
                found |= {episode.name: other, other.name: episode}
        return found


Change = Callable[[Episode, Pool, np.random.Generator], Episode | None]


@dataclass(frozen=True)
class FamilySpec:
    kinds: tuple[str, ...] | None = None  # None: all of the family.
    per_dialogue: int = 1  # Pairs per dialogue, each of another kind.

    def __post_init__(self) -> None:
        if self.per_dialogue < 1 or self.kinds == ():
            raise ValueError(
                f"per_dialogue is {self.per_dialogue}, kinds {self.kinds}; give at least one, or omit the family."
            )


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
    validate_families(families)
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
    for episode in episodes.values():
        split = assignment[split_unit(episode)]
        for family, kind, rejected in _change(episode, pools[episode.source, split], families, seed):
            is_prosody = family == "prosody"
            if _is_recorded(episode):
                names = [_WORLD if is_prosody else RECORDING]
            else:
                key = f"{family}/{episode.source}/{episode.name}"
                names = synthesizers.for_dialogue(split, key, seed) if synthesizers else []
            for name in names:
                own, voices = split_options((options or {}).get(name, {}), JOINT)
                plan = PairPlan(
                    JOINT,
                    replace(episode, primary=family, secondary=kind),
                    rejected,
                    name,
                    split,
                    channel,
                    {**own, "contour": "kept"} if is_prosody else own,
                    script_voices=voices,
                    rejected_options={**own, "contour": kind} if is_prosody else None,
                    family=family,
                )
                plans.append(plan)
    return plans


def _change(
    episode: Episode, pool: Pool, families: Mapping[str, FamilySpec], seed: int
) -> Iterator[tuple[str, str, Episode]]:
    """Yield family, kind and the broken dialogue of each pair."""
    key = f"{episode.source}/{episode.name}"
    for family, spec in families.items():
        done = 0
        for kind in choose_synthesizers(f"{family}/{key}", spec.kinds or tuple(KINDS[family]), None, seed):
            rng = np.random.default_rng(make_stable_seed(seed, family, kind, key))
            rejected = KINDS[family][kind](episode, pool, rng)
            if rejected is None:
                continue
            yield family, kind, replace(rejected, name=f"{episode.name}/{kind}", primary=family, secondary=kind)
            done += 1
            if done == spec.per_dialogue:
                break


def _is_recorded(episode: Episode) -> bool:
    return all(part.audio is not None for turn in episode.turns for part in turn.parts)


def _count_words(turns: Sequence[Turn]) -> np.ndarray:
    return np.array([len(turn.text.split()) for turn in turns])


def _list_answers(episodes: Iterable[Episode]) -> list[Turn]:
    return [turn for episode in episodes for turn in episode.turns if turn.role == "assistant"]


def _draw_other(episode: Episode, pool: Pool, rng: np.random.Generator, count: int = 8) -> list[Episode]:
    others = [other for other in pool if other.group_id != episode.group_id]
    return [others[index] for index in rng.permutation(len(others))[:count].tolist()]


def _find_nearest(turn: Turn, candidates: Iterable[Turn]) -> Turn | None:
    others = [other for other in candidates if other.text != turn.text]
    size = len(turn.text.split())
    return min(others, key=lambda other: (abs(len(other.text.split()) - size), other.text), default=None)


def _exchange_answers(episode: Episode, answers: Mapping[int, Turn | None]) -> Episode | None:
    """Return the dialogue with other answers; None if one is missing or all words stay the same."""
    turns = [answers.get(index, turn) for index, turn in enumerate(episode.turns)]
    found = tuple(turn for turn in turns if turn is not None)
    is_changed = [turn.text for turn in found] != [turn.text for turn in episode.turns]
    return replace(episode, turns=found) if is_changed and len(found) == len(turns) else None


def _replace_last_answer(episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    answers = _list_answers(_draw_other(episode, pool, rng))
    return _exchange_answers(episode, {len(episode.turns) - 1: _find_nearest(episode.turns[-1], answers)})


def _replace_by_near_answer(episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    """Take the last answer from the same conversation: from an earlier exchange, or another part of its recording."""
    answers = _list_answers(other for other in pool if other.group_id == episode.group_id)
    return _exchange_answers(episode, {len(episode.turns) - 1: _find_nearest(episode.turns[-1], answers)})


def _replace_answers(episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    turns = _list_answers(_draw_other(episode, pool, rng))
    answers: dict[int, Turn | None] = {}
    for index, turn in enumerate(episode.turns):
        if turn.role == "assistant":
            answers[index] = _find_nearest(turn, [other for other in turns if other not in answers.values()])
    return _exchange_answers(episode, answers)


def _move_answers(episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    """Give every question the answer of another one."""
    answers = _list_answers([episode])
    if len({answer.text for answer in answers}) < 2:
        return None
    shift = int(rng.integers(1, len(answers)))
    moved = answers[shift:] + answers[:shift]
    return _exchange_answers(episode, {2 * index + 1: answer for index, answer in enumerate(moved)})


def _exchange_transcripts(episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    # Both dialogues are whole conversations, right in one pair and wrong in the other: only the recordings decide.
    other = pool.partners.get(episode.name) if _is_recorded(episode) else None
    if other is None:
        return None
    turns = []
    for turn, words in zip(episode.turns, other.turns, strict=True):
        first, *rest = turn.parts
        turns.append(Turn(turn.role, (replace(first, text=words.text), *(replace(part, text="") for part in rest))))
    return replace(episode, turns=tuple(turns))


def _can_exchange_words(one: Episode, other: Episode) -> bool:
    if one.group_id == other.group_id or len(one.turns) != len(other.turns):
        return False
    return all(turn.text != own.text for turn, own in zip(one.turns, other.turns, strict=True))


def _repeat_exchange(episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    if len(episode.turns) + 2 > MAX_TURNS:
        return None
    return replace(episode, turns=(*episode.turns, *episode.turns[-2:]))


def _shuffle_words(episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    if _is_recorded(episode):
        return None
    answers: dict[int, Turn | None] = {}
    for index, turn in enumerate(episode.turns):
        if turn.role == "assistant":
            words = turn.text.split()
            shuffled = " ".join(words[place] for place in rng.permutation(len(words)))
            answers[index] = Turn(turn.role, (Part(shuffled),))
    return _exchange_answers(episode, answers)


def _cut_answer(episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    words = episode.turns[-1].text.split()
    if _is_recorded(episode) or len(words) < 4:
        return None
    kept = int(rng.integers(len(words) // 3, 2 * len(words) // 3 + 1))
    cut = Turn("assistant", (Part(" ".join(words[:kept])),))
    return _exchange_answers(episode, {len(episode.turns) - 1: cut})


def _keep_recorded(episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    return episode if _is_recorded(episode) else None


KINDS: dict[str, dict[str, Change]] = {
    "context": {
        "last_answer": _replace_last_answer,
        "near_answer": _replace_by_near_answer,
        "all_answers": _replace_answers,
        "order": _move_answers,
        OTHER_TRANSCRIPT: _exchange_transcripts,
        "repetition": _repeat_exchange,
    },
    "fluency": {"shuffled_words": _shuffle_words, "cut_off": _cut_answer},
    "prosody": {"flat": _keep_recorded, "uneven": _keep_recorded},
}
