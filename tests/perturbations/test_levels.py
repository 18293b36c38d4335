"""Levels of signals, and silence around speech."""

import numpy as np
import pytest

from sdiareward.audio_sdiareward import is_silent
from sdiareward.perturbations.levels import measure_level, scale_to_level, trim_silence


def test_a_signal_is_scaled_to_a_level_and_silence_stays_silence(make_tone):
    assert measure_level(scale_to_level(make_tone(0.5), 0.25)) == pytest.approx(0.25)
    assert not scale_to_level(np.zeros(9), 0.25).any()
    assert measure_level(np.zeros(0)) == 0.0


def test_trimming_keeps_fifty_milliseconds_around_the_speech(make_tone):
    speech = make_tone(1.0)
    silence = np.zeros(8000, dtype=np.float32)
    trimmed = trim_silence(np.concatenate([silence, speech, silence]), 35.0)
    assert len(trimmed) == 16_000 + 2 * 800
    np.testing.assert_array_equal(trimmed[800:-800], speech)
    assert trim_silence(silence, 35.0) is silence


def test_a_recording_is_silent_below_70_db_of_full_scale():
    assert is_silent(np.zeros(0)) and is_silent(np.full(9, -3.1e-4))
    assert not is_silent(np.array([0.0, -3.2e-4]))
    assert is_silent(np.full(9, 0.5))
