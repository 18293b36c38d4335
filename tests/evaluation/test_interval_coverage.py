"""95% intervals hold the true value often enough, however few the recordings are."""

import math

import numpy as np
import pytest

from benchmarks.interval_coverage import KINDS, SETTINGS, cover, draw
from sdiareward.esdr_accuracy.pairwise import cluster_variance, pairwise_accuracy, wilson_interval


def compute_interval(sample):
    """Return the interval of an accuracy from the arithmetic alone, which is fast."""
    sizes, right = np.bincount(sample.groups), np.bincount(sample.groups, sample.is_right)
    share = float(sample.is_right.mean())
    squares = share * (1 - share) * len(sample.groups)
    return wilson_interval(share, len(sizes), variance=cluster_variance(right - share * sizes, sizes, squares))


def test_the_arithmetic_is_that_of_the_metric():
    sample = draw(np.random.default_rng(0), 7, 0.7, 0.1, False)
    rewards = sample.is_right.astype(float)
    found = pairwise_accuracy(rewards, rewards - rewards + 0.5, ["wild"] * len(rewards), sample.groups)
    assert found["interval"]["overall_micro"] == pytest.approx(compute_interval(sample))


@pytest.mark.parametrize("num_groups", [2, 3, 5, 10, 20])
def test_intervals_of_an_accuracy_cover_93_percent(num_groups):
    kind = KINDS["accuracy"]._replace(measure=compute_interval)
    found = [cover(kind, num_groups, setting, 250) for setting in SETTINGS]
    # Of 3,000 repetitions the mean has a standard error of 0.4 points, of 250 a setting has one of 1.6.
    assert np.mean(found) >= 0.93
    assert min(found) >= 0.93 - 3 * math.sqrt(0.93 * 0.07 / 250)


@pytest.mark.parametrize("num_groups", [2, 5])
@pytest.mark.parametrize("name", ["macro average", "difference", "human agreement"])
def test_intervals_of_other_kinds_cover_93_percent(name, num_groups):
    found = [cover(KINDS[name], num_groups, setting, 20) for setting in SETTINGS]
    # Of 240 repetitions, with three standard errors.
    assert np.mean(found) >= 0.93 - 3 * math.sqrt(0.93 * 0.07 / 240)
