import numpy as np
import pytest
from support.human_world import make_score, write_evaluation

from benchmarks import calibration as benchmark
from benchmarks.guides.rendering import render_blocks
from sdiareward.evaluation.results_files import read_evaluation


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """Two subsets that a threshold separates perfectly, each at another place of the scale."""
    rng = np.random.default_rng(0)
    scores = []
    for number in range(80):
        is_wild = number % 2 == 0
        chosen, rejected = rng.uniform([0.5, -1.5], [1.5, -0.5]) + (10.0 if is_wild else 0.0)
        subset = "wild" if is_wild else "scripted"
        scores.append(make_score(number, chosen - rejected, subset, f"{subset}-{number // 4}", chosen=chosen))
    return read_evaluation(write_evaluation(tmp_path_factory.mktemp("world") / "eval", scores))


@pytest.fixture(scope="module")
def result(evaluation):
    return benchmark.measure(evaluation, 3)


def test_balanced_accuracy_averages_both_sides():
    chosen, rejected = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 2.0])
    # Above 2: two of four chosen; not above 2: both rejected.
    assert benchmark.balanced_accuracies(chosen, rejected, [2.0, -1.0, 9.0]).tolist() == [0.75, 0.5, 0.5]


def test_the_best_threshold_lies_midway_between_the_sides():
    assert benchmark.best_threshold([(np.array([3.0, 5.0]), np.array([0.0, 1.0]))]) == 2.0


def test_a_common_threshold_weights_subsets_equally():
    small = (np.array([1.0]), np.array([0.0]))
    large = (np.array([3.0] * 50), np.array([2.0] * 50))
    threshold = benchmark.best_threshold([small, large])
    accuracies = [benchmark.balanced_accuracy(*sides, threshold) for sides in (small, large)]
    assert sorted(accuracies) == [0.5, 1.0]


def test_halves_share_no_recording_and_hold_every_subset(evaluation):
    first, second = benchmark.split_groups(evaluation.scores, 5)
    groups = [{record["group_id"] for record in half} for half in (first, second)]
    assert not groups[0] & groups[1]
    assert len(first) + len(second) == len(evaluation.scores)
    assert [{record["subset"] for record in half} for half in (first, second)] == [{"wild", "scripted"}] * 2
    assert benchmark.split_groups(evaluation.scores, 6)[0] != first


def test_calibration_removes_the_loss_from_offsets_between_subsets(result):
    assert result["own"] == result["best"] == {"scripted": 1.0, "wild": 1.0}
    before, after = (result["methods"][name] for name in ("reward", "by_subset"))
    assert before["transfer"] == {"scripted": {"scripted": 0.0, "wild": 0.5}, "wild": {"scripted": 0.5, "wild": 0.0}}
    assert before["mean_loss"] == before["worst_loss"] == 0.5
    assert after["mean_loss"] == 0.0
    assert (before["fixed"], after["fixed"]) == ({"scripted": 1.0, "wild": 0.5}, {"scripted": 1.0, "wild": 1.0})


def test_the_loss_of_a_threshold_is_relative_to_the_best_for_the_tested_pairs():
    def scores(subset, shift):
        sides = [(1.0, 0.0), (3.0, 2.0)]
        return [make_score(n, 1.0, subset, chosen=chosen + shift) for n, (chosen, _) in enumerate(sides)]

    fitted, tested = scores("wild", 0.0) + scores("scripted", 0.0), scores("wild", 0.0) + scores("scripted", 9.0)
    found = benchmark.measure_split(fitted, tested)
    # Sides 0, 1, 2, 3 alternate: three of four are right at best, two of four where all lie above.
    assert found["best"] == {"scripted": 0.75, "wild": 0.75}
    assert found["own"] == {"scripted": 0.5, "wild": 0.75}
    assert found["methods"]["reward"]["transfer"]["wild"] == {"scripted": 0.25, "wild": 0.0}


def test_one_table_of_quantiles_changes_no_decision(result):
    assert result["methods"]["one_table"]["transfer"] == result["methods"]["reward"]["transfer"]


def test_the_median_reward_of_each_side_is_reported(result):
    assert result["median_reward"]["wild"]["chosen"] == pytest.approx(11.0, abs=0.2)
    assert result["median_reward"]["scripted"]["rejected"] == pytest.approx(-1.0, abs=0.2)
    assert result["num_groups"] == {"scripted": 20, "wild": 20}


def test_one_subset_or_one_recording_is_refused(tmp_path):
    folder = write_evaluation(tmp_path / "eval", [make_score(0, 1.0), make_score(1, 1.0)])
    with pytest.raises(ValueError, match="at least two subsets with two recordings each"):
        benchmark.measure(read_evaluation(folder), 1)


def test_another_result_changes_the_guide_to_calibration(result):
    blocks = render_blocks("results_calibration", {"calibration.json": {"settings": {"seeds": 3}, **result}})
    assert "| wild | scripted | 50.0 | 0.0 | 50.0 |" in blocks["transfer"]
    assert "| its own, by subset | 100.0 | 100.0 | 100.0 |" in blocks["common"]
