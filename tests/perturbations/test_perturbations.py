"""Perturbations, codings, the channel and voices: what each does, exactly or in decibels."""

import numpy as np
import pytest

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.package import EXAMPLES
from sdiareward.dataset_builder.synthesis import load_synthesizer
from sdiareward.perturbations import channel
from sdiareward.perturbations.channel import CODINGS, ChannelSettings
from sdiareward.perturbations.effects import change_tempo, measure_level, scale_to_level, set_level, trim_silence
from sdiareward.perturbations.registry import PERTURBATIONS, apply, apply_chain, change_recordings, draw_chain
from sdiareward.perturbations.voices import VoiceShape


RATE = 16_000
# Away from the ends, where a tone begins and stops at once.
MIDDLE = slice(RATE // 4, -RATE // 4)
SPEECH = read_audio(EXAMPLES / "human-0.flac")


def tone(frequency_hz, duration_s=1.0, level=0.1):
    return (level * np.sin(2 * np.pi * frequency_hz * np.arange(round(duration_s * RATE)) / RATE)).astype(np.float32)


def level_db(array):
    return 10 * np.log10(np.mean(np.square(array, dtype=np.float64)))


def make_rng():
    return np.random.default_rng(0)


def amplitude(array, frequency_hz):
    """Return the amplitude of a tone in the middle of a signal, by the dot product with it."""
    middle = array[MIDDLE]
    phase = 2 * np.pi * frequency_hz * np.arange(len(middle)) / RATE
    return 2 * abs(np.mean(middle * np.exp(-1j * phase)))


@pytest.mark.parametrize("rate", [8000, 16_000, 44_100])
@pytest.mark.parametrize("name", PERTURBATIONS)
def test_every_perturbation_returns_finite_float32_of_its_stated_length_and_does_not_change_its_input(name, rate):
    array = tone(300, 0.1).astype(np.float64)
    before = array.copy()
    for severity in (None, *PERTURBATIONS[name].severities):
        changed, again = (apply(name, array, rate, severity, seed=3) for _ in range(2))
        assert changed.dtype == np.float32
        assert np.isfinite(changed).all()
        assert np.array_equal(changed, again)
        assert not apply(name, np.zeros(100), rate, severity).any() or name in {"dc_offset", "mp3", "opus"}
        assert (
            (len(changed) == len(array))
            == PERTURBATIONS[name].keeps_length
            == ("speed" not in name and "silence" not in name)
        )
    assert np.array_equal(array, before)


@pytest.mark.parametrize("name", [name for name in PERTURBATIONS if PERTURBATIONS[name].severities])
def test_severities_go_from_weak_to_strong(name):
    array = SPEECH
    signs = {np.sign(severity) for severity in PERTURBATIONS[name].severities}
    for sign in signs:
        sizes = []
        for severity in (value for value in PERTURBATIONS[name].severities if np.sign(value) == sign):
            changed = apply(name, array, RATE, severity)
            least = min(len(changed), len(array))
            sizes.append(abs(len(changed) - len(array)) + np.abs(changed[:least] - array[:least]).sum())
        assert sizes == sorted(sizes)
        assert len(set(sizes)) == len(sizes) >= 2
    absolute = [abs(severity) for severity in PERTURBATIONS[name].severities]
    assert len(signs) == 1 or absolute == sorted(absolute)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("echo", np.zeros(9), RATE), "unknown perturbation 'echo'"),
        (("gain", np.zeros((2, 9)), RATE), r"shape \(2, 9\)"),
        (("gain", np.zeros(0), RATE), "must be mono and not empty"),
        (("leading_silence", np.zeros(9), RATE, -1), "-1 s; it must be between 0 and 60"),
        (("telephone_band", np.zeros(9), RATE, 200), "200 Hz; it must be between 400 and"),
        (("gain", np.zeros(9), RATE, float("nan")), "gain is nan dB"),
    ],
)
def test_unknown_names_bad_signals_and_severities_out_of_range_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        apply(*arguments)


def test_a_chain_has_one_to_three_perturbations_in_the_order_of_the_registry():
    rng, order = np.random.default_rng(0), list(PERTURBATIONS)
    chains = [[name for name, _ in draw_chain(order[::-1], rng)] for _ in range(200)]
    assert {len(chain) for chain in chains} == {1, 2, 3}
    assert all(chain == sorted(set(chain), key=order.index) for chain in chains)
    assert {name for chain in chains for name in chain} == set(PERTURBATIONS)
    assert [name for name, _ in draw_chain(["gain"], rng)] == ["gain"]
    chain = [("dc_offset", 0.25), ("gain", -20.0), ("polarity", 0.0)]
    assert apply_chain(np.array([0.5, 0.25]), RATE, chain, seed=0) == pytest.approx([-0.075, -0.05])


def test_only_the_recordings_of_a_dialogue_are_changed():
    sound = {"array": tone(300, 0.1), "sampling_rate": RATE}
    items = [{"type": "text", "text": "hm"}, {"type": "audio", "audio": sound}]
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": items}]
    changed = change_recordings(messages, lambda number, array: number * 2 * array)
    assert changed[0] == messages[0]
    assert changed[1]["content"][0] == items[0]
    assert np.array_equal(changed[1]["content"][1]["audio"]["array"], 2 * sound["array"])
    assert np.array_equal(items[1]["audio"]["array"], tone(300, 0.1))


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


