"""Voices changed by rule."""

import numpy as np
import pytest

from sdiareward.dataset_builder.synthesis import load_synthesizer
from sdiareward.perturbations.voice_shaping import VoiceShape


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


@pytest.mark.parametrize("num_samples", [321, 4000])
def test_a_voice_of_silence_and_of_a_short_noise_is_finite(num_samples):
    pytest.importorskip("pyworld")
    voice = VoiceShape(pitch=1.2, formants=1.1, breath=0.2, tremor=0.03, tilt_db=1.0, is_vocoded=True)
    for array in (np.zeros(num_samples), np.random.default_rng(0).standard_normal(num_samples) / 10):
        changed = voice(array, RATE)
        assert np.isfinite(changed).all() and 0 < len(changed) < 2 * num_samples


def test_silence_around_the_words_is_trimmed():
    speech = load_synthesizer("espeak-ng").speak("The second train leaves a little later.", voice=0)
    padded = np.concatenate([np.zeros(RATE, np.float32), speech, np.zeros(RATE, np.float32)])
    assert len(VoiceShape()(padded, RATE)) <= len(speech) + 0.2 * RATE
