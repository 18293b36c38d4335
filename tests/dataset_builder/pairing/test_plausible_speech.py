import numpy as np
import pytest

from sdiareward.dataset_builder.pairing import plausible_speech
from sdiareward.dataset_builder.pairing.plausible_speech import (
    ImplausibleSpeechError,
    LanguageError,
    require_language,
    require_plausible,
)
from sdiareward.dataset_builder.synthesis import load_synthesizer


RATE = 16_000
WORDS = "I would like to change my booking to the morning train, if there is still a seat by the window."
OTHER = "Have you fed the cat?"


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(plausible_speech, "_HEARD", {})


def speak(seconds, seed=0, level=0.3):
    noise = np.random.default_rng(seed).uniform(-1, 1, round(seconds * RATE)).astype(np.float32)
    return noise * np.float32(level)


def find(texts, arrays, **options):
    """Return why speech is refused; nothing if it is not."""
    try:
        require_plausible(texts, arrays, "call-3", **options)
        return ""
    except ImplausibleSpeechError as error:
        return str(error)


@pytest.mark.parametrize(
    ("text", "array", "recorded", "named"),
    [
        (WORDS, speak(0.38), None, "lasts 0.38 s; 1.48 to"),
        (WORDS, speak(40.0), None, "lasts 40.00 s"),
        (WORDS, speak(14.0), speak(3.0), "lasts 14.00 s; 1.50 to 13.50 s"),
        (WORDS, speak(2.5), speak(6.0), "lasts 2.50 s; 2.59 to"),
        (WORDS, np.zeros(5 * RATE, np.float32), None, "is silent"),
        (WORDS, np.clip(speak(5.0, level=50.0), -1, 1), None, "is clipped in"),
        ("我想把预订改成早上的火车,如果还有靠窗的座位。", speak(1.0), None, "lasts 1.00 s; 1.26 to"),
    ],
)
def test_speech_that_cannot_be_its_words_is_refused_with_its_turn(text, array, recorded, named):
    recordings = None if recorded is None else [speak(1.5), recorded]
    found = find([OTHER, text], [speak(1.5, 7), array], engine="tts", recorded=recordings)
    assert found.startswith("call-3, turn 1: ") and named in found


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        (WORDS, OTHER, True),
        ("OK.", "Okay!", False),
        ("It's five.", "It's 5.", False),
        ("They said it is their house over there.", "They said it is there house over their.", False),
        ("你好吗", "再见了", True),
    ],
)
def test_one_sound_for_other_words_is_refused_in_a_dialogue_and_of_a_synthesizer(first, second, is_refused):
    sound = speak(4.0 if len(first) > 30 else 1.0)
    assert ("sounds exactly like" in find([first, second], [sound, sound])) == is_refused
    assert find([first], [sound], engine="tts") == ""
    assert ("sounds exactly like" in find([second], [sound], engine="tts")) == is_refused


def test_people_and_synthesizers_may_be_fast_or_slow():
    cases = [(text, 1.0, 1.0) for text in ("A", "1984", "7,000,000", "M I S D N", "hm", "…", "I. I mean")]
    # At 300 and at 80 words per minute, a backchannel, and one word beside laughter or a pause.
    cases += [(WORDS, 18.0, 5.0), ("https://www.example.com/a", 9.5, 5.0), ("mhm", 0.9, 0.15), ("Yes.", 0.4, 15.0)]
    for text, seconds, recorded_s in cases:
        assert find([text], [speak(seconds)], engine=text, recorded=[speak(recorded_s, 1)]) == ""


@pytest.mark.parametrize(
    ("name", "language", "text"),
    [
        ("espeak-ng", "de-AT", "Guten Tag"),
        ("hibari", "en", "Добрый день, how are you"),
        ("espeak-ng", "und", "你好"),
    ],
)
def test_a_synthesizer_speaks_its_languages_only(name, language, text):
    with pytest.raises(LanguageError, match=name):
        require_language(load_synthesizer(name), name, language, text)
    require_language(load_synthesizer("world"), "world", language, text)
    for tag, words in (("EN_us", "Good day, señor Müller"), ("eng", "Good day"), ("unknown", "1984")):
        require_language(load_synthesizer(name), name, tag, words)