@pytest.mark.parametrize(("frequency_hz", "change_db"), [(1000, 0.0), (3000, 0.0), (100, -60.0), (5000, -60.0)])
def test_the_telephone_band_removes_frequencies_outside_the_band(frequency_hz, change_db):
    change = level_db(apply("telephone_band", tone(frequency_hz), RATE)[MIDDLE]) - level_db(tone(frequency_hz)[MIDDLE])
    assert change == pytest.approx(0, abs=0.1) if change_db == 0 else change < change_db


@pytest.mark.parametrize(("name", "severity"), [("narrow_band", 8000), ("mulaw", 8)])
def test_a_rate_of_8_khz_in_between_leaves_nothing_above_4_khz(name, severity):
    changed = apply(name, tone(1000) + tone(6000), RATE, severity)
    assert amplitude(changed, 1000) == pytest.approx(0.1, rel=0.03)
    assert amplitude(changed, 6000) < 1e-3


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


@pytest.mark.parametrize(("name", "severity"), [("mp3", 32), ("mp3", 64), ("opus", 16), ("opus", 32)])
def test_a_codec_adds_no_delay_and_reaches_its_bit_rate(name, severity, monkeypatch):
    sizes, encode = [], channel.encode

    def measuring(*args, **options):
        sizes.append(len(encode(*args, **options)))
        return encode(*args, **options)

    monkeypatch.setattr(channel, "encode", measuring)
    array = SPEECH
    changed = apply(name, array, RATE, severity)
    product = np.fft.rfft(changed) * np.conj(np.fft.rfft(array))
    assert np.fft.irfft(product).argmax() == 0
    assert sizes[0] * 8 / len(array) * RATE / 1000 == pytest.approx(severity, rel=0.25)


def test_levels_are_measured_and_set_and_another_tempo_keeps_the_pitch(make_tone):
    assert measure_level(scale_to_level(make_tone(0.5), 0.25)) == pytest.approx(0.25)
    assert not scale_to_level(np.zeros(9), 0.25).any() and measure_level(np.zeros(0)) == 0.0
    assert level_db(set_level(make_tone(0.5), -30.0)) == pytest.approx(-30.0, abs=1e-3)
    assert np.abs(set_level(make_tone(0.5), 20.0)).max() == pytest.approx(0.99, abs=1e-6)
    fast = change_tempo(make_tone(2.0, 220.0), RATE, 1.6)
    assert len(fast) / RATE == pytest.approx(2.0 / 1.6, abs=0.05)
    assert np.argmax(np.abs(np.fft.rfft(fast * np.hanning(len(fast))))) * RATE / len(fast) == pytest.approx(220, abs=2)


def test_trimming_keeps_fifty_milliseconds_around_the_speech(make_tone):
    speech = make_tone(1.0)
    silence = np.zeros(8000, dtype=np.float32)
    trimmed = trim_silence(np.concatenate([silence, speech, silence]), 35.0)
    assert len(trimmed) == 16_000 + 2 * 800
    np.testing.assert_array_equal(trimmed[800:-800], speech)
    assert trim_silence(silence, 35.0) is silence


def test_the_noise_floor_has_the_level_of_the_settings(make_tone):
    pause = np.zeros(16_000, dtype=np.float32)
    matched = ChannelSettings(coding="none")(np.concatenate([make_tone(2.0), pause]), RATE, make_rng())
    # Resampling to 16 kHz removes only the last few percent of the noise's band.
    assert level_db(matched[-15_000:]) == pytest.approx(-26.0 - 20.0, abs=0.7)


@pytest.mark.parametrize("fields", [{"coding": "gsm"}, {"bandwidth_hz": 0.0}, {"bandwidth_hz": 9000.0}])
def test_settings_out_of_range_are_errors(fields):
    with pytest.raises(ValueError, match=next(iter(fields)).split("_")[0]):
        ChannelSettings(**fields)


@pytest.mark.parametrize("name", CODINGS)
def test_a_coding_keeps_length_and_most_of_a_narrow_band_signal(name, make_tone):
    tone = make_tone(1.0, frequency_hz=440.0)
    coded = CODINGS[name](tone, RATE)
    assert abs(len(coded) - len(tone)) <= 16
    assert level_db(coded) == pytest.approx(level_db(tone), abs=1.0)
    assert not np.array_equal(coded[: len(tone)], tone[: len(coded)])


def test_pitch_is_shifted_spread_and_raised_by_a_shape():
    pitch = np.array([0.0, 100.0, 0.0, 400.0])
    np.testing.assert_allclose(VoiceShape(pitch=1.5).change_pitch(pitch), [0, 150, 0, 600])
    np.testing.assert_allclose(VoiceShape(pitch_range=0.5).change_pitch(pitch), [0, 200 / 2**0.5, 0, 200 * 2**0.5])
    steady = VoiceShape(rise=1.5).change_pitch(np.full(161, 100.0))
    np.testing.assert_allclose(steady[[0, 80, 120, 160]], [100, 100, 125, 150])
    shaking = VoiceShape(tremor=0.1, tremor_hz=5.0).change_pitch(np.full(400, 100.0))
    assert shaking.max() == pytest.approx(110, abs=0.1)
    assert shaking[10] == pytest.approx(110.0)


def test_silence_around_the_words_is_trimmed():
    speech = load_synthesizer("espeak-ng").speak("The second train leaves a little later.", voice=0)
    padded = np.concatenate([np.zeros(RATE, np.float32), speech, np.zeros(RATE, np.float32)])
    assert len(VoiceShape()(padded, RATE)) <= len(speech) + 0.2 * RATE
