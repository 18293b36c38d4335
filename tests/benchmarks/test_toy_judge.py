import numpy as np
import pytest

from benchmarks import toy_judge
from benchmarks.guides.rendering import read_result
from sdiareward.audio_sdiareward import read_audio


@pytest.fixture
def clip():
    time_s = np.arange(16_000) / 16_000
    return (0.1 * np.sin(2 * np.pi * 300 * time_s)).astype(np.float32)


def test_a_scenario_is_the_same_clip_with_three_scores(clip):
    samples = toy_judge.make_samples([clip, clip[:8000]], seed=0)
    assert samples["score"] == [5, 3, 1] * 2
    assert samples["scenario_id"] == ["0"] * 3 + ["1"] * 3
    loud_fast, _, soft_slow = (read_audio(audio) for audio in samples["audio"][:3])
    assert loud_fast.size < clip.size < soft_slow.size
    assert np.sqrt(np.mean(loud_fast**2)) > 3 * np.sqrt(np.mean(soft_slow**2))


@pytest.mark.slow
def test_held_out_clips_come_from_other_recordings_of_the_sample():
    clips = list(toy_judge.short_clips())
    assert len({group for group, _ in clips}) >= 8
    assert {clip.size for _, clip in clips} == {16_000}


def test_the_committed_curve_starts_at_chance_and_ends_above():
    result = read_result("toy_judge.json")
    assert result["curve"][0]["accuracy"] < 0.5 < result["curve"][-1]["accuracy"]
