"""Dialogues of noise and random words with the lengths of ESDR-Bench, for machines without any data.

SDiaReward's appendix B gives 14.51 h of real and 16.18 h of synthetic audio for the modality pairs of ESDR-Bench;
Table 2's rates imply 1,476 pairs, so 37.4 s per dialogue. The paper shows turns and durations as figures only. Here
the number of turns is even, 2 to 10, and durations of turns are log-normal with a mean that gives 37.4 s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS


NUM_BENCH_DIALOGUES = 3_452
MEAN_DIALOGUE_S = (14.51 + 16.18) * 3600 / (2 * 1_476)
_TURN_COUNTS = (2, 4, 6, 8, 10)
_SPREAD = 0.6
_TURN_LIMITS_S = (0.4, 30.0)
_WORDS_PER_S = 2.5
_NOISE_S = 120
_ROLES = ("user", "assistant")


class SyntheticDialogues(Sequence[list[dict[str, Any]]]):
    """Pairs of dialogues with the same words and different audio, generated on access.

    Args:
        num_dialogues (`int`): Number of dialogues; dialogues `2k` and `2k + 1` are a pair.
        seed (`int`, *optional*, defaults to 0): Decides each dialogue together with its index.
        mean_s (`float`, *optional*): Mean seconds of audio in a dialogue, ESDR-Bench's by default.
    """

    def __init__(self, num_dialogues: int, seed: int = 0, mean_s: float = MEAN_DIALOGUE_S):
        self._num_dialogues = num_dialogues
        self._seed = seed
        # The mean of a log-normal is exp(mu + sigma ** 2 / 2).
        self._log_turn_s = math.log(mean_s / np.mean(_TURN_COUNTS)) - _SPREAD**2 / 2
        self._words = " ".join(DEFAULT_PROMPTS.values()).split()
        noise = np.random.default_rng(seed).standard_normal(_NOISE_S * SAMPLING_RATE, dtype=np.float32)
        self._noise = 0.05 * noise

    @property
    def groups(self) -> list[int]:
        """Pair of each dialogue."""
        return [index // 2 for index in range(len(self))]

    def __len__(self) -> int:
        return self._num_dialogues

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"dialogue {index} of {len(self)}.")
        of_pair, of_side = (
            np.random.default_rng((self._seed, index // 2)),
            np.random.default_rng((self._seed, 1, index)),
        )
        num_turns = int(of_pair.choice(_TURN_COUNTS))
        return [self._turn(number, of_pair, of_side) for number in range(num_turns)]

    def _turn(self, number: int, of_pair: np.random.Generator, of_side: np.random.Generator) -> dict[str, Any]:
        duration_s = float(np.clip(of_pair.lognormal(self._log_turn_s, _SPREAD), *_TURN_LIMITS_S))
        words = of_pair.choice(self._words, size=max(1, round(duration_s * _WORDS_PER_S)))
        num_samples = round(duration_s * SAMPLING_RATE)
        start = int(of_side.integers(self._noise.size - num_samples))
        audio = {"array": self._noise[start : start + num_samples], "sampling_rate": SAMPLING_RATE}
        content = [{"type": "text", "text": " ".join(words)}, {"type": "audio", "audio": audio}]
        return {"role": _ROLES[number % 2], "content": content}
