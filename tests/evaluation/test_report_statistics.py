import numpy as np
import pytest

from sdiareward.evaluation import statistics
from sdiareward.evaluation.report import margins, reliability


def test_the_calibration_error_of_one_bin_is_the_gap_between_accuracy_and_confidence():
    # sigmoid(log 3) is 0.75: three of four right is perfect, two of four is 0.25 off.
    log3 = np.log(3)
    assert reliability.expected_calibration_error([log3, log3, log3, -log3]) == pytest.approx(0)
    assert reliability.expected_calibration_error([log3, log3, -log3, -log3]) == pytest.approx(0.25)


def test_the_calibration_error_weighs_bins_by_their_pairs():
    log3 = np.log(3)
    # One bin of three pairs, all right, says 0.75; one of one pair, wrong, says 0.5: (3 * 0.25 + 1 * 0.5) / 4.
    bins = [np.array([0, 1, 2]), np.array([3])]
    assert reliability.expected_calibration_error([log3, log3, log3, 0.0], bins) == pytest.approx(1.25 / 4)


def test_counting_each_pair_in_both_orders_gives_the_same_calibration_error():
    found = np.random.default_rng(0).normal(0.5, 2, size=400)
    both = np.concatenate([found, -found])
    probability, label = 1 / (1 + np.exp(-both)), np.repeat([1.0, 0.0], 400)
    gaps = [abs(label[rows].mean() - probability[rows].mean()) for rows in np.array_split(np.argsort(probability), 20)]
    assert reliability.expected_calibration_error(found) == pytest.approx(np.mean(gaps))


def test_without_pairs_there_is_no_calibration_error():
    with pytest.raises(ValueError, match="no margins"):
        reliability.expected_calibration_error([])


@pytest.mark.parametrize(("num_pairs", "expected"), [(1, 1), (39, 1), (40, 2), (199, 9), (200, 10), (5000, 10)])
def test_bins_hold_at_least_twenty_pairs_and_are_at_most_ten(num_pairs, expected):
    bins = reliability.make_equal_mass_bins(np.random.default_rng(0).normal(size=num_pairs))
    assert len(bins) == reliability.num_bins(num_pairs) == expected
    assert max(map(len, bins)) - min(map(len, bins)) <= 1
    assert sorted(np.concatenate(bins)) == list(range(num_pairs))


def test_bins_go_from_small_to_large_and_keep_the_order_of_equal_values():
    values = np.r_[np.ones(20), np.zeros(20)]
    first, second = reliability.make_equal_mass_bins(values)
    assert first.tolist() == list(range(20, 40))
    assert second.tolist() == list(range(20))


def test_the_temperature_of_margins_of_one_size_is_known_in_closed_form():
    # Labels are (n + 1) / (n + 2): all right, sigmoid(1 / T) is that; three of four, (1 + 2 * 5 / 6) / 4 = 2 / 3.
    assert reliability.fit_temperature([1.0]) == pytest.approx(1 / np.log(2))
    assert reliability.fit_temperature([1.0, 1.0]) == pytest.approx(1 / np.log(3))
    assert reliability.fit_temperature([1.0, 1.0, 1.0, -1.0]) == pytest.approx(1 / np.log(2))


@pytest.mark.parametrize("true_temperature", [0.4, 1.0, 3.0])
def test_a_known_temperature_is_found_again_and_removes_the_calibration_error(true_temperature):
    generator = np.random.default_rng(1)
    size = np.abs(generator.normal(0, 2 * true_temperature, size=20_000))
    is_right = generator.random(20_000) < 1 / (1 + np.exp(-size / true_temperature))
    found = np.where(is_right, size, -size)
    temperature = reliability.fit_temperature(found)
    assert temperature == pytest.approx(true_temperature, rel=0.05)
    assert reliability.expected_calibration_error(found / temperature) < 0.01


def test_the_temperature_scales_with_the_margins():
    found = np.random.default_rng(0).normal(1, 1, size=100)
    assert reliability.fit_temperature(1e6 * found) == pytest.approx(1e6 * reliability.fit_temperature(found))


@pytest.mark.parametrize("hopeless", [[], [0.0, 0.0], [-1.0, -2.0], [1.0, -1.0]])
def test_margins_that_are_not_positive_on_average_have_no_temperature(hopeless):
    assert reliability.fit_temperature(hopeless) is None


def test_folds_hold_whole_recordings_and_share_out_every_stratum():
    groups = [f"group {number // 2}" for number in range(40)]
    strata = ["wild" if number < 20 else "scripted" for number in range(40)]
    folds = reliability.deal_folds(groups, strata)
    assert all(folds[number] == folds[number + 1] for number in range(0, 40, 2))
    for stratum in ("wild", "scripted"):
        members = [fold for fold, name in zip(folds, strata, strict=True) if name == stratum]
        assert np.bincount(members).tolist() == [4] * 5
    reverse = reliability.deal_folds(groups[::-1], strata[::-1])
    assert reverse[::-1].tolist() == folds.tolist()


def test_a_folds_temperature_is_fitted_on_the_other_folds():
    found, folds = np.array([1.0, 1.0, 2.0]), np.array([0, 0, 1])
    # Without fold 0 there is one margin of 2, without fold 1 there are two of 1.
    expected = [2 / np.log(2), 2 / np.log(2), 1 / np.log(3)]
    assert reliability.cross_fit_temperatures(found, folds) == pytest.approx(expected)


