"""Counts by hand; intervals, tests and strengths against SciPy and choix."""

import choix
import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap, spearmanr
from support.paths import ROOT

from sdiareward.evaluation.comparison.measures import COVARIATES, MATCHED_DBFS, correlate, measure_dialogue
from sdiareward.evaluation.comparison.page import choose_examples
from sdiareward.evaluation.comparison.ranking import PRIOR_WINS, fit_strengths, rank_systems
from sdiareward.evaluation.comparison.verdicts import phrase_verdict
from sdiareward.evaluation.comparison.wins import count_wins


def own_groups(values):
    return list(range(len(values)))


def test_wins_ties_and_margins_are_those_a_hand_counts():
    first, second = [1.0, 2.0, 0.0, 5.0], [0.0, 3.0, 0.0, 1.0]
    found = count_wins(first, second, ["a", "b", "c", "c"])
    assert (found["num_dialogues"], found["num_groups"]) == (4, 3)
    assert (found["num_first"], found["num_second"], found["num_ties"]) == (2, 1, 1)
    assert found["win_rate"] == 2.5 / 4
    assert found["mean_margin"] == (1 - 1 + 0 + 4) / 4
    assert found["p_value"] == 1.0
    assert not found["is_clear"]


@pytest.mark.parametrize(("num_first", "num_second", "num_ties"), [(37, 3, 0), (20, 20, 0), (30, 4, 6), (9, 1, 30)])
def test_the_p_value_is_that_of_the_sign_test(num_first, num_second, num_ties):
    first = [1.0] * num_first + [0.0] * (num_second + num_ties)
    second = [0.0] * num_first + [1.0] * num_second + [0.0] * num_ties
    found = count_wins(first, second, own_groups(first))
    assert found["p_value"] == pytest.approx(binomtest(num_first, num_first + num_second, 0.5).pvalue)


def test_the_interval_agrees_with_the_percentile_bootstrap_of_scipy():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.4, 1, 60), rng.normal(0, 1, 60)
    found = count_wins(first, second, own_groups(first), num_bootstrap=4000)
    options = {"method": "percentile", "n_resamples": 4000, "rng": np.random.default_rng(1)}
    wins = bootstrap(((first > second).astype(float),), np.mean, **options).confidence_interval
    margins = bootstrap((first - second,), np.mean, **options).confidence_interval
    assert found["interval"] == pytest.approx(list(wins), abs=0.02)
    assert found["mean_margin_interval"] == pytest.approx(list(margins), abs=0.03)


def test_the_interval_draws_whole_groups():
    # Ten dialogues a group, which always go together: the interval is that of four values, not of forty.
    first = np.repeat([1.0, 1.0, 1.0, 0.0], 10)
    found = count_wins(first, 1 - first, np.repeat(list("abcd"), 10).tolist())
    alone = count_wins(first, 1 - first, own_groups(first))
    assert found["win_rate"] == alone["win_rate"] == 0.75
    assert np.ptp(found["interval"]) > 2 * np.ptp(alone["interval"])
    # The signs of groups are random together: four of them in five ways out of eight.
    assert alone["is_clear"] and not found["is_clear"] and found["p_value"] == pytest.approx(10 / 16)
    # One group says nothing.
    found = count_wins(first, 1 - first, ["a"] * 40)
    assert (found["interval"], found["mean_margin_interval"], found["p_value"]) == (None, None, 1.0)
    assert not found["is_clear"]
    assert "(75.0%, no interval over 1 group, sign test p = 1.000)" in phrase_verdict("A", "B", "modality", found)


def test_the_interval_of_a_win_every_time_is_wilsons():
    found = count_wins([1.0] * 12, [0.0] * 12, own_groups(range(12)))
    expected = binomtest(12, 12).proportion_ci(method="wilson")
    assert found["interval"] == pytest.approx([expected.low, 1.0])
    assert found["is_clear"]
    # Five times the same tells nothing yet: p is 1/16.
    assert not count_wins([1.0] * 5, [0.0] * 5, own_groups(range(5)))["is_clear"]


def test_equal_rewards_are_no_difference():
    found = count_wins([1.0] * 40, [1.0] * 40, own_groups(range(40)))
    assert (found["win_rate"], found["num_ties"], found["p_value"], found["is_clear"]) == (0.5, 40, 1.0, False)
    assert found["interval"][0] < 0.5 < found["interval"][1]


