"""Changes of a recording that must not matter: what each does to samples, exactly or in decibels."""

import subprocess
import sys

import numpy as np
import pytest

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.package_files import EXAMPLES
from sdiareward.perturbations.effects import NUISANCES, apply, apply_chain, change_recordings, draw_chain


RATE = 16_000
# Away from the ends, where a tone begins and stops at once.
MIDDLE = slice(RATE // 4, -RATE // 4)
CHANGED_LENGTH = {"speed", "leading_silence", "trailing_silence"}


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


def test_a_gain_of_minus_20_db_divides_by_ten():
    assert apply("gain", np.array([1.0, -0.5]), RATE, -20) == pytest.approx([0.1, -0.05])


def test_a_gain_of_plus_6_db_is_not_clipped():
    assert apply("gain", np.array([1.0, -0.5]), RATE, 6) == pytest.approx([1.99526, -0.99763], abs=1e-5)


def test_silence_comes_before_or_after_the_recording_and_nothing_else_changes():
    array = np.array([0.5, 0.25])
    assert apply("leading_silence", array, 8000, 0.001).tolist() == [0.0] * 8 + [0.5, 0.25]
    assert apply("trailing_silence", array, 8000, 0.001).tolist() == [0.5, 0.25] + [0.0] * 8


def test_polarity_turns_every_sample_around():
    assert apply("polarity", np.array([0.5, -0.25]), RATE).tolist() == [-0.5, 0.25]


def test_an_offset_is_added_to_every_sample():
    assert apply("dc_offset", np.array([0.5, -0.25]), RATE, 0.125).tolist() == [0.625, -0.125]


@pytest.mark.parametrize("name", ["noise", "pink_noise"])
@pytest.mark.parametrize("severity", [30, 20, 10])
def test_noise_lies_as_far_below_the_speech_as_was_asked_whatever_silence_is_around_it(name, severity):
    silence, voice = np.zeros(RATE, dtype=np.float32), tone(500)
    noise = apply(name, voice, RATE, severity) - voice
    assert level_db(voice) - level_db(noise) == pytest.approx(severity, abs=0.01)
    surrounded = np.concatenate([silence, voice, silence])
    noise = apply(name, surrounded, RATE, severity) - surrounded
    # The margin of 50 ms that is left around the speech counts with it: 10 log10(1.1) dB.
    assert level_db(voice) - level_db(noise) == pytest.approx(severity + 0.414, abs=0.01)


def test_white_noise_has_as_much_power_in_each_hertz_and_pink_noise_in_each_octave():
    for name, change_db in (("noise", 3.01), ("pink_noise", 0.0)):
        voice = tone(500, 20.0)
        power = np.abs(np.fft.rfft(apply(name, voice, RATE, 10) - voice)) ** 2
        hertz = np.fft.rfftfreq(len(voice), 1 / RATE)
        low, high = (power[(hertz >= edge) & (hertz < 2 * edge)].sum() for edge in (1000, 2000))
        assert 10 * np.log10(high / low) == pytest.approx(change_db, abs=0.2)


def test_what_is_random_is_the_same_for_a_seed_and_another_for_another():
    for name in ("noise", "pink_noise", "reverberation"):
        first, again, other = (apply(name, tone(500), RATE, seed=seed) for seed in (1, 1, 2))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


@pytest.mark.parametrize(("frequency_hz", "change_db"), [(1000, 0.0), (3000, 0.0), (100, -60.0), (5000, -60.0)])
def test_the_telephone_band_keeps_what_is_inside_and_takes_out_what_is_outside(frequency_hz, change_db):
    change = level_db(apply("telephone_band", tone(frequency_hz), RATE)[MIDDLE]) - level_db(tone(frequency_hz)[MIDDLE])
    assert change == pytest.approx(0, abs=0.1) if change_db == 0 else change < change_db


@pytest.mark.parametrize(("name", "severity"), [("narrow_band", 8000), ("mulaw", 8)])
def test_a_rate_of_8_khz_in_between_leaves_nothing_above_4_khz(name, severity):
    changed = apply(name, tone(1000) + tone(6000), RATE, severity)
    assert amplitude(changed, 1000) == pytest.approx(0.1, rel=0.03)
    assert amplitude(changed, 6000) < 1e-3


@pytest.mark.parametrize("severity", [22_050, 44_100, 48_000])
def test_a_round_trip_through_a_higher_rate_brings_back_the_samples(severity):
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
def test_a_tilt_is_measured_between_two_tones_an_octave_apart_and_the_level_stays(severity):
    array = tone(1000) + tone(2000)
    changed = apply("tilt", array, RATE, severity)
    assert 20 * np.log10(amplitude(changed, 2000) / amplitude(changed, 1000)) == pytest.approx(severity, abs=0.05)
    assert level_db(changed) == pytest.approx(level_db(array), abs=1e-3)


@pytest.mark.parametrize("severity", [0.1, 5.0])
def test_the_share_of_samples_that_was_asked_for_is_clipped(severity):
    array = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    changed = apply("clipping", array, RATE, severity)
    at_limit = np.abs(changed) >= np.abs(changed).max() * (1 - 1e-6)
    assert at_limit.mean() == pytest.approx(severity / 100, abs=2e-4)
    assert np.array_equal(changed[~at_limit], array[~at_limit])


@pytest.mark.parametrize("severity", NUISANCES["reverberation"].severities)
def test_a_room_keeps_level_and_direct_sound_and_decays_by_60_db_in_its_time(severity):
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
def test_coding_delays_nothing_and_costs_as_much_as_was_asked(name, severity, monkeypatch):
    from sdiareward.perturbations import filters

    sizes, encode = [], filters.encode

    def measuring(*args, **options):
        sizes.append(len(encode(*args, **options)))
        return encode(*args, **options)

    monkeypatch.setattr(filters, "encode", measuring)
    array = speech()
    changed = apply(name, array, RATE, severity)
    product = np.fft.rfft(changed) * np.conj(np.fft.rfft(array))
    assert np.fft.irfft(product).argmax() == 0
    assert sizes[0] * 8 / len(array) * RATE / 1000 == pytest.approx(severity, rel=0.25)


@pytest.mark.parametrize("rate", [8000, 16_000, 44_100])
@pytest.mark.parametrize("name", NUISANCES)
def test_every_nuisance_returns_finite_float32_of_the_length_it_says_and_leaves_its_input_alone(name, rate):
    array = tone(300, 0.1).astype(np.float64)
    before = array.copy()
    for severity in (None, *NUISANCES[name].severities):
        changed, again = (apply(name, array, rate, severity, seed=3) for _ in range(2))
        assert changed.dtype == np.float32
        assert np.isfinite(changed).all()
        assert np.array_equal(changed, again)
        assert (len(changed) == len(array)) == NUISANCES[name].keeps_length == (name not in CHANGED_LENGTH)
    assert np.array_equal(array, before)


@pytest.mark.parametrize("name", [name for name in NUISANCES if name not in {"dc_offset", "mp3", "opus"}])
def test_silence_stays_silence(name):
    assert not apply(name, np.zeros(1000), RATE).any()


@pytest.mark.parametrize("name", [name for name in NUISANCES if NUISANCES[name].severities])
def test_severities_go_from_weak_to_strong(name):
    array = speech()
    signs = {np.sign(severity) for severity in NUISANCES[name].severities}
    for sign in signs:
        sizes = []
        for severity in (value for value in NUISANCES[name].severities if np.sign(value) == sign):
            changed = apply(name, array, RATE, severity)
            least = min(len(changed), len(array))
            sizes.append(abs(len(changed) - len(array)) + np.abs(changed[:least] - array[:least]).sum())
        assert sizes == sorted(sizes)
        assert len(set(sizes)) == len(sizes) >= 2
    absolute = [abs(severity) for severity in NUISANCES[name].severities]
    assert len(signs) == 1 or absolute == sorted(absolute)


@pytest.mark.parametrize("name", NUISANCES)
def test_the_usual_severity_lies_between_the_weakest_and_the_strongest_and_so_does_a_drawn_one(name):
    nuisance, rng = NUISANCES[name], np.random.default_rng(0)
    drawn = [nuisance.draw(rng) for _ in range(50)]
    for severity in (nuisance.default, *nuisance.severities, *drawn):
        assert not nuisance.severities or min(nuisance.severities) <= severity <= max(nuisance.severities)
        assert nuisance.limits[0] <= severity <= nuisance.limits[1]
    assert len(set(drawn)) == (50 if nuisance.severities else 1)


def test_a_chain_is_one_to_three_changes_in_the_order_of_the_way_to_the_file():
    rng, order = np.random.default_rng(0), list(NUISANCES)
    chains = [[name for name, _ in draw_chain(order[::-1], rng)] for _ in range(200)]
    assert {len(chain) for chain in chains} == {1, 2, 3}
    assert all(chain == sorted(set(chain), key=order.index) for chain in chains)
    assert {name for chain in chains for name in chain} == set(NUISANCES)
    assert [name for name, _ in draw_chain(["gain"], rng)] == ["gain"]


def test_a_chain_is_applied_from_its_first_change_to_its_last():
    chain = [("dc_offset", 0.25), ("gain", -20.0), ("polarity", 0.0)]
    assert apply_chain(np.array([0.5, 0.25]), RATE, chain, seed=0) == pytest.approx([-0.075, -0.05])
    assert apply_chain(np.array([0.5]), RATE, [], seed=0).tolist() == [0.5]


def test_only_the_recordings_of_a_dialogue_are_changed_each_with_its_number():
    sound = {"array": tone(300, 0.1), "sampling_rate": RATE}
    items = [{"type": "text", "text": "hm"}, {"type": "audio", "audio": sound}]
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": items}]
    changed = change_recordings(messages, lambda number, array: number * 2 * array)
    assert changed[0] == messages[0]
    assert changed[1]["content"][0] == items[0]
    assert np.array_equal(changed[1]["content"][1]["audio"]["array"], 2 * sound["array"])
    assert np.array_equal(items[1]["audio"]["array"], tone(300, 0.1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("echo", np.zeros(9), RATE), "the nuisance is 'echo'; it must be one of clipping, dc_offset"),
        (("gain", np.zeros((2, 9)), RATE), r"shape \(2, 9\)"),
        (("gain", np.zeros(0), RATE), "with samples"),
        (("leading_silence", np.zeros(9), RATE, -1), "-1 s; it must lie between 0 and 60"),
        (("telephone_band", np.zeros(9), RATE, 200), "200 Hz; it must lie between 400 and"),
        (("gain", np.zeros(9), RATE, float("nan")), "gain is nan dB"),
    ],
)
def test_what_cannot_be_changed_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        apply(*arguments)


def test_a_nuisance_says_what_it_does():
    assert NUISANCES["gain"].describe() == "level -6 dB"
    assert NUISANCES["leading_silence"].describe(1) == "1 s of silence before each turn"
    assert NUISANCES["polarity"].describe() == "polarity inverted"


def test_nuisances_do_without_torch():
    code = "import sys, sdiareward.perturbations.effects; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
