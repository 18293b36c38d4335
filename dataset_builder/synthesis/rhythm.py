"""Speak the same words with the rhythm of conversation or with that of reading, phrase by phrase.

A phrase ends at a mark such as a comma or a stop. The engine speaks each at a rate and with a pitch range of its own,
relative to its voice, and the pauses between phrases are silence. A voice without control of its pitch range differs
in rates and pauses alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE


_PHRASE_END = re.compile(r"(?<=[,;:.!?…—])\s+")
_STOPS = (".", "!", "?", "…")


@dataclass(frozen=True)
class Rhythm:
    """How a text is divided in time.

    Args:
        rates (`tuple[float, ...]`): Rates of successive phrases, again and again; 1 is the rate of the voice.
        pause_s (`float`): Silence after a phrase, in seconds.
        stop_pause_s (`float`): Silence after one that ends a sentence, in seconds.
        pitch_range (`float`): 1 is the range of the voice.
    """

    rates: tuple[float, ...]
    pause_s: float
    stop_pause_s: float
    pitch_range: float


RHYTHMS = {
    "conversational": Rhythm((1.2, 1.0, 1.35, 1.1), pause_s=0.05, stop_pause_s=0.15, pitch_range=1.6),
    "reading": Rhythm((0.85,), pause_s=0.3, stop_pause_s=0.6, pitch_range=0.4),
}


class PhraseSpeaker(Protocol):
    """An engine that controls rate and pitch range.

    Attributes:
        is_deterministic (`bool`), version (`str`): As in `Synthesizer`.
    """

    is_deterministic: bool
    version: str

    def speak_phrase(self, text: str, *, voice: int, rate: float, pitch_range: float) -> np.ndarray:
        """Return `text` as mono 16 kHz float32 speech; rate and range are relative to those of the voice."""
        ...


class RhythmicSynthesizer:
    """A `Synthesizer` that speaks with one rhythm.

    Args:
        engine (`PhraseSpeaker`): What speaks the phrases.
        rhythm (`str`): One of [`RHYTHMS`].

    Raises:
        ValueError: There is no such rhythm.
    """

    uses_reference = False

    def __init__(self, engine: PhraseSpeaker, rhythm: str) -> None:
        if rhythm not in RHYTHMS:
            raise ValueError(f"rhythm is {rhythm!r}; it must be one of {', '.join(RHYTHMS)}.")
        self._engine, self._rhythm = engine, RHYTHMS[rhythm]
        self.is_deterministic, self.version = engine.is_deterministic, engine.version

    def speak(self, text: str, *, voice: int, reference: np.ndarray | None = None) -> np.ndarray:
        """Speak `text`; see `Synthesizer.speak`."""
        rhythm, pieces = self._rhythm, []
        for number, phrase in enumerate(split_phrases(text)):
            # The turns of a dialogue begin at different rates, and both sides of a pair at the same place.
            rate = rhythm.rates[(len(text) + number) % len(rhythm.rates)]
            spoken = self._engine.speak_phrase(phrase, voice=voice, rate=rate, pitch_range=rhythm.pitch_range)
            pause_s = rhythm.stop_pause_s if phrase.endswith(_STOPS) else rhythm.pause_s
            pieces += [spoken, np.zeros(round(pause_s * SAMPLING_RATE), dtype=np.float32)]
        return np.concatenate(pieces[:-1])


def split_phrases(text: str) -> list[str]:
    """Split a text after each mark that a space follows; marks alone are no phrase.

    Args:
        text (`str`): The text.

    Example:
        >>> split_phrases("Well, it took 3.5 hours. - Oh!")
        ['Well,', 'it took 3.5 hours.', '- Oh!']
    """
    phrases = [phrase for phrase in _PHRASE_END.split(text.strip()) if re.search(r"\w", phrase)]
    return phrases or [text]
