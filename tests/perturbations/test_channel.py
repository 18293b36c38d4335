import numpy as np
import pytest

from sdiareward.perturbations.channel import CODINGS, ChannelSettings, encode_opus, match_channel, trim_silence


def rng():
    return np.random.default_rng(0)


def level_dbfs(array):
    return 10 * np.log10(np.square(array).mean())


def test_trimming_keeps_fifty_milliseconds_around_the_speech(make_tone):
    speech = make_tone(1.0)
    silence = np.zeros(8000, dtype=np.float32)
    trimmed = trim_silence(np.concatenate([silence, speech, silence]), 35.0)
    assert len(trimmed) == 16_000 + 2 * 800
    np.testing.assert_array_equal(trimmed[800:-800], speech)


def test_trimming_leaves_silence_alone():
    silence = np.zeros(1600, dtype=np.float32)
    assert trim_silence(silence, 35.0) is silence


@pytest.mark.parametrize("gain", [0.01, 1.0])
def test_both_sides_end_at_the_same_level(gain, make_tone):
    settings = ChannelSettings(snr_db=60.0)
    matched = match_channel(make_tone(2.0) * gain, settings, rng())
    assert level_dbfs(matched) == pytest.approx(settings.level_dbfs, abs=0.5)


def test_nothing_is_left_above_the_bandwidth():
    noise = rng().standard_normal(16_000).astype(np.float32) * 0.1
    matched = match_channel(noise, ChannelSettings(coding="none"), rng())
    power = np.square(np.abs(np.fft.rfft(matched)))
    assert power[4200:].sum() < 1e-4 * power.sum()


def test_the_noise_floor_is_the_one_asked_for(make_tone):
    pause = np.zeros(16_000, dtype=np.float32)
    matched = match_channel(np.concatenate([make_tone(2.0), pause]), ChannelSettings(coding="none"), rng())
    # Half of the noise's band is cut by the way back to 16 kHz only in its last few percent.
    assert level_dbfs(matched[-15_000:]) == pytest.approx(-26.0 - 20.0, abs=0.7)


def test_the_same_seed_gives_the_same_channel(make_tone):
    first, second = (match_channel(make_tone(0.5), ChannelSettings(), rng()) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", CODINGS)
def test_a_coding_keeps_length_and_most_of_a_narrow_band_signal(name, make_tone):
    tone = make_tone(1.0, frequency_hz=440.0)
    coded = CODINGS[name](tone)
    assert abs(len(coded) - len(tone)) <= 16
    assert level_dbfs(coded) == pytest.approx(level_dbfs(tone), abs=1.0)
    assert not np.array_equal(coded[: len(tone)], tone[: len(coded)])


def test_mulaw_has_at_most_255_levels(make_tone):
    import soxr

    narrow = soxr.resample(CODINGS["mulaw"](make_tone(1.0)), 16_000, 8000)
    # Resampling there and back adds ripples around the levels; a coarse grid finds them again.
    code = np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log1p(255) * 127
    assert np.abs(code - code.round()).mean() < 0.2


def test_the_sample_takes_about_three_kilobytes_a_second(make_tone):
    speech_like = rng().standard_normal(16_000 * 4).astype(np.float32) * np.abs(make_tone(4.0, frequency_hz=3.0))
    assert 1500 < len(encode_opus(speech_like)) / 4 < 6000


@pytest.mark.parametrize("fields", [{"coding": "gsm"}, {"bandwidth_hz": 0.0}, {"bandwidth_hz": 9000.0}])
def test_settings_out_of_range_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields)).split("_")[0]):
        ChannelSettings(**fields)
