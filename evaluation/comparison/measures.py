"""Measure what a reward might follow instead of the speech, such as the level of the answers, and the user's turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sdiareward.audio_sdiareward import (
    SAMPLING_RATE,
    audio_duration_s,
    is_silent,
    open_encoded,
    open_source,
    read_audio,
)
from sdiareward.chat_sdiareward import ROLES, DialogueError, list_items
from sdiareward.common.files import hash_json
from sdiareward.pairs.content import hash_items
from sdiareward.perturbations.channel import encode_flac
from sdiareward.perturbations.effects import measure_level

from ..statistics import sign_flip_test


# A level below this is silence.
_FLOOR_DBFS = -100.0
# To which `match_level` brings recordings: low enough that the peaks of speech stay below full scale.
MATCHED_DBFS = -26.0
MIN_CORRELATION, MAX_P_VALUE = 0.3, 0.05
# Where ranks of fewer dialogues agree, it may well be by chance.
_MIN_DIALOGUES = 5


@dataclass(frozen=True)
class Covariate:
    """What a margin might follow; a mean difference below `min_difference`, or a share of the mean, is none."""

    measure: str  # A field of `DialogueMeasures`.
    title: str
    whose: str  # More of it, of a system.
    unit: str
    min_difference: float = 0.0
    min_share: float = 0.0


COVARIATES = {
    "length_s": Covariate("heard_answer_s", "heard length", "longer answers", " s", min_share=0.1),
    "level_db": Covariate("level_dbfs", "level", "louder answers", " dB", min_difference=1.0),
    "turns": Covariate("num_messages", "number of turns", "more turns", ""),
    "texts": Covariate("num_texts", "number of transcripts", "more transcripts", ""),
}


@dataclass(frozen=True)
class DialogueMeasures:
    # Recordings.
    num_turns: int
    # Recordings of which the model hears only the beginning.
    num_cut: int
    # Recordings of the assistant in which the model hears nothing.
    num_silent: int
    audio_s: float
    # Seconds of all recordings that the model does not hear.
    cut_s: float
    # Seconds of the assistant's turns: all, and those that the model hears.
    answer_s: float
    heard_answer_s: float
    # Root mean square of the heard part of the assistant's turns, in dB of full scale.
    level_dbfs: float
    # Equal for user turns with equal words and files.
    user_hash: str
    num_messages: int = 0
    # Turns with words.
    num_texts: int = 0
    # Of all recordings, in Hz.
    lowest_rate: int | None = None
    highest_rate: int | None = None


def measure_dialogue(
    given: Sequence[dict[str, Any]], max_turn_s: float, *, match_level: bool = False
) -> DialogueMeasures:
    """Measure a dialogue as it is scored; the sampling rates are those of its recordings as they are given."""
    messages = match_levels(given, max_turn_s) if match_level else given
    durations_s: list[float] = []
    rates: list[int] = []
    answers, answer_s, user, num_texts = [], 0.0, [], 0
    for number, (message, original) in enumerate(zip(messages, given, strict=True), start=1):
        if message["role"] == "system":
            continue
        sounds = _list_sounds(message)
        try:
            found_s = [audio_duration_s(sound) for sound in sounds]
            rates += map(read_sampling_rate, _list_sounds(original))
            num_texts += any(item["type"] == "text" and item["text"].strip() for item in list_items(message))
            if message["role"] == ROLES[1]:
                answers += [read_audio(sound, max_duration_s=max_turn_s) for sound in sounds]
                answer_s += sum(found_s)
            else:
                user.append(hash_items(message))
        except (ValueError, OSError, TypeError) as error:
            raise DialogueError(str(error), number) from error
        durations_s += found_s
    cut_s = [max(duration - max_turn_s, 0.0) for duration in durations_s]
    heard = np.concatenate(answers) if answers else np.zeros(0, dtype=np.float32)
    return DialogueMeasures(
        num_turns=len(durations_s),
        num_cut=sum(seconds > 0 for seconds in cut_s),
        num_silent=sum(is_silent(answer) for answer in answers),
        audio_s=sum(durations_s),
        cut_s=sum(cut_s),
        answer_s=answer_s,
        heard_answer_s=len(heard) / SAMPLING_RATE,
        level_dbfs=max(20 * math.log10(max(measure_level(heard), 1e-10)), _FLOOR_DBFS),
        user_hash=hash_json(user)[:16],
        num_messages=sum(message["role"] != "system" for message in messages),
        num_texts=num_texts,
        lowest_rate=min(rates, default=None),
        highest_rate=max(rates, default=None),
    )


def read_sampling_rate(sound: Any) -> int:
    handle, name, array, rate = open_source(sound)
    if array is not None:
        return rate
    with open_encoded(handle, name) as file:
        return int(file.samplerate)


def _list_sounds(message: dict[str, Any]) -> list[Any]:
    return [item["audio"] for item in list_items(message) if item["type"] == "audio"]


def match_levels(messages: Sequence[dict[str, Any]], max_turn_s: float) -> list[dict[str, Any]]:
    """Bring what is heard of each role's recordings to one level, `MATCHED_DBFS`; silence stays as it is."""
    by_role: dict[str, list[Any]] = {}
    num_heard = round(max_turn_s * SAMPLING_RATE)
    for number, message in enumerate(messages, start=1):
        try:
            by_role.setdefault(message["role"], []).extend(map(read_audio, _list_sounds(message)))
        except (ValueError, OSError, TypeError) as error:
            raise DialogueError(str(error), number) from error
    gains = {
        role: 10 ** (MATCHED_DBFS / 20) / measure_level(joined)
        for role, sounds in by_role.items()
        if sounds and not is_silent(joined := np.concatenate([sound[:num_heard] for sound in sounds]))
    }
    remaining = {role: iter(sounds) for role, sounds in by_role.items()}

    def match(message: dict[str, Any]) -> dict[str, Any]:
        role = message["role"]
        if role not in gains or isinstance(message["content"], str):
            return message
        content = [
            {**item, "audio": {"bytes": encode_flac(gains[role] * next(remaining[role])), "path": None}}
            if item.get("audio") is not None
            else item
            for item in message["content"]
        ]
        return {**message, "content": content}

    return [match(message) for message in messages]


