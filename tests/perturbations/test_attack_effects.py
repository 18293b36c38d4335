"""Effects that only attacks use."""

import numpy as np
import pytest

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.perturbations.attack_effects import AddNoiseFloor


def test_a_noise_floor_keeps_its_spectrum():
    rng = np.random.default_rng(0)
    low = np.convolve(rng.standard_normal(200_000), np.ones(8) / 8, "same").astype(np.float32)
    noise = AddNoiseFloor.estimate([low])(np.zeros(100_000, np.float32), SAMPLING_RATE, rng)

    def octave_db(array, edge_hz):
        power = np.square(np.abs(np.fft.rfft(array)))
        hertz = np.fft.rfftfreq(len(array), 1 / SAMPLING_RATE)
        return 10 * np.log10(power[(hertz >= edge_hz) & (hertz < 2 * edge_hz)].mean())

    fall = [octave_db(array, 250) - octave_db(array, 4000) for array in (low, noise)]
    assert fall[0] > 10
    assert fall[1] == pytest.approx(fall[0], abs=2.0)
    assert AddNoiseFloor.estimate([np.zeros(5000, np.float32)]) is None
    assert AddNoiseFloor.estimate([np.ones(100, np.float32)]) is None
