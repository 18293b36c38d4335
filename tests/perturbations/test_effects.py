"""Effects on samples: what each does, exactly or in decibels."""

import numpy as np
import pytest

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.package_files import EXAMPLES
from sdiareward.perturbations.effects import ChangeTempo, SetLevel
from sdiareward.perturbations.registry import PERTURBATIONS, apply


RATE = 16_000
# Away from the ends, where a tone begins and stops at once.
MIDDLE = slice(RATE // 4, -RATE // 4)


def tone(frequency_hz, duration_s=1.0, level=0.1):
    return (level * np.sin(2 * np.pi * frequency_hz * np.arange(round(duration_s * RATE)) / RATE)).astype(np.float32)


def level_db(array):
    return 10 * np.log10(np.mean(np.square(array, dtype=np.float64)))


def speech():
    return read_audio(EXAMPLES / "human-0.flac")


def amplitude(array, frequency_hz):
    """Return the amplitude of a tone in the middle of a signal, by the dot product with it."""
    middle = array[MIDDLE]
    phase = 2 * np.pi * frequency_hz * np.arange(len(middle)) / RATE
    return 2 * abs(np.mean(middle * np.exp(-1j * phase)))


@pytest.mark.parametrize(
    ("name", "severity", "expected"),
    [
        ("gain", -20, [0.1, -0.05]),
        # Nothing is clipped.
        ("gain", 6, [1.99526, -0.99763]),
        ("polarity", None, [-1.0, 0.5]),
        ("dc_offset", 0.125, [1.125, -0.375]),
        ("leading_silence", 0.001, [0.0] * 16 + [1.0, -0.5]),
        ("trailing_silence", 0.001, [1.0, -0.5] + [0.0] * 16),
    ],
)
def test_an_effect_on_two_samples_is_exact(name, severity, expected):
    assert apply(name, np.array([1.0, -0.5]), RATE, severity) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["noise", "pink_noise"])
@pytest.mark.parametrize("severity", [30, 20, 10])
def test_noise_has_the_stated_level_below_the_speech_with_or_without_silence_around_it(name, severity):
    silence, voice = np.zeros(RATE, dtype=np.float32), tone(500)
    noise = apply(name, voice, RATE, severity) - voice
    assert level_db(voice) - level_db(noise) == pytest.approx(severity, abs=0.01)
    surrounded = np.concatenate([silence, voice, silence])
    noise = apply(name, surrounded, RATE, severity) - surrounded
    # The margin of 50 ms around the speech counts as speech: 10 log10(1.1) dB.
    assert level_db(voice) - level_db(noise) == pytest.approx(severity + 0.414, abs=0.01)


def test_white_noise_has_equal_power_per_hertz_and_pink_noise_per_octave():
    for name, change_db in (("noise", 3.01), ("pink_noise", 0.0)):
        voice = tone(500, 20.0)
        power = np.abs(np.fft.rfft(apply(name, voice, RATE, 10) - voice)) ** 2
        hertz = np.fft.rfftfreq(len(voice), 1 / RATE)
        low, high = (power[(hertz >= edge) & (hertz < 2 * edge)].sum() for edge in (1000, 2000))
        assert 10 * np.log10(high / low) == pytest.approx(change_db, abs=0.2)


@pytest.mark.parametrize(("frequency_hz", "change_db"), [(1000, 0.0), (3000, 0.0), (100, -60.0), (5000, -60.0)])
def test_the_telephone_band_removes_frequencies_outside_the_band(frequency_hz, change_db):
    change = level_db(apply("telephone_band", tone(frequency_hz), RATE)[MIDDLE]) - level_db(tone(frequency_hz)[MIDDLE])
    assert change == pytest.approx(0, abs=0.1) if change_db == 0 else change < change_db


@pytest.mark.parametrize(("name", "severity"), [("narrow_band", 8000), ("mulaw", 8)])
def test_a_rate_of_8_khz_in_between_leaves_nothing_above_4_khz(name, severity):
    changed = apply(name, tone(1000) + tone(6000), RATE, severity)
    assert amplitude(changed, 1000) == pytest.approx(0.1, rel=0.03)
    assert amplitude(changed, 6000) < 1e-3


@pytest.mark.parametrize("severity", [22_050, 44_100, 48_000])
def test_a_round_trip_through_a_higher_rate_restores_the_samples(severity):
    array = speech()
    error = apply("resampling", array, RATE, severity)[MIDDLE] - array[MIDDLE]
    assert level_db(array) - level_db(error) > 40


@pytest.mark.parametrize("severity", [-3.0, 1.0, 3.0])
def test_speed_changes_length_and_pitch_by_its_factor(severity):
    factor = 1 + severity / 100
    changed = apply("speed", tone(500, 2.0), RATE, severity)
    assert len(changed) == pytest.approx(2 * RATE / factor, abs=1)
    assert amplitude(changed, 500 * factor) == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize("severity", [-3.0, 1.0])
def test_a_tilt_changes_two_tones_an_octave_apart_and_keeps_the_level(severity):
    array = tone(1000) + tone(2000)
    changed = apply("tilt", array, RATE, severity)
    assert 20 * np.log10(amplitude(changed, 2000) / amplitude(changed, 1000)) == pytest.approx(severity, abs=0.05)
    assert level_db(changed) == pytest.approx(level_db(array), abs=1e-3)


@pytest.mark.parametrize("severity", [0.1, 5.0])
def test_the_stated_share_of_samples_is_clipped(severity):
    array = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    changed = apply("clipping", array, RATE, severity)
    at_limit = np.abs(changed) >= np.abs(changed).max() * (1 - 1e-6)
    assert at_limit.mean() == pytest.approx(severity / 100, abs=2e-4)
    assert np.array_equal(changed[~at_limit], array[~at_limit])


@pytest.mark.parametrize("severity", PERTURBATIONS["reverberation"].severities)
def test_a_room_keeps_level_and_direct_sound_and_decays_by_60_db_in_its_rt60(severity):
    click = np.zeros(2 * RATE, dtype=np.float32)
    click[0] = 1.0
    response = apply("reverberation", click, RATE, severity)
    assert level_db(response) == pytest.approx(level_db(click), abs=1e-3)
    assert response[0] == np.abs(response).max()
    assert np.abs(response[1:47]).max() < 1e-6
    # Schroeder's integral from 3 ms on, over half of the decay.
    power = np.square(response[48:], dtype=np.float64)
    left_db = 10 * np.log10(np.cumsum(power[::-1])[::-1] / power.sum() + 1e-20)
    assert np.argmax(left_db < -30) / RATE == pytest.approx(severity / 2, rel=0.1)
    # The critical distance of 60 cubic metres, 0.057 sqrt(V / T), is 0.70 m at 0.4 s: squared, 0.487.
    assert response[0] ** 2 / power.sum() == pytest.approx(0.487 * 0.4 / severity, rel=0.01)


def test_another_tempo_keeps_the_pitch(make_tone):
    fast = ChangeTempo(1.6)(make_tone(2.0, 220.0), RATE)
    assert len(fast) / RATE == pytest.approx(2.0 / 1.6, abs=0.05)
    assert np.argmax(np.abs(np.fft.rfft(fast * np.hanning(len(fast))))) * RATE / len(fast) == pytest.approx(220, abs=2)


def test_set_level_reaches_the_level_and_clips_nothing(make_tone):
    assert level_db(SetLevel(-30.0)(make_tone(0.5), RATE)) == pytest.approx(-30.0, abs=1e-3)
    assert np.abs(SetLevel(20.0)(make_tone(0.5), RATE)).max() == pytest.approx(0.99, abs=1e-6)