def correlate(margins: ArrayLike, first: ArrayLike, second: ArrayLike, covariate: Covariate) -> dict[str, Any]:
    """Measure whether margins may be about a difference between two systems.

    It `is_suspect` if margins follow it: a rank correlation of 0.3 in size and p below 0.05. It `is_systematic` if
    one system has more of it in so many dialogues that the sign test has p below 0.05, and not only a trifle more.
    """
    from scipy.stats import spearmanr

    margin, one, other = (np.asarray(values, dtype=np.float64) for values in (margins, first, second))
    difference = one - other
    mean, num_first, num_second = float(difference.mean()), int((difference > 0).sum()), int((difference < 0).sum())
    found: dict[str, Any] = {"mean_difference": mean, "correlation": None, "p_value": None}
    if len(margin) >= _MIN_DIALOGUES and np.ptp(margin) > 0 and np.ptp(difference) > 0:
        measured = spearmanr(margin, difference)
        found |= {"correlation": float(measured.statistic), "p_value": float(measured.pvalue)}
    size = abs(found["correlation"] or 0.0)
    smallest = max(covariate.min_difference, covariate.min_share * min(one.mean(), other.mean()))
    is_large = bool(mean and abs(mean) >= smallest)
    return found | {
        "is_suspect": size >= MIN_CORRELATION and (found["p_value"] or 0.0) < MAX_P_VALUE,
        "num_first": num_first,
        "num_second": num_second,
        "is_large": is_large,
        "is_systematic": is_large and sign_flip_test(np.repeat([1, -1], [num_first, num_second])) < MAX_P_VALUE,
    }
