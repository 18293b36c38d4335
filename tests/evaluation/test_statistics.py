"""Intervals, tests, calibration and rankings: by hand, and against SciPy and choix."""

import math

import choix
import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, spearmanr

from benchmarks.interval_coverage import KINDS, SETTINGS, cover
from sdiareward.evaluation import statistics
from sdiareward.evaluation.statistics import (
    compare,
    cross_fit_temperatures,
    deal_folds,
    describe_share,
    expected_calibration_error,
    fit_temperature,
    make_equal_mass_bins,
    sign_flip_test,
)
from sdiareward.evaluation.verdicts import COVARIATES, PRIOR_WINS, correlate, count_wins, fit_strengths, rank_systems


LOG3 = np.log(3)


@pytest.mark.parametrize(
    ("margins", "expected"),
    # sigmoid(log 3) is 0.75: three of four right is perfect, two of four is 0.25 off.
    # Of bins, the mean over their pairs: a quarter that ties is 0.5 off, the rest 0.25.
    [([LOG3] * 3 + [-LOG3], 0), ([LOG3] * 2 + [-LOG3] * 2, 0.25), ([0.0] * 20 + [LOG3] * 60, 0.3125)],
)
def test_the_calibration_error_is_the_gap_between_accuracy_and_confidence(margins, expected):
    assert expected_calibration_error(margins) == pytest.approx(expected)


@pytest.mark.parametrize(("num_pairs", "expected"), [(1, 1), (39, 1), (40, 2), (199, 9), (200, 10), (5000, 10)])
def test_bins_hold_at_least_twenty_pairs_and_are_at_most_ten(num_pairs, expected):
    bins = make_equal_mass_bins(np.random.default_rng(0).normal(size=num_pairs))
    assert len(bins) == expected and max(map(len, bins)) - min(map(len, bins)) <= 1
    assert sorted(np.concatenate(bins)) == list(range(num_pairs))


@pytest.mark.parametrize(
    ("margins", "expected"),
    # Labels are (n + 1) / (n + 2): all right, sigmoid(1 / T) is that; three of four, (1 + 2 * 5 / 6) / 4 = 2 / 3.
    [([1.0], 1 / np.log(2)), ([1.0, 1.0], 1 / LOG3), ([1.0, 1.0, 1.0, -1.0], 1 / np.log(2))]
    + [(hopeless, None) for hopeless in ([], [0.0, 0.0], [-1.0, -2.0], [1.0, -1.0])],
)
def test_the_temperature_of_margins_of_one_size_is_known_in_closed_form(margins, expected):
    found = fit_temperature(margins)
    assert found == (expected and pytest.approx(expected))
    assert fit_temperature(1e6 * np.array(margins)) == (expected and pytest.approx(1e6 * found))


def test_folds_hold_whole_recordings_and_share_out_every_stratum():
    groups = [f"group {number // 2}" for number in range(40)]
    strata = ["wild" if number < 20 else "scripted" for number in range(40)]
    folds = deal_folds(groups, strata)
    assert all(folds[number] == folds[number + 1] for number in range(0, 40, 2))
    for stratum in ("wild", "scripted"):
        members = [fold for fold, name in zip(folds, strata, strict=True) if name == stratum]
        assert np.bincount(members).tolist() == [4] * 5
    assert deal_folds(groups[::-1], strata[::-1])[::-1].tolist() == folds.tolist()


def test_a_folds_temperature_is_fitted_on_the_other_folds():
    # Without fold 0 there is one margin of 2, without fold 1 there are two of 1.
    expected = [2 / np.log(2), 2 / np.log(2), 1 / LOG3]
    assert cross_fit_temperatures([1.0, 1.0, 2.0], [0, 0, 1]) == pytest.approx(expected)
    assert cross_fit_temperatures([1.0, 2.0], [0, 0]) is cross_fit_temperatures([1.0, -2.0], [0, 1]) is None


