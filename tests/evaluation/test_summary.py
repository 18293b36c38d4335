import numpy as np
import pytest

from sdiareward.common.package_files import NANO
from sdiareward.esdr_accuracy.pairwise import COLUMNS, NO_SUBSET
from sdiareward.evaluation import summary as reporting
from sdiareward.evaluation.columns import SUBSET_LABELS, TITLES
from sdiareward.evaluation.report import figures
from sdiareward.evaluation.results_files import name_scorer


def label(number, subset, synthesizer="known", group=None):
    return {
        "pair_id": f"pair-{number}",
        "criterion": "colloquialness" if subset == "colloquialness" else "modality",
        "subset": subset,
        "source": "made_up",
        "synthesizer": synthesizer,
        "group_id": group,
    }


def scores(margins):
    return {f"pair-{number}": {"chosen": margin, "rejected": 0.0} for number, margin in enumerate(margins)}


@pytest.fixture
def results():
    labels = [label(0, "wild"), label(1, "wild", "new"), label(2, "scripted"), label(3, "colloquialness", "new")]
    by_scorer = {"model": scores([1, 1, -1, 1]), "text": scores([0, 0, 0, 1])}
    skipped = [{**label(9, "scripted"), "reason": "chosen, turn 0: cannot be decoded"}]
    summary = reporting.summarise(labels, by_scorer, {"known"}, skipped, num_bootstrap=50)
    timing = reporting.sum_timing([{"num_pairs": 4, "audio_s": 20.0, "scoring_s": 2.0}])
    return {**summary, "timing": timing, "config": {"model": "m", "dataset": "d", "split": "test"}}