def test_systems_of_equal_quality_are_told_apart_about_as_often_as_the_rule_allows():
    rng = np.random.default_rng(0)
    told = [
        count_wins(*rng.normal(size=(2, 40)), own_groups(range(40)), num_bootstrap=200)["is_clear"] for _ in range(200)
    ]
    assert np.mean(told) <= 0.06


def verdict(num_first, num_second, num_ties=0, swapped=False):
    first = [1.0] * num_first + [0.0] * (num_second + num_ties)
    second = [0.0] * num_first + [1.0] * num_second + [0.0] * num_ties
    one, other = (second, first) if swapped else (first, second)
    return phrase_verdict(*("BA" if swapped else "AB"), "modality", count_wins(one, other, own_groups(one)))


def test_the_verdict_names_the_better_one_with_its_share_and_interval():
    text = verdict(3, 37)
    assert text.startswith("B sounds more natural than A in 37 of 40 dialogues (92.5%, 95% interval 7")
    assert text.endswith(" over 40 dialogues, sign test p < 0.001).")
    assert verdict(3, 37, swapped=True) == text


def test_the_guide_shows_a_verdict_as_it_is_printed():
    guide = " ".join((ROOT / "docs" / "compare.md").read_text(encoding="utf-8").split())
    found = count_wins([0.0] * 37 + [1.0] * 3, [1.0] * 37 + [0.0] * 3, own_groups(range(40)))
    assert f'"{phrase_verdict("a", "b", "joint", found)[:-1]}"' in guide


def test_no_verdict_is_given_where_no_difference_can_be_told():
    assert verdict(22, 18).startswith("No difference can be told between A and B: A sounds more natural in 22 of 40")
    assert verdict(0, 0, 5) == "No difference can be told between A and B: their rewards are equal in all 5 dialogues."
    assert "in 30 of 40 dialogues, 6 tied (win rate 82.5%, " in verdict(30, 4, 6)


def test_strengths_of_two_systems_are_the_log_odds_of_their_wins():
    strengths = fit_strengths(np.array([[0.0, 29.5], [9.5, 0.0]]))
    assert strengths == pytest.approx([np.log(3) / 2, -np.log(3) / 2])


def test_strengths_agree_with_another_algorithm_of_choix():
    wins = np.array([[0, 8, 9], [4, 0, 7], [3, 5, 0]], dtype=float)
    whole = 2 * (wins + PRIOR_WINS * (1 - np.eye(3)))  # Half wins, doubled.
    data = [(i, j) for i in range(3) for j in range(3) for _ in range(int(whole[i, j]))]
    expected = choix.opt_pairwise(3, data, alpha=0.0)
    assert fit_strengths(wins) == pytest.approx(expected - expected.mean(), abs=1e-4)


def test_systems_are_ranked_and_a_system_that_always_wins_has_a_finite_strength():
    rng = np.random.default_rng(0)
    rewards = np.stack([rng.normal(0, 1, 50), rng.normal(0.6, 1, 50), np.full(50, 9.0)], axis=1)
    ranked = rank_systems(rewards, own_groups(rewards), num_bootstrap=100)
    assert [entry["system"] for entry in ranked] == [2, 1, 0]
    assert ranked[0]["win_rate"] == 1.0 and np.isfinite(ranked[0]["strength"])
    assert sum(entry["strength"] for entry in ranked) == pytest.approx(0)
    for entry in ranked[1:]:
        low, high = entry["interval"]
        assert low <= entry["strength"] <= high
    # Of a tenth of the groups, each as often in every draw, nothing is known with more certainty.
    few = rank_systems(rewards, [row % 5 for row in range(50)])
    assert all(
        np.ptp(one["interval"]) > np.ptp(other["interval"]) for one, other in zip(few[1:], ranked[1:], strict=True)
    )
    assert {entry["interval"] for entry in rank_systems(rewards, ["a"] * 50)} == {None}


def test_a_tie_is_half_a_win_in_the_ranking():
    rewards = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])
    assert [entry["strength"] for entry in rank_systems(rewards, [0, 1])] == pytest.approx([0, 0, 0], abs=1e-9)


def test_margins_that_follow_a_difference_are_suspect():
    differences = np.arange(20.0)
    margins = differences + np.random.default_rng(0).normal(0, 3, 20)
    found = correlate(margins, differences, np.zeros(20), COVARIATES["level_db"])
    expected = spearmanr(margins, differences)
    assert (found["correlation"], found["p_value"]) == pytest.approx((expected.statistic, expected.pvalue))
    assert found["mean_difference"] == 9.5 and found["is_suspect"]
    margins = np.random.default_rng(1).normal(size=20)
    assert not correlate(margins, differences, np.zeros(20), COVARIATES["level_db"])["is_suspect"]
    for count in (20, 2):
        found = correlate(np.arange(float(count)), np.ones(count), np.zeros(count), COVARIATES["level_db"])
        assert (found["correlation"], found["p_value"], found["is_suspect"]) == (None, None, False)


