"""Analysis and synthesis with WORLD."""

import numpy as np

from sdiareward.perturbations.vocoder import flatten_pitch


def test_flattening_keeps_the_mean_log_pitch_and_the_unvoiced_frames():
    pitch = np.array([0.0, 100.0, 0.0, 400.0])
    np.testing.assert_allclose(flatten_pitch(pitch, 0.0), [0.0, 200.0, 0.0, 200.0])
    np.testing.assert_allclose(flatten_pitch(pitch, 0.5), [0.0, 200.0 / 2**0.5, 0.0, 200.0 * 2**0.5])
    np.testing.assert_array_equal(flatten_pitch(np.zeros(3), 0.5), np.zeros(3))
