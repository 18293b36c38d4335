"""The distinct recorded turns of pairs, and training pairs of one turn: other words, or another sound.

A reward can learn from dialogues that answers have to fit, and not that words have to be those that are heard: the
words of a dialogue fit each other beside any sound. The words of one turn fit nothing but its sound, which is the same
on both sides. Where both sides of a pair say the same, each of their turns is a pair, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import audio_duration_s
from sdiareward.dataset_builder.pairing.families import OTHER_TRANSCRIPT
from sdiareward.pairs.labels import name_criterion
from sdiareward.pairs.schema import JOINT, SIDES, make_stable_seed


# Longer turns take more time.
_MAX_TURN_S = 8.0
# Fewer words than these hardly tell one turn from another.
_MIN_WORDS = 3
# Turns before and after one in the order of their numbers of words that its other words are drawn from.
_NUM_NEAR = 8
# Turns are the user's, as they were when the projection was aligned. A dialogue ends with a reply, which is the same
# everywhere.
_REPLY = {"role": "assistant", "content": "I see."}


@dataclass(frozen=True)
class TurnPair:
    """One turn of a pair with its own words against the same turn with other words, or against the other side's.

    Args:
        pair_id (`str`): Name.
        criterion (`str`): Criterion.
        copy (`int`): 0 for the first of its turn; the later ones are read through a channel.
        side (`str`): Side that the turn stands on.
        turn (`int`): Its place on that side.
        words (`str`, *optional*): Words of another turn; by default the rejected side is the same turn of the other
            side, with another sound.
    """

    pair_id: str
    criterion: str
    copy: int
    side: str
    turn: int
    words: str | None = None

    def make_sides(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the two sides of the row that has the turn: each is that turn, spoken by the user, and one reply."""
        own = row[self.side][self.turn]
        other = row["rejected"][self.turn] if self.words is None else {**own, "text": self.words}
        return {side: [{**turn, "role": "user"}, _REPLY] for side, turn in zip(SIDES, (own, other), strict=True)}


def find_turns(pairs: Any, max_turn_s: float) -> list[dict[str, Any]]:
    """Return where each distinct turn with a transcript lies; a recording of several pairs counts once.

    Args:
        pairs (`datasets.Dataset`): Pairs from `loading.load_pairs`.
        max_turn_s (`float`): Longer turns are omitted.

    Returns:
        `list[dict]`: `row`, `side` and `turn`, a place; `digest` of sound and words; `text`, `source` and `group_id`.
    """
    columns = [name for name in (*SIDES, "source", "group_id", "secondary") if name in pairs.column_names]
    found: dict[str, dict[str, Any]] = {}
    for row, pair in enumerate(pairs.select_columns(columns)):
        labels = {name: str(pair.get(name) or "") for name in ("source", "group_id")}
        # The rejected side of such a pair has the words of another dialogue.
        for side in SIDES[:1] if pair.get("secondary") == OTHER_TRANSCRIPT else SIDES:
            for position, turn in enumerate(pair[side]):
                audio = turn.get("audio")
                if not turn.get("text") or not audio or not _is_short(turn, max_turn_s):
                    continue
                digest = hashlib.sha256(_read_encoded(audio) + turn["text"].encode()).hexdigest()
                place = {"row": row, "side": side, "turn": position, "digest": digest, "text": turn["text"]}
                found.setdefault(digest, {**place, **labels})
    return list(found.values())


def make_turn_pairs(pairs: Any, count: int, seed: int) -> Iterator[tuple[int, TurnPair]]:
    """Yield pairs of one turn, each with the row that has the turn.

    Each distinct turn is paired with itself with other words, those of a turn with about as many, so that their number
    tells nothing; every turn lends its words about as often as it is given others. Where the sides of a row say the
    same in all turns, with another sound, each of these is a pair as well. The criterion is the row's or `joint`.

    Args:
        pairs (`datasets.Dataset`): Pairs from `loading.load_pairs`.
        count (`int`): Number of pairs of each turn.
        seed (`int`): Draws other words and criteria.
    """
    criteria = list(pairs["criterion"]) if "criterion" in pairs.column_names else [JOINT] * len(pairs)
    for turn, texts in [*_find_other_words(pairs), *((turn, []) for turn in _find_other_sounds(pairs))]:
        choices = sorted({JOINT, name_criterion(criteria[turn["row"]])})
        for copy in range(count):
            rng = np.random.default_rng(make_stable_seed(seed, turn["digest"], copy))
            criterion = choices[rng.integers(len(choices))]
            words = texts[rng.integers(len(texts))] if texts else None
            name = f"turn {turn['digest'][:16]}, {copy}"
            yield turn["row"], TurnPair(name, criterion, copy, turn["side"], turn["turn"], words)


def _find_other_words(pairs: Any) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the distinct turns that have others with about as many words, and the words of these."""
    turns = [turn for turn in find_turns(pairs, _MAX_TURN_S) if _count_words(turn["text"]) >= _MIN_WORDS]
    turns.sort(key=lambda turn: (_count_words(turn["text"]), turn["digest"]))
    for place, turn in enumerate(turns):
        near = turns[max(0, place - _NUM_NEAR) : place + _NUM_NEAR + 1]
        if texts := sorted({other["text"] for other in near} - {turn["text"]}):
            yield turn, texts


def _find_other_sounds(pairs: Any) -> Iterator[dict[str, Any]]:
    """Yield the turns of chosen sides whose rejected sides say the same in all turns, with another sound."""
    for row, pair in enumerate(pairs.select_columns(list(SIDES))):
        texts = [[turn.get("text") for turn in pair[side]] for side in SIDES]
        # Where an answer differs, the other turns are the same recordings, coded once more.
        if texts[0] != texts[1]:
            continue
        for number, turns in enumerate(zip(pair["chosen"], pair["rejected"], strict=True)):
            sounds = [turn.get("audio") for turn in turns]
            if all(sounds) and sounds[0] != sounds[1] and all(_is_short(turn, _MAX_TURN_S) for turn in turns):
                digest = hashlib.sha256(f"{row} {number}".encode()).hexdigest()
                yield {"row": row, "side": "chosen", "turn": number, "digest": digest}


def _read_encoded(audio: Mapping[str, Any] | str) -> bytes:
    """Return the bytes of a recording, which is given with them or as the path of its file."""
    if isinstance(audio, str):
        return Path(audio).read_bytes()
    return audio.get("bytes") or Path(audio["path"]).read_bytes()


def _is_short(turn: Mapping[str, Any], max_turn_s: float) -> bool:
    duration_s = turn.get("duration_s") or audio_duration_s(turn["audio"])
    return 0 < duration_s <= max_turn_s


def _count_words(text: str) -> int:
    return len(text.split())
