import doctest
import itertools
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import t
from support.paths import ROOT

from sdiareward.esdr_accuracy import pairwise
from sdiareward.esdr_accuracy.pairwise import (
    COLUMNS,
    MIN_BOOTSTRAP_GROUPS,
    NO_SUBSET,
    SUBSETS,
    pairwise_accuracy,
    student_quantile,
    wilson_interval,
)


# Columns: wild, semi-wild, scripted, modality micro, modality macro, colloquialness, overall micro, overall macro.
REWARD_MODEL_ROWS = {
    "3B last, no center loss": "66.99 58.06 39.70 57.25 54.92 51.20 56.37 53.06",
    "3B last": "71.60 55.91 53.00 63.75 60.17 48.80 61.59 54.49",
    "3B attention, no center loss": "98.91 55.91 81.33 87.94 78.72 93.60 88.76 86.16",
    "3B attention": "96.72 77.42 97.64 94.58 90.59 65.60 90.38 78.10",
    "3B mean, no center loss": "100.00 78.49 80.90 91.26 86.47 97.60 92.18 92.03",
    "3B mean": "99.39 55.38 82.83 88.62 79.20 92.00 89.11 85.60",
    "7B last, no center loss": "41.02 37.63 46.14 42.21 41.60 45.20 42.64 43.40",
    "7B last": "52.18 56.45 49.36 51.83 52.66 40.00 50.12 46.33",
    "7B attention, no center loss": "94.78 48.39 37.55 70.87 60.24 37.20 65.99 48.72",
    "7B attention": "74.27 59.68 68.45 70.60 67.47 55.20 68.37 61.33",
    "7B mean, no center loss": "99.88 90.86 88.20 95.05 92.98 97.20 95.37 95.09",
    "7B mean": "100.00 92.47 92.27 96.61 94.92 97.20 96.70 96.06",
}
REWARD_MODEL_PAIRS = (824, 186, 466, 250)


def rewards_with(counts, num_pairs):
    """Return chosen rewards, rejected rewards and subsets with so many right pairs in each subset."""
    chosen, subset = [], []
    for name, right, total in zip(SUBSETS, counts, num_pairs, strict=True):
        chosen += [1.0] * right + [-1.0] * (total - right)
        subset += [name] * total
    return np.array(chosen), np.zeros(len(chosen)), subset


@pytest.mark.parametrize("row", REWARD_MODEL_ROWS.values(), ids=REWARD_MODEL_ROWS)
def test_every_reward_model_row_of_table_6_comes_out_to_the_printed_digit(row):
    counts = []
    for column, total in zip((0, 1, 2, 5), REWARD_MODEL_PAIRS, strict=True):
        (count,) = (right for right in range(total + 1) if f"{100 * right / total:.2f}" == row.split()[column])
        counts.append(count)
    result = pairwise_accuracy(*rewards_with(counts, REWARD_MODEL_PAIRS), num_bootstrap=1)
    assert [f"{100 * result[name]:.2f}" for name in COLUMNS] == row.split()