@pytest.mark.parametrize(
    ("sums", "expected"),
    # Two-sided binomial: 2 * (1 + 10 + 45) / 2**10, then 2 * (1 + 5) / 2**5; whole recordings have one sign.
    [([1] * 2 + [-1] * 8 + [0], 112 / 1024), ([1] * 4 + [-1], 12 / 32), ([], 1.0), ([-1] * 10, 2 / 1024)]
    + [([7], 1), ([5, 5], 0.5), ([3, -1, 2], 0.5), ([1, 1, 4], 0.25)],
)
def test_the_sign_test_is_mcnemars_over_recordings(sums, expected):
    signs = np.array(sums, dtype=int)
    assert sign_flip_test(signs) == sign_flip_test(-signs) == pytest.approx(expected)


def test_a_comparison_counts_who_is_right_where():
    found = compare([1, 1, 1, 0, 0], [1, 0, 0, 1, 0], list("abcde"), ["wild"] * 5, num_bootstrap=100)
    counts = [found[name] for name in ("num_pairs", "num_both", "num_only_first", "num_only_second", "num_neither")]
    assert counts == [5, 1, 2, 1, 1]
    assert found["difference"] == pytest.approx(0.2) and found["p_value"] == pytest.approx(1.0)
    assert found["interval"][0] <= 0.2 <= found["interval"][1]
    is_right = np.arange(10) < 7
    assert compare(is_right, is_right, list(range(10)), ["wild"] * 10)["interval"] is None
    assert compare(is_right, ~is_right, ["one"] * 10, ["wild"] * 10)["interval"] is None


def test_draws_keep_the_recordings_of_each_subset_and_do_not_depend_on_the_order_of_pairs():
    groups, subsets = ["a", "a", *range(199)], ["wild", "all"] + ["wild"] * 99 + ["scripted"] * 100
    draws = statistics.Clusters(groups, subsets, num_bootstrap=50).draws
    assert draws.shape == (50, 200) and (draws[:, :100].sum(axis=1) == 100).all() and 0 in draws
    generator = np.random.default_rng(3)
    first, second = generator.random((2, 201)) < 0.7
    order = generator.permutation(201)
    shuffled = [[column[row] for row in order] for column in (first, second, groups, subsets)]
    assert compare(*shuffled)["interval"] == compare(first, second, groups, subsets)["interval"]


def test_a_share_has_the_interval_of_its_recordings_and_wilsons_where_that_has_no_spread():
    groups = [f"group-{number // 2}" for number in range(20)]
    found = describe_share([True] * 5 + [False] * 15, groups, ["wild"] * 20, num_bootstrap=200, seed=0)
    assert (found["num_values"], found["share"]) == (20, 0.25)
    assert 0 <= found["interval"][0] < 0.25 < found["interval"][1] < 0.7
    # Wilson's lower bound with ten recordings: 10 / (10 + 1.96 ** 2).
    certain = describe_share([True] * 20, groups, ["wild"] * 20, num_bootstrap=50)
    assert certain["interval"] == pytest.approx([0.7225, 1.0], abs=1e-4)
    assert describe_share([], [], []) == {"num_values": 0, "share": None, "interval": None, "num_groups": 0}


@pytest.mark.parametrize("name", ["accuracy", "macro average", "difference", "human agreement"])
def test_intervals_cover_93_percent(name):
    found = [cover(KINDS[name], 2, setting, 20) for setting in SETTINGS]
    # With three standard errors.
    assert np.mean(found) >= 0.93 - 3 * math.sqrt(0.93 * 0.07 / (20 * len(SETTINGS)))


def test_wins_ties_and_margins_are_those_a_hand_counts():
    found = count_wins([1.0, -1.0, 0.0, 4.0], ["a", "b", "c", "c"])
    expected = {"num_dialogues": 4, "num_groups": 3, "num_first": 2, "num_second": 1, "num_ties": 1}
    expected |= {"win_rate": 2.5 / 4, "mean_margin": 1.0, "p_value": 1.0, "is_clear": False}
    assert {name: found[name] for name in expected} == expected
    found = count_wins(np.ones(12), range(12))
    assert found["interval"] == pytest.approx([binomtest(12, 12).proportion_ci(method="wilson").low, 1.0])
    assert found["is_clear"] and not count_wins(np.ones(5), range(5))["is_clear"]