def test_with_one_fold_or_hopeless_margins_nothing_is_cross_fitted():
    assert reliability.cross_fit_temperatures([1.0, 2.0], [0, 0]) is None
    assert reliability.cross_fit_temperatures([1.0, -2.0], [0, 1]) is None


def test_the_negative_log_likelihood_is_the_ranking_loss():
    assert reliability.negative_log_likelihood([0.0]) == pytest.approx(np.log(2))
    assert reliability.negative_log_likelihood([1000.0, -1000.0]) == pytest.approx(500)


def test_strata_are_the_quarters_by_absolute_margin_and_the_wrong_pairs():
    found = margins.find_strata([0.1, -5.0, 3.0, -0.2, 1.0, 0.0, 2.0, 0.5])
    assert {name: sorted(rows.tolist()) for name, rows in found.items()} == {
        margins.HIGH: [1, 2],
        margins.LOW: [0, 5],
        margins.ALL: list(range(8)),
        margins.WRONG: [1, 3, 5],
    }


def test_a_quarter_of_few_pairs_is_rounded_up_and_of_none_is_none():
    assert [len(rows) for rows in margins.find_strata([1.0, 2.0]).values()] == [1, 1, 2, 0]
    assert [len(rows) for rows in margins.find_strata([]).values()] == [0, 0, 0, 0]


def test_the_lowest_margins_come_first_and_leave_nan_out():
    assert margins.find_lowest([0.5, np.nan, -2.0, 0.1, -np.inf], 3).tolist() == [2, 3, 0]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    # Two-sided binomial: 2 * (1 + 10 + 45) / 2**10, then 2 * (1 + 5) / 2**5; none and equal counts say nothing.
    [(2, 8, 112 / 1024), (4, 1, 12 / 32), (0, 0, 1.0), (3, 3, 1.0), (0, 10, 2 / 1024)],
)
def test_mcnemars_exact_test_is_the_two_sided_binomial_test(first, second, expected):
    signs = np.array([1] * first + [-1] * second + [0])
    assert statistics.sign_flip_test(signs) == pytest.approx(expected)
    assert statistics.sign_flip_test(-signs) == pytest.approx(expected)


@pytest.mark.parametrize(("sums", "expected"), [([7], 1), ([5, 5], 0.5), ([3, -1, 2], 0.5), ([1, 1, 4], 0.25)])
def test_the_signs_of_recordings_are_flipped_together(sums, expected):
    assert statistics.sign_flip_test(np.array(sums)) == pytest.approx(expected)


def compute_difference(first, second, groups, subsets, **options):
    return statistics.compare(first, second, groups, subsets, **options)["interval"]


def test_the_paired_bootstrap_finds_the_spread_of_a_known_difference():
    # 100 recordings of one pair; the first is right in 60 of them where the second is not: the standard error is
    # sqrt(0.6 * 0.4 / 100) = 0.049.
    first = np.arange(100) < 60
    low, high = compute_difference(first, np.zeros(100), list(range(100)), ["wild"] * 100, num_bootstrap=20_000)
    assert low == pytest.approx(0.6 - 1.96 * 0.049, abs=0.015)
    assert high == pytest.approx(0.6 + 1.96 * 0.049, abs=0.015)


def test_pairs_of_one_recording_are_drawn_together():
    first, second = np.arange(100) < 50, np.zeros(100)
    alone = compute_difference(first, second, list(range(100)), ["wild"] * 100)
    together = compute_difference(first, second, [row // 10 for row in range(100)], ["wild"] * 100)
    assert together[1] - together[0] > 2 * (alone[1] - alone[0])


def test_a_draw_keeps_the_number_of_recordings_of_each_subset():
    groups, subsets = ["a", "a", *range(199)], ["wild", "all"] + ["wild"] * 99 + ["scripted"] * 100
    draws = statistics.Clusters(groups, subsets, num_bootstrap=50).draws
    assert draws.shape == (50, 200) and (draws[:, :100].sum(axis=1) == 100).all() and 0 in draws


def test_equal_scorers_and_a_single_recording_have_no_interval():
    is_right = np.arange(10) < 7
    assert compute_difference(is_right, is_right, list(range(10)), ["wild"] * 10) is None
    assert compute_difference(is_right, ~is_right, ["one"] * 10, ["wild"] * 10) is None


def test_the_order_of_the_pairs_does_not_matter_to_the_bootstrap():
    generator = np.random.default_rng(3)
    first, second = generator.random((2, 60)) < 0.7
    groups, subsets = [row // 3 for row in range(60)], [("wild", "scripted")[row // 30] for row in range(60)]
    order = generator.permutation(60)
    shuffled = [[column[row] for row in order] for column in (first, second, groups, subsets)]
    assert compute_difference(*shuffled) == compute_difference(first, second, groups, subsets)


def test_a_comparison_counts_who_is_right_where():
    first, second = [True, True, True, False, False], [True, False, False, True, False]
    found = statistics.compare(first, second, list("abcde"), ["wild"] * 5, num_bootstrap=100)
    counts = [found[name] for name in ("num_pairs", "num_both", "num_only_first", "num_only_second", "num_neither")]
    assert counts == [5, 1, 2, 1, 1]
    assert found["difference"] == pytest.approx(0.2)
    assert found["p_value"] == pytest.approx(1.0)
    assert found["interval"][0] <= 0.2 <= found["interval"][1]