CASES = {
    "a tie is wrong": ([1, 1], [0, 1], "wild wild", {"wild": 0.5}),
    "zero and minus zero tie": ([0.0], [-0.0], "wild", {"wild": 0.0}),
    "one subset is its own average": (
        [1, 0], [0, 1], "scripted scripted",
        {"scripted": 0.5, "modality_macro": 0.5, "overall_macro": 0.5, "wild": None, "colloquialness": None},
    ),
    "only colloquialness": (
        [1], [0], "colloquialness",
        {"modality_micro": None, "modality_macro": None, "overall_micro": 1.0, "overall_macro": 1.0},
    ),
    "micro differs from macro": (
        [1, 1, 1, 0], [0, 0, 0, 1], "wild wild wild scripted", {"modality_micro": 0.75, "modality_macro": 0.5},
    ),
    "overall macro is the mean of two averages, not of four subsets": (
        [1, 1, 1, 0], [0, 0, 0, 1], "wild semi_wild scripted colloquialness",
        {"overall_macro": 0.5, "overall_micro": 0.75},
    ),
    "any numbers": ([2, True, Decimal("1.5"), np.float16(0.5)], [0.75] * 4, "wild wild wild wild", {"wild": 0.75}),
    "tensor": (torch.tensor([2, 0]), [0.75] * 2, "wild wild", {"wild": 0.5}),
    "series": (pd.Series([2.0, 0.5]), [0.75] * 2, "wild wild", {"wild": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize(("chosen", "rejected", "subset", "expected"), CASES.values(), ids=CASES)
def test_accuracies_follow_the_definitions(chosen, rejected, subset, expected):
    result = pairwise_accuracy(chosen, rejected, subset.split())
    assert {name: result[name] for name in expected} == expected


def test_counts_ties_and_missing_subsets_are_reported_beside_each_accuracy():
    result = pairwise_accuracy([1, 1, 0], [0, 1, 1], ["wild", "wild", "colloquialness"])
    assert (result["num_pairs"]["wild"], result["num_correct"]["overall_micro"]) == (2, 1)
    without = ("semi_wild", "scripted", "colloquialness")
    assert result["num_ties"] == {name: int(name not in without) for name in COLUMNS}
    assert result["missing_subsets"] == ["semi_wild", "scripted"]
    assert result["interval"]["scripted"] is None


@pytest.mark.parametrize("bad", [[1, math.nan], [1, None], [1, math.inf], np.ma.array([1, 5], mask=[False, True])])
def test_a_reward_that_is_missing_or_not_finite_is_an_error_unless_the_caller_counts_it_as_wrong(bad):
    with pytest.raises(ValueError, match="first: pair 1 .*nan='wrong'"):
        pairwise_accuracy(bad, [0, 0], ["wild", "wild"])
    result = pairwise_accuracy(bad, [0, 0], ["wild", "wild"], nan="wrong")
    assert (result["wild"], result["num_invalid"]["wild"], result["num_ties"]["wild"]) == (0.5, 1, 0)


# What is changed in two right pairs, and what the error names.
ERRORS = [
    ({"chosen": [], "rejected": [], "subset": []}, ValueError, "0 chosen"),
    ({"rejected": [0, 1, 2]}, ValueError, "3 rejected"),
    ({"chosen": [[1, 1]]}, ValueError, "chosen has shape"),
    ({"chosen": 1.0}, TypeError, "chosen is 1.0"),
    ({"subset": "wild"}, TypeError, "subset is 'wild'"),
    ({"subset": ["wild", None]}, ValueError, "subset of pair 1 is None"),
    ({"subset": ["wlid", "wild"]}, ValueError, "wlid.*semi_wild"),
    ({"chosen": [2.0, pd.NaT], "nan": "wrong"}, TypeError, "chosen of pair 1 is NaT"),
    ({"chosen": ["2", "3"]}, TypeError, "chosen of pair 0 is '2'"),
    ({"group_id": ["a", math.nan]}, ValueError, "group_id of pair 1"),
    ({"group_id": np.ma.array([1, 2], mask=[False, True])}, ValueError, "group_id of pair 1"),
    ({"group_id": ["a", None]}, ValueError, "group_id of pair 1"),
    ({"group_id": [["a"], ["b"]]}, TypeError, "list"),
    ({"group_id": "ab"}, ValueError, "1 group_id"),
    ({"missing": "error"}, ValueError, "semi_wild"),
    ({"nan": "skip"}, ValueError, "nan is 'skip'"),
    ({"num_bootstrap": 2.5}, ValueError, "num_bootstrap is 2.5"),
    ({"confidence": 95}, ValueError, "confidence is 95"),
    ({"confidence": 1 - 1e-16}, ValueError, "confidence is 0.9"),
]


@pytest.mark.parametrize(("change", "error", "named"), ERRORS)
def test_wrong_inputs_are_refused_by_name(change, error, named):
    with pytest.raises(error, match=named):
        pairwise_accuracy(**{"chosen": [1, 1], "rejected": [0, 0], "subset": ["wild", "wild"], **change})


@pytest.fixture
def noisy_pairs():
    generator = np.random.default_rng(0)
    subset = [SUBSETS[index] for index in generator.integers(0, 4, 400)]
    # Twenty pairs a recording, and a recording's pairs tend to go the same way.
    groups = [f"recording-{index // 20}" for index in range(400)]
    chosen = np.repeat(generator.normal(0.5, 1, 20), 20) + generator.normal(0, 0.3, 400)
    return chosen, np.zeros(400), subset, groups


FEW = {
    "one recording": ([(52, 100)], None),
    "two recordings": ([(27, 50), (25, 50)], (0.12, 0.90)),
    "two equal recordings": ([(26, 50), (26, 50)], (0.12, 0.90)),
    "two recordings all right": ([(50, 50), (50, 50)], (0.34, 1.0)),
    "all right but one pair": ([(20, 20), (20, 20), (19, 20)], (0.74, 1.0)),
}


@pytest.mark.parametrize(("counts", "expected"), FEW.values(), ids=FEW)
def test_few_recordings_have_wide_intervals_and_one_has_none(counts, expected):
    right = [float(pair < num_right) for num_right, total in counts for pair in range(total)]
    groups = [group for group, (_, total) in enumerate(counts) for _ in range(total)]
    result = pairwise_accuracy(right, [0.5] * len(right), ["wild"] * len(right), torch.tensor(groups))
    for name in ("wild", "modality_macro", "overall_macro"):
        assert result["interval"][name] == (expected and pytest.approx(expected, abs=0.006)), name
        assert result["interval_method"][name] == (expected and "wilson")


@pytest.mark.parametrize("degrees", [1, 2, 3, 8, 49, 1000, 10**6])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_quantiles_of_student_are_those_of_scipy(degrees, confidence):
    assert student_quantile(degrees, confidence) == pytest.approx(t.ppf((1 + confidence) / 2, degrees), rel=1e-4)


def test_a_perfect_score_is_not_certainty():
    result = pairwise_accuracy(*rewards_with([824, 172, 430, 243], REWARD_MODEL_PAIRS))
    assert result["interval"]["wild"] == pytest.approx([0.99536, 1.0], abs=1e-5)
    assert result["interval_method"]["wild"] == "wilson"
    assert result["interval_method"]["semi_wild"] == "bootstrap"


def test_the_bounds_of_a_macro_average_combine_those_of_its_members():
    chosen, rejected, subset = rewards_with([10, 20, 0, 0], [10, 20, 0, 0])
    below = [1 - wilson_interval(1.0, count)[0] for count in (10, 20)]
    result = pairwise_accuracy(chosen, rejected, subset)
    assert result["interval"]["modality_macro"] == pytest.approx([1 - math.hypot(*below) / 2, 1.0])
    # A recording with pairs of both: they may be wrong together.
    shared = pairwise_accuracy(chosen, rejected, subset, [*range(10), *range(20)])
    assert shared["interval"]["modality_macro"] == pytest.approx([1 - sum(below) / 2, 1.0])


def test_pairs_of_no_subset_do_not_leave_a_recording_alone_in_its_stratum():
    count = MIN_BOOTSTRAP_GROUPS
    subset, groups = ["scripted"] * count + [NO_SUBSET], [*range(count), 0]
    for last, method in ((NO_SUBSET, "bootstrap"), ("wild", "wilson")):
        subset[-1] = last
        result = pairwise_accuracy([1, 0] * (count // 2) + [1], [0.5] * (count + 1), subset, groups)
        assert result["interval_method"]["scripted"] == method


def test_intervals_depend_on_the_seed_alone_and_not_on_the_order_of_the_pairs(noisy_pairs):
    order = np.random.default_rng(1).permutation(400)
    shuffled = [[column[index] for index in order] for column in noisy_pairs]
    assert pairwise_accuracy(*shuffled, seed=3) == pairwise_accuracy(*noisy_pairs, seed=4)
    # Of single pairs there are enough for a bootstrap.
    first = pairwise_accuracy(*noisy_pairs[:3], seed=3)
    assert pairwise_accuracy(*shuffled[:3], seed=3) == first
    assert pairwise_accuracy(*noisy_pairs[:3], seed=4)["interval"] != first["interval"]


def test_every_combination_of_subsets_gives_averages_over_what_is_present():
    for present in itertools.product([0, 5], repeat=4):
        if any(present):
            result = pairwise_accuracy(*rewards_with([count // 2 for count in present], present), num_bootstrap=50)
            assert (result["overall_micro"], result["overall_macro"]) == pytest.approx((0.4, 0.4))
            assert all((result[name] is None) == (result["interval"][name] is None) for name in COLUMNS)


def test_the_docstring_examples_hold():
    assert doctest.testmod(pairwise).failed == 0


def test_evaluate_loads_the_folder_with_its_relative_import(tmp_path, monkeypatch):
    evaluate = pytest.importorskip("evaluate")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    metric = evaluate.load("esdr_accuracy", cache_dir=str(tmp_path))
    columns = {"chosen": [1.0, 1 + 1e-12], "rejected": [0.0, 1.0], "subset": ["wild", "scripted"]}
    assert metric.compute(**columns, group_id=None) == pairwise_accuracy(**columns)
    assert metric.compute(**columns, group_id=["a", "a"], seed=5)["num_groups"]["overall_micro"] == 1
    assert metric.compute([2.0, 1.0], [1.0, 1.5]) == pairwise_accuracy([2.0, 1.0], [1.0, 1.5], ["all", "all"])
    with_none = {"chosen": [1.0, None], "rejected": [0.0, 0.0], "subset": ["wild", "wild"]}
    assert metric.compute(**with_none, nan="wrong")["num_invalid"]["wild"] == 1
    for pair in zip(*columns.values(), strict=True):
        metric.add(**dict(zip(columns, pair, strict=True)))
    assert metric.compute()["modality_macro"] == 1.0
    for change, named in (({"rejected": None}, "rejected is missing"), ({"subset": ["wild", "wlid"]}, "'wlid'")):
        with pytest.raises(ValueError, match=named):
            metric.compute(**{**columns, **change})
