import numpy as np
import pytest

from sdiareward.dataset_builder.synthesis import SYNTHESIZERS, SynthesisError, is_available, load_synthesizer
from sdiareward.dataset_builder.synthesis.world import flatten_pitch


TEXT = "Hold it right there."
SPEAKING = [name for name in SYNTHESIZERS if is_available(name) and name != "world"]


def test_the_synthesizers_from_the_package_index_are_installed():
    assert {"espeak-ng", "hibari", "piper", "world"} <= {name for name in SYNTHESIZERS if is_available(name)}


@pytest.mark.parametrize("name", SPEAKING)
def test_a_synthesizer_speaks_mono_16_kilohertz_speech(name):
    engine = load_synthesizer(name)
    speech = engine.speak(TEXT, voice=0)
    assert speech.dtype == np.float32
    assert speech.ndim == 1
    assert 0.5 < len(speech) / 16_000 < 4.0
    assert 0.05 < np.abs(speech).max() <= 1.05
    assert engine.version
    assert not engine.uses_reference


@pytest.mark.parametrize("name", SPEAKING)
def test_another_voice_sounds_different_and_more_words_last_longer(name):
    engine = load_synthesizer(name)
    first = engine.speak(TEXT, voice=0)
    second = engine.speak(TEXT, voice=1)
    assert len(first) != len(second)
    assert len(engine.speak(TEXT * 3, voice=0)) > 2 * len(first)


def test_copy_synthesis_keeps_the_length_and_draws_the_pitch_together():
    import pyworld

    time_s = np.arange(32_000) / 16_000
    phase = 2 * np.pi * np.cumsum(150.0 * 1.4 ** np.sin(2 * np.pi * time_s)) / 16_000
    reference = (0.1 * sum(np.sin(k * phase) for k in range(1, 15))).astype(np.float32)
    copy = load_synthesizer("world").speak(TEXT, voice=0, reference=reference)
    assert abs(len(copy) - len(reference)) <= 160

    def spread(signal):
        pitch, _ = pyworld.dio(signal.astype(np.float64), 16_000)
        return np.log(pitch[pitch > 0]).std()

    assert spread(copy) < 0.3 * spread(reference)


def test_copy_synthesis_needs_a_recording():
    with pytest.raises(SynthesisError, match="needs a recording"):
        load_synthesizer("world").speak(TEXT, voice=0)


def test_flattening_keeps_the_mean_log_pitch_and_the_unvoiced_frames():
    pitch = np.array([0.0, 100.0, 0.0, 400.0])
    np.testing.assert_allclose(flatten_pitch(pitch, 0.0), [0.0, 200.0, 0.0, 200.0])
    np.testing.assert_allclose(flatten_pitch(pitch, 0.5), [0.0, 200.0 / 2**0.5, 0.0, 200.0 * 2**0.5])
    np.testing.assert_array_equal(flatten_pitch(np.zeros(3), 0.5), np.zeros(3))


def test_an_unknown_synthesizer_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="espeak-ng.*hibari.*piper"):
        load_synthesizer("festival")


def test_a_missing_synthesizer_says_how_to_get_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SynthesisError, match="'flite' is not installed; apt-get install flite"):
        load_synthesizer.__wrapped__("flite")