def test_wins_are_counted_over_whole_groups_and_one_group_says_nothing():
    # Ten dialogues a group, which always go together: the interval is that of four values, not of forty.
    margins = np.repeat([1.0, 1.0, 1.0, -1.0], 10)
    found, alone = count_wins(margins, np.repeat(list("abcd"), 10).tolist()), count_wins(margins, range(40))
    assert found["win_rate"] == alone["win_rate"] == 0.75
    assert np.ptp(found["interval"]) > 2 * np.ptp(alone["interval"])
    # The signs of groups are random together: four of them in five ways out of eight.
    assert alone["is_clear"] and not found["is_clear"] and found["p_value"] == pytest.approx(10 / 16)
    found = count_wins(margins, ["a"] * 40)
    assert (found["interval"], found["mean_margin_interval"], found["p_value"]) == (None, None, 1.0)


def test_systems_of_equal_quality_are_told_apart_about_as_often_as_the_rule_allows():
    draws = np.random.default_rng(0).normal(size=(200, 2, 40))
    told = [count_wins(one - two, range(40), num_bootstrap=200)["is_clear"] for one, two in draws]
    assert np.mean(told) <= 0.06


def test_strengths_agree_with_the_log_odds_of_two_and_with_another_algorithm_of_choix():
    assert fit_strengths(np.array([[0.0, 29.5], [9.5, 0.0]])) == pytest.approx([LOG3 / 2, -LOG3 / 2])
    wins = np.array([[0, 8, 9], [4, 0, 7], [3, 5, 0]], dtype=float)
    whole = 2 * (wins + PRIOR_WINS * (1 - np.eye(3)))  # Half wins, doubled.
    data = [(i, j) for i in range(3) for j in range(3) for _ in range(int(whole[i, j]))]
    expected = choix.opt_pairwise(3, data, alpha=0.0)
    assert fit_strengths(wins) == pytest.approx(expected - expected.mean(), abs=1e-4)


def rank(rewards, groups):
    ranked = rank_systems(pd.DataFrame(rewards, columns=list("abc")), groups, num_bootstrap=100)
    return {found.pop("system"): found for found in ranked}


def test_systems_are_ranked_and_a_system_that_always_wins_has_a_finite_strength():
    rng = np.random.default_rng(0)
    rewards = np.stack([rng.normal(0, 1, 50), rng.normal(0.6, 1, 50), np.full(50, 9.0)], axis=1)
    ranked, few = rank(rewards, range(50)), rank(rewards, [row % 5 for row in range(50)])
    assert list(ranked) == list("cba")
    assert ranked["c"]["win_rate"] == 1.0 and np.isfinite(ranked["c"]["strength"])
    assert sum(found["strength"] for found in ranked.values()) == pytest.approx(0)
    for system in "ab":
        low, high = ranked[system]["interval"]
        assert low <= ranked[system]["strength"] <= high
        # Of a tenth of the groups, each as often in every draw, nothing is known with more certainty.
        assert np.ptp(few[system]["interval"]) > high - low
    assert {found["interval"] for found in rank(rewards, ["a"] * 50).values()} == {None}
    ties = rank([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], [0, 1])
    assert [found["strength"] for found in ties.values()] == pytest.approx([0, 0, 0], abs=1e-9)


def test_margins_that_follow_a_difference_are_suspect():
    differences, rng, level = np.arange(20.0), np.random.default_rng(0), COVARIATES["level_db"]
    margins = differences + rng.normal(0, 3, 20)
    found, expected = correlate(margins, differences, np.zeros(20), level), spearmanr(margins, differences)
    assert (found["correlation"], found["p_value"]) == pytest.approx((expected.statistic, expected.pvalue))
    assert found["mean_difference"] == 9.5 and found["is_suspect"]
    assert not correlate(rng.normal(size=20), differences, np.zeros(20), level)["is_suspect"]
    assert correlate(np.arange(20.0), np.ones(20), np.zeros(20), level)["correlation"] is None


@pytest.mark.parametrize(
    ("name", "first", "second", "expected"),
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
def test_a_difference_in_most_dialogues_that_is_large_is_systematic(name, first, second, expected):
    margins = np.random.default_rng(0).normal(3, 1, len(first))
    assert correlate(margins, first, second, COVARIATES[name])["is_systematic"] == expected
