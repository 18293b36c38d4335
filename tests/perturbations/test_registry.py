"""Perturbations by name: the contract of severities, seeds, lengths and limits, and chains of them."""

import numpy as np
import pytest

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.package_files import EXAMPLES
from sdiareward.perturbations import channel
from sdiareward.perturbations.registry import PERTURBATIONS, apply, apply_chain, change_recordings, draw_chain


RATE = 16_000
CHANGED_LENGTH = {"speed", "leading_silence", "trailing_silence"}


def tone(frequency_hz, duration_s=1.0, level=0.1):
    return (level * np.sin(2 * np.pi * frequency_hz * np.arange(round(duration_s * RATE)) / RATE)).astype(np.float32)


def speech():
    return read_audio(EXAMPLES / "human-0.flac")


def test_the_same_seed_gives_the_same_samples_and_another_seed_gives_others():
    for name in ("noise", "pink_noise", "reverberation"):
        first, again, other = (apply(name, tone(500), RATE, seed=seed) for seed in (1, 1, 2))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


@pytest.mark.parametrize(("name", "severity"), [("mp3", 32), ("mp3", 64), ("opus", 16), ("opus", 32)])
def test_a_codec_adds_no_delay_and_reaches_its_bit_rate(name, severity, monkeypatch):
    sizes, encode = [], channel.encode

    def measuring(*args, **options):
        sizes.append(len(encode(*args, **options)))
        return encode(*args, **options)

    monkeypatch.setattr(channel, "encode", measuring)
    array = speech()
    changed = apply(name, array, RATE, severity)
    product = np.fft.rfft(changed) * np.conj(np.fft.rfft(array))
    assert np.fft.irfft(product).argmax() == 0
    assert sizes[0] * 8 / len(array) * RATE / 1000 == pytest.approx(severity, rel=0.25)


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
        assert (len(changed) == len(array)) == PERTURBATIONS[name].keeps_length == (name not in CHANGED_LENGTH)
    assert np.array_equal(array, before)


@pytest.mark.parametrize("name", [name for name in PERTURBATIONS if name not in {"dc_offset", "mp3", "opus"}])
def test_silence_stays_silence(name):
    assert not apply(name, np.zeros(1000), RATE).any()


@pytest.mark.parametrize("name", [name for name in PERTURBATIONS if PERTURBATIONS[name].severities])
def test_severities_go_from_weak_to_strong(name):
    array = speech()
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


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_default_and_drawn_severities_lie_between_the_weakest_and_the_strongest(name):
    perturbation, rng = PERTURBATIONS[name], np.random.default_rng(0)
    drawn = [perturbation.draw_severity(rng) for _ in range(50)]
    for severity in (perturbation.default, *perturbation.severities, *drawn):
        assert not perturbation.severities or min(perturbation.severities) <= severity <= max(perturbation.severities)
        assert perturbation.limits[0] <= severity <= perturbation.limits[1]
        assert perturbation.format_title(severity)
    assert len(set(drawn)) == (50 if perturbation.severities else 1)


def test_a_chain_has_one_to_three_perturbations_in_the_order_of_the_registry():
    rng, order = np.random.default_rng(0), list(PERTURBATIONS)
    chains = [[name for name, _ in draw_chain(order[::-1], rng)] for _ in range(200)]
    assert {len(chain) for chain in chains} == {1, 2, 3}
    assert all(chain == sorted(set(chain), key=order.index) for chain in chains)
    assert {name for chain in chains for name in chain} == set(PERTURBATIONS)
    assert [name for name, _ in draw_chain(["gain"], rng)] == ["gain"]


def test_a_chain_is_applied_in_order():
    chain = [("dc_offset", 0.25), ("gain", -20.0), ("polarity", 0.0)]
    assert apply_chain(np.array([0.5, 0.25]), RATE, chain, seed=0) == pytest.approx([-0.075, -0.05])
    assert apply_chain(np.array([0.5]), RATE, [], seed=0).tolist() == [0.5]


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
    ("arguments", "message"),
    [
        (("echo", np.zeros(9), RATE), "the perturbation is 'echo'; it must be one of clipping, dc_offset"),
        (("gain", np.zeros((2, 9)), RATE), r"shape \(2, 9\)"),
        (("gain", np.zeros(0), RATE), "with samples"),
        (("leading_silence", np.zeros(9), RATE, -1), "-1 s; it must lie between 0 and 60"),
        (("telephone_band", np.zeros(9), RATE, 200), "200 Hz; it must lie between 400 and"),
        (("gain", np.zeros(9), RATE, float("nan")), "gain is nan dB"),
    ],
)
def test_unknown_names_bad_signals_and_severities_out_of_range_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        apply(*arguments)
