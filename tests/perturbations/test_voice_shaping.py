"""Voices changed by rule."""

import numpy as np
import pytest

from sdiareward.perturbations.voice_shaping import VoiceShape, draw_voice
from sdiareward.dataset_builder.synthesis import load_synthesizer


RATE = 16_000


def test_pitch_is_shifted_spread_and_raised_by_a_shape():
    pitch = np.array([0.0, 100.0, 0.0, 400.0])
    np.testing.assert_allclose(VoiceShape(pitch=1.5).change_pitch(pitch), [0, 150, 0, 600])
    np.testing.assert_allclose(VoiceShape(pitch_range=0.5).change_pitch(pitch), [0, 200 / 2**0.5, 0, 200 * 2**0.5])
    steady = VoiceShape(rise=1.5).change_pitch(np.full(161, 100.0))
    np.testing.assert_allclose(steady[[0, 80, 120, 160]], [100, 100, 125, 150])
    shaking = VoiceShape(tremor=0.1, tremor_hz=5.0).change_pitch(np.full(400, 100.0))
    assert shaking.max() == pytest.approx(110, abs=0.1)
    assert shaking[10] == pytest.approx(110.0)


def test_a_shape_with_a_factor_out_of_range_is_an_error():
    with pytest.raises(ValueError, match="tempo is 0"):
        VoiceShape(tempo=0.0)
    with pytest.raises(ValueError, match=r"breath=1\.5"):
        VoiceShape(breath=1.5)


def test_drawn_voices_differ_and_stay_near_the_own_one():
    rng = np.random.default_rng(0)
    voices = [draw_voice(rng) for _ in range(200)]
    assert draw_voice(np.random.default_rng(0)) == voices[0] != voices[1]
    for name, factor in (("pitch", 2**0.4), ("formants", 2**0.25)):
        values = [getattr(voice, name) for voice in voices]
        assert 1 / factor < min(values) < 0.9 and 1.1 < max(values) < factor
    assert 60 < sum(voice.breath == 0 for voice in voices) < 140
    assert all(voice.is_vocoded and voice.tempo == voice.pitch_range == 1 for voice in voices)


@pytest.mark.parametrize("num_samples", [321, 4000])
def test_a_voice_of_silence_and_of_a_short_noise_is_finite(num_samples):
    pytest.importorskip("pyworld")
    voice = draw_voice(np.random.default_rng(1))
    for array in (np.zeros(num_samples), np.random.default_rng(0).standard_normal(num_samples) / 10):
        changed = voice(array, RATE)
        assert np.isfinite(changed).all() and 0 < len(changed) < 2 * num_samples


def test_silence_around_the_words_is_trimmed():
    speech = load_synthesizer("espeak-ng").speak("The second train leaves a little later.", voice=0)
    padded = np.concatenate([np.zeros(RATE, np.float32), speech, np.zeros(RATE, np.float32)])
    assert len(VoiceShape()(padded, RATE)) <= len(speech) + 0.2 * RATE