def cells(report, head):
    (line,) = [line for line in report.splitlines() if line.startswith(f"| {head} ")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_table_has_the_columns_of_table_2_with_pairs_and_ties(results):
    report = reporting.render_report(results)
    assert cells(report, "pairs") == ["2", "0", "1", "3", "3", "1", "4", "4"]
    assert cells(report, "**model**") == ["100.00", "-", "0.00", "66.67", "50.00", "100.00", "75.00", "75.00"]
    assert cells(report, "skipped") == ["0", "0", "1", "1", "1", "0", "1", "1"]
    assert [line for line in report.splitlines() if "semi-wild" in line][0].count("|") == len(COLUMNS) + 2


def test_a_pair_without_a_recording_is_its_own_beside_others():
    labels = [label(0, "wild", group="call"), label(1, "wild", group="call"), label(2, "wild")]
    accuracy = reporting.compute_accuracy(labels, scores([1, 1, -1]), {"num_bootstrap": 50})
    assert (accuracy["wild"], accuracy["num_groups"]["wild"]) == (pytest.approx(2 / 3), 2)


@pytest.mark.parametrize("usable", [(), (0,), (0, 1, 2)])
def test_an_accuracy_of_no_usable_reward_is_absent_and_not_zero(usable):
    labels = [label(0, "wild"), label(1, "scripted"), label(2, "colloquialness", "new")]
    found = {f"pair-{n}": {"chosen": 1.0 if n in usable else None, "rejected": 0.0} for n in range(3)}
    results = reporting.summarise(labels, {"model": found}, {"known"}, [], num_bootstrap=50, nan="wrong")
    results |= {"timing": reporting.sum_timing([]), "config": {"judge": "j", "dataset": "d", "split": "test"}}
    accuracies = results["accuracies"]["model"]
    by_column = {"wild": 0, "scripted": 1, "colloquialness": 2}
    expected = {name: 1.0 if number in usable else None for name, number in by_column.items()}
    assert {name: accuracies[name] for name in by_column} == expected
    assert accuracies["overall_micro"] == (len(usable) / 3 or None)
    shown = [row["model"]["accuracy"] for row in results["by_synthesizer"] if row["criterion"] == "colloquialness"]
    assert set(shown) == {expected["colloquialness"]}
    assert cells(reporting.render_report(results), "**model**") == [
        f"{100 * value:.2f}" if (value := accuracies[name]) is not None else "-" for name in COLUMNS
    ]
    # An average over a column without an accuracy would count it as 0, or hide it.
    assert (accuracies["overall_macro"] is None) == (len(usable) < 3)
    assert (accuracies["modality_macro"] is None) == (len(usable) < 3)


def test_the_notes_name_missing_subsets_split_ties_and_skipped_pairs(results):
    report = reporting.render_report(results)
    assert "No pairs of semi_wild" in report
    assert "text: 3 of 3 modality pairs tie; 50.00 if ties are split" in report
    assert "1 pairs were skipped" in report
    assert "real-time factor 0.1000" in report


def test_pairs_of_no_subset_count_in_the_micro_average_alone_and_their_ties_are_told():
    labels = [label(0, "wild"), label(1, "colloquialness"), label(2, NO_SUBSET), label(3, NO_SUBSET)]
    results = reporting.summarise(labels, {"model": scores([1, 1, 0, -1])}, None, [], num_bootstrap=50)
    found = results["accuracies"]["model"]
    assert (found["num_pairs"]["overall_micro"], found["num_pairs"]["overall_macro"]) == (4, 2)
    assert (found["num_correct"]["overall_macro"], found["num_ties"]["overall_macro"]) == (2, 0)
    assert "model: 1 of 2 pairs of no subset tie." in reporting.list_notes(results)


def test_the_synthesizers_that_training_left_out_are_marked(results):
    report = reporting.render_report(results)
    assert results["left_out_synthesizers"] == ["new"]
    rows = [(row["criterion"], row["synthesizer"], row["num_pairs"]) for row in results["by_synthesizer"]]
    assert rows == [
        ("modality", "known", 2),
        ("modality", "new", 1),
        ("modality", "all seen in training", 2),
        ("modality", "all left out of training", 1),
        ("colloquialness", "new", 1),
        ("colloquialness", "all left out of training", 1),
    ]
    assert report.count("new (held out)") == 2
    assert "known (held out)" not in report


def test_a_pair_across_voices_is_held_out_if_one_of_them_is():
    heard = {"known+other", "known"}
    assert reporting.find_left_out({"other+known", "new+known", "new", "other"}, heard) == {"new+known", "new"}


def test_without_a_training_split_nothing_is_said_to_be_left_out():
    summary = reporting.summarise([label(0, "wild", None)], {"model": scores([1])}, None, [], num_bootstrap=5)
    assert (summary["left_out_synthesizers"], summary["by_synthesizer"]) == (None, [])


@pytest.mark.parametrize(("num_groups", "shown"), [(1, "50.00 (no interval)"), (2, "50.00 (5.2-94.8)")])
def test_intervals_by_synthesizer_are_over_groups_and_their_number_stands_beside(num_groups, shown):
    labels = [label(number, "wild", group=f"recording {number % num_groups}") for number in range(40)]
    summary = reporting.summarise(labels, {"model": scores([1] * 20 + [-1] * 20)}, None, [], num_bootstrap=50)
    (row,) = summary["by_synthesizer"]
    assert row["model"]["num_groups"] == num_groups
    config = {"model": "m", "dataset": "d", "split": "test"}
    report = reporting.render_report({**summary, "config": config, "timing": reporting.sum_timing([])})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in report.splitlines() if line.startswith("|")]
    assert ["recordings", str(num_groups)] in [row[:2] for row in rows]
    assert rows[-1] == ["modality", row["synthesizer"], "40", str(num_groups), shown]


def test_a_run_that_scored_nothing_new_has_no_real_time_factor():
    assert reporting.sum_timing([])["real_time_factor"] is None


def test_the_figure_is_drawn_for_constant_single_and_missing_values(tmp_path):
    generator = np.random.default_rng(0)
    records = [{"subset": "wild", "chosen": value, "rejected": -value} for value in generator.normal(1, 1, 50)]
    records += [{"subset": "scripted", "chosen": 1.0, "rejected": float("nan")}]
    records += [{"subset": "colloquialness", "chosen": 2.0, "rejected": 0.5}] * 3
    figures.plot_rewards(records, tmp_path / "rewards.png")
    assert (tmp_path / "rewards.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["rewards.png"]


def test_every_column_has_a_title():
    assert list(TITLES) == [*COLUMNS, NO_SUBSET]
    assert set(SUBSET_LABELS) <= set(TITLES)


def test_the_checkpoint_of_the_package_has_a_name_and_others_their_path():
    assert name_scorer({"model": str(NANO)}) == "nano"
    assert name_scorer({"model": "runs/nano"}) == "runs/nano"
    assert name_scorer({"model": None, "judge": "gpt"}) == "judge gpt"
