"""Measure what a reward might follow instead of the speech: length and level of the answers, and the user's turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sdiareward.audio_sdiareward import SAMPLING_RATE, audio_duration_s, is_silent, read_audio
from sdiareward.chat_sdiareward import ROLES, DialogueError
from sdiareward.common.files import hash_json
from sdiareward.pairs.content import hash_items
from sdiareward.perturbations.levels import measure_level


# A level below this is silence.
_FLOOR_DBFS = -100.0
MIN_CORRELATION, MAX_P_VALUE = 0.3, 0.05
# Where ranks of fewer dialogues agree, it may well be by chance.
_MIN_DIALOGUES = 5


@dataclass(frozen=True)
class DialogueMeasures:
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


def measure_dialogue(messages: Sequence[dict[str, Any]], max_turn_s: float) -> DialogueMeasures:
    durations_s: list[float] = []
    answers, answer_s, user = [], 0.0, []
    for number, message in enumerate(messages, start=1):
        if message["role"] == "system":
            continue
        sounds = [] if isinstance(message["content"], str) else _list_sounds(message["content"])
        try:
            found_s = [audio_duration_s(sound) for sound in sounds]
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
    )


def _list_sounds(content: Sequence[dict[str, Any]]) -> list[Any]:
    return [item["audio"] for item in content if item.get("audio") is not None]


def correlate(margins: ArrayLike, differences: ArrayLike) -> dict[str, Any]:
    """Measure whether margins follow a difference: suspect from a rank correlation of 0.3 in size and p below 0.05."""
    from scipy.stats import spearmanr

    one, other = np.asarray(margins, dtype=np.float64), np.asarray(differences, dtype=np.float64)
    found: dict[str, Any] = {"mean_difference": float(other.mean()), "correlation": None, "p_value": None}
    if len(one) >= _MIN_DIALOGUES and np.ptp(one) > 0 and np.ptp(other) > 0:
        measured = spearmanr(one, other)
        found |= {"correlation": float(measured.statistic), "p_value": float(measured.pvalue)}
    size = abs(found["correlation"] or 0.0)
    return found | {"is_suspect": size >= MIN_CORRELATION and (found["p_value"] or 0.0) < MAX_P_VALUE}