@pytest.mark.parametrize(
    ("name", "first", "second", "is_systematic"),
    [
        ("level_db", [-20.0] * 26, [-26.0] * 26, True),
        ("level_db", [-20.0] * 26, [-20.5] * 26, False),  # A trifle.
        ("level_db", [-20.0] * 5, [-26.0] * 5, False),  # Five of five may be chance.
        ("level_db", [-20.0, -26.0] * 13, [-26.0, -20.0] * 13, False),
        ("length_s", [3.0] * 26, [2.5] * 26, True),
        ("length_s", [3.0] * 26, [2.9] * 26, False),
        ("turns", [4.0] * 20 + [2.0] * 6, [2.0] * 26, True),
        ("turns", [4.0] * 3 + [2.0] * 23, [2.0] * 26, False),
        ("texts", [0.0] * 26, [2.0] * 26, True),
    ],
)
def test_a_win_that_goes_with_another_difference_is_not_clear(name, first, second, is_systematic):
    margins = np.random.default_rng(0).normal(3, 1, len(first))
    follows = {name: correlate(margins, first, second, COVARIATES[name])}
    assert follows[name]["is_systematic"] == is_systematic
    found = count_wins(margins, np.zeros(len(first)), own_groups(first))
    text = phrase_verdict("A", "B", "modality", found, follows, ["only 5 dialogues", "B cut"])
    assert text.endswith("; limits: only 5 dialogues, B cut.")
    assert ("it is not clear that it sounds more natural" in text) == is_systematic
    if is_systematic:
        more = "B" if name == "texts" else "A"
        assert text.startswith(f"A is preferred to B in {len(first)} of {len(first)}") and f": {more} has " in text


def test_length_level_and_cuts_are_measured_of_what_the_model_hears(make_tone):
    half = np.resize(np.array([0.5, -0.5], dtype=np.float32), 16_000)
    answer = np.concatenate([half, np.zeros(8_000, dtype=np.float32)])
    messages = [
        {"role": role, "content": [{"type": "audio", "audio": {"array": array, "sampling_rate": 16_000}}]}
        for role, array in (("user", half), ("assistant", answer))
    ]
    found = measure_dialogue(messages, 1.0)
    assert (found.num_turns, found.num_cut, found.audio_s, found.cut_s) == (2, 1, 2.5, 0.5)
    assert (found.answer_s, found.heard_answer_s, found.num_silent) == (1.5, 1.0, 0)
    assert found.level_dbfs == pytest.approx(20 * np.log10(0.5), abs=1e-6)
    late = {"array": np.concatenate([np.zeros(16_000), half]), "sampling_rate": 16_000}
    silent = [messages[0], {"role": "assistant", "content": [{"type": "audio", "audio": late}]}]
    assert measure_dialogue(silent, 1.0).num_silent == 1
    assert found.user_hash == measure_dialogue([messages[0], messages[0] | {"role": "assistant"}], 1.0).user_hash
    assert found.user_hash != measure_dialogue([messages[1] | {"role": "user"}, messages[1]], 1.0).user_hash


def test_matched_levels_hide_no_sampling_rate(make_tone):
    messages = [
        {"role": role, "content": [{"type": "audio", "audio": {"array": make_tone(0.5), "sampling_rate": rate}}]}
        for role, rate in (("user", 16_000), ("assistant", 8_000))
    ]
    found = measure_dialogue(messages, 6.0, match_level=True)
    assert (found.lowest_rate, found.highest_rate) == (8_000, 16_000)
    assert found.level_dbfs == pytest.approx(MATCHED_DBFS, abs=0.01)


def test_examples_are_the_clearest_and_the_closest_and_none_is_both():
    rewards = np.stack([np.zeros(15), np.arange(15.0)], axis=1)
    assert choose_examples(rewards) == ([14, 13, 12, 11, 10, 9, 8, 7], [0, 1, 2, 3, 4, 5, 6])
    assert choose_examples(rewards[:1]) == ([0], [])
    clearest, closest = choose_examples(np.stack([np.zeros(40), np.arange(40.0)], axis=1))
    assert (clearest, closest) == (list(range(39, 29, -1)), list(range(10)))
