"""Sounds that attacks insert: synthesised, spoken, or recorded."""

import shutil

import numpy as np
import pytest
from support.sound_files import write_sound

from sdiareward.perturbations.attack_sounds import fingerprint_sounds, load_sound


def test_recordings_in_a_folder_replace_synthesised_sounds(tmp_path, make_tone):
    rng, _ = np.random.default_rng(0), write_sound(tmp_path, "breath", make_tone(0.2))
    sound = load_sound("breath", rng, tmp_path)
    assert np.allclose(sound, make_tone(0.2) / np.abs(make_tone(0.2)).max())
    assert np.abs(load_sound("laughter", rng, tmp_path)).max() == pytest.approx(1.0)


def test_the_fingerprint_of_recordings_depends_on_their_content_and_kind(tmp_path, make_tone):
    with pytest.raises(ValueError, match="no recordings; put some into one of its folders click, breath, laughter, f"):
        fingerprint_sounds(tmp_path)
    low, high = make_tone(0.2, 200.0), make_tone(0.2, 300.0)
    kinds = [("a", "breath", low), ("c", "breath", high), ("d", "click", low)]
    found = [fingerprint_sounds(write_sound(tmp_path / name, kind, tone)) for name, kind, tone in kinds]
    assert len(set(found)) == 3
    # Not written again: the header of samples in floating point has the time.
    assert fingerprint_sounds(shutil.copytree(tmp_path / "a", tmp_path / "b")) == found[0]


def test_a_laugh_has_syllables_at_about_five_per_second():
    laugh = load_sound("laughter", np.random.default_rng(1))
    frames = np.square(laugh[: len(laugh) // 160 * 160].reshape(-1, 160)).mean(axis=1)
    loudness = np.convolve(frames, np.hanning(9), "same")
    spectrum = np.abs(np.fft.rfft(loudness - loudness.mean(), 4096))
    rates_hz = np.fft.rfftfreq(4096, 0.01)
    assert rates_hz[spectrum.argmax()] == pytest.approx(5.0, abs=1.0)
