"""Reject speech that cannot match its words: too short, too long, silent, clipped, or the same for different words.

The limits leave a margin around the speaking rates of the bundled synthesizers, which tests measure.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, is_silent
from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.synthesis import SynthesisError, load_synthesizer
from sdiareward.perturbations.effects import trim_silence

from ..pipeline.inspection import measure_clipped_share


_TRIM_DB = 50.0
# Seconds per spoken letter, from the fastest to the slowest synthesizer, and once for pauses.
_MIN_LETTER_S, _MAX_LETTER_S, _PAUSES_S = 0.02, 0.5, 1.5
# Relative to the recording of the same words, which pauses and laughter can make far longer: speech below half of it
# is too short only if it is also faster than any synthesizer.
_MIN_RATIO, _MAX_RATIO, _FAST_LETTER_S = 0.5, 4.0, 0.035
_MAX_CLIPPED_SHARE = 0.02
# Letters per character: a Han character is a syllable and a tone, kana and hangul characters are syllables.
_LETTERS = {"CJK": 3, "HIRAGANA": 2, "KATAKANA": 2, "HANGUL": 2}
# Letters per digit: "7" is short in 7,000,000 and a word in a year.
_DIGIT_LETTERS = 5
_SAME_WORDS = 0.5
_MAX_HEARD = 20_000
# Three-letter codes and names of languages from manifests, and codes for an unknown language or several.
_LANGUAGE_CODES = {"eng": "en", "english": "en", "cmn": "zh", "zho": "zh", "chi": "zh", "jpn": "ja"}
_ANY_LANGUAGE = ("", "und", "unknown", "mul")
# Sound -> words, for each synthesizer in this process.
_HEARD: dict[tuple[str | None, str], str] = {}


class LanguageError(SynthesisError):
    kind = "language"


class ImplausibleSpeechError(SynthesisError):
    kind = "implausible_speech"


def require_language(engine: Any, name: str, language: str, text: str) -> None:
    """Raise `LanguageError` if an engine declares languages that exclude the row's language or its letters."""
    languages = _list_languages(engine)
    if not languages:
        return
    if _find_code(language) not in (*languages, *_ANY_LANGUAGE):
        raise LanguageError(f"{name} speaks {', '.join(languages)}, but the words are in {language!r}: {text!r:.80}.")
    latin = [unicodedata.name(letter, "").startswith("LATIN") for letter in text if letter.isalpha()]
    if languages == ("en",) and 2 * sum(latin) < len(latin):
        raise LanguageError(f"{name} speaks en, but the words have other letters: {text!r:.80}.")


def _list_languages(engine: Any) -> tuple[str, ...]:
    """Return the primary subtags of an engine's languages; empty if it speaks any, like copy-synthesis."""
    languages = () if getattr(engine, "uses_reference", False) else getattr(engine, "languages", None) or ()
    return tuple(map(_find_code, [languages] if isinstance(languages, str) else languages))


def _find_code(tag: object) -> str:
    code = re.split("[-_]", str(tag).lower())[0]
    return _LANGUAGE_CODES.get(code, code)


def note_languages(name: str, options: Mapping[str, Any]) -> Skipped | None:
    """Return a note on a synthesizer that declares no languages and therefore gets all."""
    engine = load_synthesizer(name, options)
    if _list_languages(engine) or getattr(engine, "uses_reference", False):
        return None
    return Skipped(f"synthesizer {name}", "any_language", f"{name} gets every language; set its `languages`.")


def require_plausible(
    texts: Sequence[str],
    arrays: Sequence[np.ndarray],
    label: str,
    *,
    engine: str | None = None,
    recorded: Sequence[np.ndarray] | None = None,
    is_copy: bool = False,
) -> None:
    """Raise `ImplausibleSpeechError` for the first turn whose speech cannot match its words.

    `engine` identifies a synthesizer and its options; None means recordings. `recorded` has the same words spoken by
    people; copy-synthesis (`is_copy`) keeps their pace.
    """
    if len(_HEARD) > _MAX_HEARD:
        _HEARD.clear()
    heard = _HEARD if engine else {}
    for position, (text, array) in enumerate(zip(texts, arrays, strict=True)):
        other = heard.setdefault((engine, hashlib.sha256(array.tobytes()).hexdigest()), text)
        recording = recorded[position] if recorded else None
        problem = _find_problem(text, array, recording, is_copy) if engine else None
        if problem is None and _are_other_words(text, other):
            problem = f"sounds exactly like {other!r:.80}"
        if problem:
            raise ImplausibleSpeechError(f"{label}, turn {position}: {text!r:.80} {problem}; not these words.")


def _find_problem(text: str, array: np.ndarray, recording: np.ndarray | None, is_copy: bool) -> str | None:
    if is_silent(array):
        return "is silent"
    if (share := measure_clipped_share(array)) > _MAX_CLIPPED_SHARE:
        return f"is clipped in {share:.1%} of its samples"
    least, most = count_letters(text)
    least_s, most_s = least * _MIN_LETTER_S, most * _MAX_LETTER_S + _PAUSES_S
    if recording is not None:
        recorded_s = len(trim_silence(recording, _TRIM_DB)) / SAMPLING_RATE
        least_s = max(least_s, min(_MIN_RATIO * recorded_s, least * _FAST_LETTER_S))
        most_s = min(most_s, _MAX_RATIO * recorded_s + _PAUSES_S)
    seconds = len(trim_silence(array, _TRIM_DB)) / SAMPLING_RATE
    if is_copy or least_s <= seconds <= most_s:
        return None
    return f"lasts {seconds:.2f} s; {least_s:.2f} to {most_s:.2f} s are plausible"


def count_letters(text: str) -> tuple[int, int]:
    """Return the minimum and maximum number of spoken letters of a text, in letters of an alphabet."""
    least = most = 0
    for character in text:
        if character.isalnum():
            weight = _LETTERS.get(unicodedata.name(character, "").split(" ")[0], 1)
            least += weight
            most += _DIGIT_LETTERS if character.isdigit() else weight
    return least, most


def _are_other_words(text: str, other: str) -> bool:
    """Return whether two texts must sound different; "OK" and "okay", "5" and "five", "他" and "她" need not."""
    one, two = (re.findall(r"[^\W\d_]+", words.casefold()) for words in (text, other))
    if max(len(one), len(two)) <= 3:
        one, two = list("".join(one)), list("".join(two))
    if not one or not two or max(len(one), len(two)) <= 2:
        return False
    return SequenceMatcher(None, one, two, autojunk=False).ratio() < _SAME_WORDS
