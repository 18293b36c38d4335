import json

import numpy as np
import pytest

from benchmarks import toy_judge
from sdiareward.audio_sdiareward import read_audio
from sdiareward.cards import render_toy_judge


@pytest.fixture
def clip():
    time_s = np.arange(16_000) / 16_000
    return (0.1 * np.sin(2 * np.pi * 300 * time_s)).astype(np.float32)


def test_a_tempo_change_keeps_the_pitch(clip):
    for tempo in (1.4, 0.7):
        changed = toy_judge.change_tempo(clip, tempo)
        assert changed.size == pytest.approx(clip.size / tempo, rel=0.05)
        spectrum = np.abs(np.fft.rfft(changed[1000:5096] * np.hanning(4096)))
        assert np.argmax(spectrum) * 16_000 / 4096 == pytest.approx(300, abs=8)


def test_a_level_is_the_root_mean_square(clip):
    quiet = toy_judge.set_level(clip, -40.0)
    assert 20 * np.log10(np.sqrt(np.mean(quiet**2))) == pytest.approx(-40.0, abs=0.01)


def test_a_scenario_is_the_same_clip_with_three_scores(clip):
    samples = toy_judge.make_samples([clip, clip[:8000]], seed=0)
    assert samples["score"] == [5, 3, 1] * 2
    assert samples["scenario_id"] == ["0"] * 3 + ["1"] * 3
    loud_fast, _, soft_slow = (read_audio(audio) for audio in samples["audio"][:3])
    assert loud_fast.size < clip.size < soft_slow.size
    assert np.sqrt(np.mean(loud_fast**2)) > 3 * np.sqrt(np.mean(soft_slow**2))


def test_held_out_clips_come_from_other_recordings_of_the_sample():
    clips = list(toy_judge.short_clips())
    assert len({group for group, _ in clips}) >= 8
    assert {clip.size for _, clip in clips} == {16_000}


def test_the_committed_curve_starts_at_chance_and_the_guide_shows_it():
    result = json.loads(render_toy_judge.RESULT.read_text(encoding="utf-8"))
    assert result["curve"][0]["accuracy"] < 0.5 < result["curve"][-1]["accuracy"]
    assert render_toy_judge.render_curve(result) in render_toy_judge.GUIDE.read_text(encoding="utf-8")
