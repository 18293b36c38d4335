"""Changes of a recording that must not matter: what each does to samples, exactly or in decibels."""

import subprocess
import sys

import numpy as np
import pytest

from sdiareward.nuisances import NUISANCES, apply


RATE = 16_000


def tone(frequency_hz, duration_s=1.0, level=0.1):
    return (level * np.sin(2 * np.pi * frequency_hz * np.arange(round(duration_s * RATE)) / RATE)).astype(np.float32)


def level_db(array):
    return 10 * np.log10(np.mean(np.square(array, dtype=np.float64)))


def test_a_gain_of_minus_20_db_divides_by_ten():
    assert apply("gain", np.array([1.0, -0.5]), RATE, -20) == pytest.approx([0.1, -0.05])


def test_silence_comes_before_the_recording_and_nothing_else_changes():
    changed = apply("leading_silence", np.array([0.5, 0.25]), 8000, 0.001)
    assert changed.tolist() == [0.0] * 8 + [0.5, 0.25]


def test_polarity_turns_every_sample_around():
    assert apply("polarity", np.array([0.5, -0.25]), RATE).tolist() == [-0.5, 0.25]


@pytest.mark.parametrize("severity", [40, 30, 10])
def test_noise_lies_as_far_below_the_speech_as_was_asked_whatever_silence_is_around_it(severity):
    speech = np.concatenate([np.zeros(RATE, dtype=np.float32), tone(500), np.zeros(RATE, dtype=np.float32)])
    noise = apply("noise", speech, RATE, severity) - speech
    # The margin of 50 ms that is left around the speech counts with it.
    assert level_db(tone(500)) - level_db(noise) == pytest.approx(severity, abs=0.6)


def test_noise_is_the_same_for_a_seed_and_another_for_another():
    first, again, other = (apply("noise", tone(500), RATE, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("frequency_hz", "change_db"), [(1000, 0.0), (3000, 0.0), (100, -60.0), (5000, -60.0)])
def test_the_telephone_band_keeps_what_is_inside_and_takes_out_what_is_outside(frequency_hz, change_db):
    # Away from the ends, where a tone begins and stops at once.
    middle = slice(RATE // 4, -RATE // 4)
    change = level_db(apply("telephone_band", tone(frequency_hz), RATE)[middle]) - level_db(tone(frequency_hz)[middle])
    assert change == pytest.approx(0, abs=0.1) if change_db == 0 else change < change_db


@pytest.mark.parametrize("name", NUISANCES)
def test_every_nuisance_returns_float32_and_leaves_its_input_alone(name):
    array = tone(300, 0.1).astype(np.float64)
    before = array.copy()
    for severity in (None, *NUISANCES[name].severities):
        changed = apply(name, array, RATE, severity)
        assert changed.dtype == np.float32
        assert np.isfinite(changed).all()
        assert len(changed) >= len(array)
    assert np.array_equal(array, before)


def test_silence_stays_silence_under_noise_that_is_relative_to_speech():
    assert not apply("noise", np.zeros(1000), RATE).any()


@pytest.mark.parametrize("name", NUISANCES)
def test_severities_go_from_weak_to_strong(name):
    array = tone(300) + tone(3500)
    sizes = []
    for severity in NUISANCES[name].severities:
        changed = apply(name, array, RATE, severity)
        sizes.append(len(changed) - len(array) + np.abs(changed[-len(array) :] - array).sum())
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("echo", np.zeros(9), RATE), "the nuisance is 'echo'; it must be one of gain, leading_silence"),
        (("gain", np.zeros((2, 9)), RATE), r"shape \(2, 9\)"),
        (("gain", np.zeros(0), RATE), "with samples"),
        (("leading_silence", np.zeros(9), RATE, -1), "-1 s; it must be at least 0"),
        (("telephone_band", np.zeros(9), RATE, 200), "200 Hz; its upper edge must be above 300"),
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
    code = "import sys, sdiareward.nuisances; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
