"""Preferences for cues: the families of SpeechJudgeAudit, measured on the audited pairs."""

import numpy as np
import pytest
from support.audit_world import FunctionScorer, Pairs, loudness, make_label, make_pair

from sdiareward.audit import families, statistics
from sdiareward.audit.conditions import NATURAL, collect_rewards
from sdiareward.audit.families import VARIANTS, make_family_conditions, measure_families
from sdiareward.perturbations.decoded_pairs import Turn
from sdiareward.perturbations.levels import measure_level


FAMILIES = ["loudness", "content_richness", "repetition", "silence_padding", "emotion"]


@pytest.fixture
def fake_speech(monkeypatch):
    """Speak each word as 100 samples, and shape no voice: what is tested is which version a model gets."""
    monkeypatch.setattr(families, "is_available", lambda name: True)
    monkeypatch.setattr(
        families, "find_voice", lambda: lambda text: np.full(100 * len(text.split()), 0.1, dtype=np.float32)
    )
    monkeypatch.setattr(families, "_shape", lambda turn, emotion: turn)


def collect(folder, reward=loudness, heard_s=60.0, **pair):
    sample = Pairs([make_pair(f"p{row}", 0.5, 0.25, group=f"g{row}", **pair) for row in range(4)])
    conditions = make_family_conditions(lambda: heard_s)
    rewards = collect_rewards(lambda: FunctionScorer(reward), sample, conditions, folder)
    return {(row["family"], row["variant"]): row for row in measure_families(statistics.Pairs(sample.labels, rewards))}


def length(dialogues, criteria):
    return [float(sum(len(m["content"][-1]["audio"]["array"]) for m in dialogue)) for dialogue in dialogues]


def test_every_family_of_the_benchmark_is_covered_under_its_name():
    assert list(dict.fromkeys(variant.family for variant in VARIANTS)) == FAMILIES


def test_a_model_that_rewards_loudness_prefers_louder_versions_only(fake_speech, tmp_path):
    found = collect(tmp_path)
    assert [found["loudness", f"{gain} dB"]["preference"] for gain in ("-6", "-3", "+3", "+6")] == [0, 0, 1, 1]
    assert found["repetition", "the last turn said twice"]["preference"] == 0.5
    assert found["silence_padding", "1 s before each turn"]["preference"] == 0
    assert found["emotion", "sad last turn"]["preference"] == 0.5


def test_a_model_that_rewards_length_prefers_more_words_repetition_and_silence(fake_speech, tmp_path):
    found = collect(tmp_path, length)
    longer = [name for name in found if name[0] in ("content_richness", "repetition", "silence_padding")]
    assert [found[name]["preference"] for name in longer] == [1.0] * 4
    assert {found["loudness", f"{gain} dB"]["preference"] for gain in ("-6", "-3", "+3", "+6")} == {0.5}
    assert all(found[name]["num_pairs"] == 4 for name in longer)


def test_a_turn_that_is_not_heard_to_its_end_is_not_tried(fake_speech, tmp_path):
    # A turn of 0.1 s, said twice; the richer words last 0.1 s.
    found = collect(tmp_path, heard_s=0.19)
    repeated = found["repetition", "the last turn said twice"]
    assert (repeated["num_pairs"], repeated["preference"], repeated["interval"]) == (0, None, None)
    assert repeated["not_applicable"] == {families._TOO_LONG: 4}
    assert found["content_richness", "the answer in more words"]["num_pairs"] == 4


def test_without_a_synthesizer_the_family_tells_what_it_needs(monkeypatch, tmp_path):
    monkeypatch.setattr(families, "find_voice", lambda: None)
    monkeypatch.setattr(families, "is_available", lambda name: False)
    found = collect(tmp_path)
    assert found["content_richness", "the answer in more words"]["not_applicable"] == {
        "needs a synthesizer that speaks offline": 4
    }
    assert found["emotion", "happy last turn"]["not_applicable"] == {"needs pyworld (the extra `build`)": 4}


def test_a_preference_is_the_mean_of_both_sides_with_ties_counting_half():
    labels = [make_label(f"p{row}", group=f"g{row}") for row in range(2)]

    def lines(*rewards):
        return {f"p{row}": {"rewards": {"chosen": c, "rejected": r}} for row, (c, r) in enumerate(rewards)}

    # Higher and equal; higher and lower.
    rewards = {NATURAL: lines((1.0, 0.0), (1.0, 0.0)), "nuisance/gain/3": lines((2.0, 0.0), (2.0, -1.0))}
    found = measure_families(statistics.Pairs(labels, rewards))
    (row,) = [row for row in found if row["variant"] == "+3 dB"]
    assert (row["num_pairs"], row["preference"]) == (2, 0.625)


def test_emotions_pass_through_one_vocoder_at_one_level(make_tone):
    pytest.importorskip("pyworld")
    turn = Turn("assistant", "hello", make_tone(0.6))
    shaped = {emotion: families._shape(turn, emotion).array for emotion in ("neutral", "happy", "sad", "angry")}
    assert np.ptp([20 * np.log10(measure_level(array)) for array in shaped.values()]) < 0.1
    assert len(shaped["sad"]) > len(shaped["neutral"]) > len(shaped["angry"])
