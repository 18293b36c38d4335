"""The same words with conversational and with reading rhythm."""

import numpy as np
import pytest

from sdiareward.dataset_builder.synthesis import SYNTHESIZERS, has_rhythm, is_available, load_synthesizer
from sdiareward.dataset_builder.synthesis.rhythm import RHYTHMS, RhythmicSynthesizer, split_phrases
from sdiareward.dataset_builder.synthesis.world import load_world


TEXT = "Well, I was thinking about it, you know. And then she said no."


class Ticker:
    """Speaks one sample of 1 for each phrase, and remembers how."""

    is_deterministic, version = True, "ticker 1"

    def __init__(self):
        self.asked = []

    def speak_phrase(self, text, *, voice, rate, pitch_range):
        self.asked.append((text, voice, rate, pitch_range))
        return np.ones(1, np.float32)


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        (TEXT, ["Well,", "I was thinking about it,", "you know.", "And then she said no."]),
        ("It took 3.5 hours", ["It took 3.5 hours"]),
        ("So ... yes", ["So ...", "yes"]),
        ("Oh! - , Really?", ["Oh!", "Really?"]),
        ("...", ["..."]),
    ],
)
def test_a_phrase_ends_at_a_mark_that_a_space_follows(text, phrases):
    assert split_phrases(text) == phrases


def test_reading_is_even_and_pauses_longer_after_a_sentence():
    engine = Ticker()
    speech = RhythmicSynthesizer(engine, "reading").speak("One, two. Three", voice=4)
    assert engine.asked == [("One,", 4, 0.85, 0.4), ("two.", 4, 0.85, 0.4), ("Three", 4, 0.85, 0.4)]
    assert np.flatnonzero(speech).tolist() == [0, 4801, 4802 + 9600] and len(speech) == 4803 + 9600


def test_conversation_varies_its_rate_with_pauses_that_are_shorter_and_a_range_that_is_wider():
    engine = Ticker()
    RhythmicSynthesizer(engine, "conversational").speak("a, b, c, d, e", voice=0)
    rates = [rate for _, _, rate, _ in engine.asked]
    assert rates[0] == rates[4] and set(rates) == {1.2, 1.0, 1.35, 1.1}
    spoken, read = RHYTHMS["conversational"], RHYTHMS["reading"]
    assert min(spoken.rates) > max(read.rates) and spoken.pitch_range > 1 > read.pitch_range
    assert spoken.pause_s < read.pause_s and spoken.stop_pause_s < read.stop_pause_s


def measure_pitch_spread(array):
    """Return the standard deviation of the pitch in semitones."""
    pitch, _ = load_world().dio(array.astype(np.float64), 16_000)
    return np.std(12 * np.log2(pitch[pitch > 0]))


def test_espeak_reads_slower_and_flatter_than_it_converses():
    read, spoken, plain = (
        load_synthesizer("espeak-ng", options).speak(TEXT, voice=0)
        for options in ({"rhythm": "reading"}, {"rhythm": "conversational"}, None)
    )
    assert len(read) > 1.3 * len(spoken)
    assert measure_pitch_spread(read) < measure_pitch_spread(plain) < measure_pitch_spread(spoken)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SYNTHESIZERS if has_rhythm(name) and is_available(name)])
def test_every_engine_with_a_rhythm_reads_slower(name):
    lengths = [len(load_synthesizer(name, {"rhythm": rhythm}).speak(TEXT, voice=0)) for rhythm in sorted(RHYTHMS)]
    assert lengths[1] > 1.2 * lengths[0]


def test_a_rhythm_that_does_not_exist_or_is_not_offered_is_refused():
    with pytest.raises(ValueError, match="rhythm is 'sung'; it must be one of conversational, reading"):
        load_synthesizer("espeak-ng", {"rhythm": "sung"})
    with pytest.raises(ValueError, match=r"'world': its options are wrong \(got an unexpected keyword"):
        load_synthesizer("world", {"rhythm": "reading"})
    assert not has_rhythm("openai-speech") and has_rhythm("own", {"engine": "espeak-ng"})
