"""Codecs and the channel of a pair."""

import numpy as np
import pytest

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.perturbations.channel import CODINGS, ChannelSettings, EightBits, MuLaw


def rng():
    return np.random.default_rng(0)


def level_dbfs(array):
    return 10 * np.log10(np.square(array).mean())


@pytest.mark.parametrize("gain", [0.01, 1.0])
def test_both_sides_end_at_the_same_level(gain, make_tone):
    settings = ChannelSettings(snr_db=60.0)
    matched = settings(make_tone(2.0) * gain, SAMPLING_RATE, rng())
    assert level_dbfs(matched) == pytest.approx(settings.level_dbfs, abs=0.5)


def test_the_channel_removes_frequencies_above_the_bandwidth():
    noise = rng().standard_normal(16_000).astype(np.float32) * 0.1
    matched = ChannelSettings(coding="none")(noise, SAMPLING_RATE, rng())
    power = np.square(np.abs(np.fft.rfft(matched)))
    assert power[4200:].sum() < 1e-4 * power.sum()


def test_the_noise_floor_has_the_level_of_the_settings(make_tone):
    pause = np.zeros(16_000, dtype=np.float32)
    matched = ChannelSettings(coding="none")(np.concatenate([make_tone(2.0), pause]), SAMPLING_RATE, rng())
    # Resampling to 16 kHz removes only the last few percent of the noise's band.
    assert level_dbfs(matched[-15_000:]) == pytest.approx(-26.0 - 20.0, abs=0.7)


@pytest.mark.parametrize("name", CODINGS)
def test_a_coding_keeps_length_and_most_of_a_narrow_band_signal(name, make_tone):
    tone = make_tone(1.0, frequency_hz=440.0)
    coded = CODINGS[name](tone, SAMPLING_RATE)
    assert abs(len(coded) - len(tone)) <= 16
    assert level_dbfs(coded) == pytest.approx(level_dbfs(tone), abs=1.0)
    assert not np.array_equal(coded[: len(tone)], tone[: len(coded)])


def test_mulaw_has_at_most_255_levels(make_tone):
    import soxr

    narrow = soxr.resample(MuLaw()(make_tone(1.0), SAMPLING_RATE), 16_000, 8000)
    # Resampling there and back adds ripples around the levels; a coarse grid finds them again.
    code = np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log1p(255) * 127
    assert np.abs(code - code.round()).mean() < 0.2


@pytest.mark.parametrize("gain", [0.02, 0.5])
def test_eight_bits_are_filled_by_a_quiet_voice_too(gain, make_tone):
    tone = gain * make_tone(1.0)
    noise = EightBits(SAMPLING_RATE, 0.7)(tone, SAMPLING_RATE) - tone
    # A step is a 128th of full scale when the loudest sample is 0.7: its noise is 12 ** -0.5 steps.
    expected = np.abs(tone).max() / 0.7 / 128 / np.sqrt(12)
    assert np.sqrt(np.mean(noise**2)) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("fields", [{"coding": "gsm"}, {"bandwidth_hz": 0.0}, {"bandwidth_hz": 9000.0}])
def test_settings_out_of_range_are_errors(fields):
    with pytest.raises(ValueError, match=next(iter(fields)).split("_")[0]):
        ChannelSettings(**fields)
