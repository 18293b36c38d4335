import json
import math

import pytest
from support import report_world

from sdiareward.evaluation.report import content
from sdiareward.evaluation.report.inputs import ComparedEvaluation


def label(number, subset="wild", group=None, **fields):
    return {
        "pair_id": f"pair-{number}",
        "criterion": "modality",
        "subset": subset,
        "source": "made_up",
        "synthesizer": "known",
        "group_id": group or f"group-{number}",
        **fields,
    }


def scores(found):
    return {f"pair-{number}": {"chosen": margin, "rejected": 0.0} for number, margin in enumerate(found)}


OPTIONS = {"nan": "wrong", "num_bootstrap": 50, "seed": 0}


@pytest.fixture(scope="module")
def report():
    pairs, labels, by_scorer = report_world.make_evaluation()
    records = [{**label, "primary": "Joy", "secondary": None} for label in labels]
    other = ComparedEvaluation("runs/other", "other/model", report_world.make_scores(labels, 7, 0.5), {})
    by_scorer["model"]["pair-03"] = {"chosen": math.nan, "rejected": 0.0}
    results = report_world.make_results(labels, by_scorer, nan="wrong")
    return content.build_report(results, records, by_scorer, [other])


def test_the_report_is_strict_json_and_the_same_whenever_it_is_made(report):
    text = json.dumps(report, allow_nan=False)
    assert json.loads(text) == report


def test_every_scorer_has_a_row_in_table_2_the_model_first(report):
    assert [(row["name"], row["kind"]) for row in report["scorers"]] == [
        ("model", "model"),
        ("compared_1", "compared"),
        ("acoustic", "baseline"),
        ("text", "baseline"),
    ]
    assert list(report["accuracies"]) == [row["name"] for row in report["scorers"]]
    assert report["accuracies"]["text"]["num_ties"]["overall_micro"] == 48
    assert {"model", "compared_1", "acoustic", "text"} <= set(report["by_synthesizer"][0])


def test_a_reward_that_is_not_finite_is_named_and_left_out_of_calibration_and_margins(report):
    assert report["not_finite"] == [{"scorer": "model", "pair_id": "pair-03"}]
    assert report["calibration"][0]["num_pairs"] == 47
    assert report["margins"]["strata"][2]["num_pairs"] == 47
    assert sum(row["num_pairs"] for row in report["margins"]["bins"]) == 47
    assert any("checkpoints" not in note and "not finite" in note for note in report["notes"])


def test_calibration_is_given_for_models_not_for_baselines(report):
    assert [row["scorer"] for row in report["calibration"]] == ["model", "compared_1"]
    found = report["calibration"][0]
    assert len(found["fold_temperatures"]) == 5
    assert found["before"]["by_subset"].keys() == {"wild", "semi_wild", "scripted", "colloquialness"}
    assert sum(row["num_pairs"] for row in found["after"]["bins"]) == 47


def test_every_other_scorer_is_compared_on_all_pairs_and_by_criterion(report):
    rows = [(row["scorer"], row["column"], row["num_pairs"]) for row in report["comparisons"]]
    assert rows == [
        (scorer, column, num_pairs)
        for scorer in ("compared_1", "acoustic", "text")
        for column, num_pairs in (("overall_micro", 48), ("modality_micro", 36), ("colloquialness", 12))
    ]
    for row in report["comparisons"]:
        own, other = report["accuracies"]["model"], report["accuracies"][row["scorer"]]
        assert row["difference"] == pytest.approx(own[row["column"]] - other[row["column"]])


def test_models_of_one_name_are_told_apart_by_their_folders():
    _, labels, by_scorer = report_world.make_evaluation()
    others = [
        ComparedEvaluation(folder, "checkpoints/tiny", by_scorer["model"], {}) for folder in ("runs/a", "runs/b")
    ]
    results = report_world.make_results(labels, by_scorer)
    found = content.build_report(results, labels, by_scorer, others)
    titles = [row["title"] for row in found["scorers"]][:3]
    assert titles == ["checkpoints/tiny", "checkpoints/tiny (runs/a)", "checkpoints/tiny (runs/b)"]


def test_a_cell_is_small_below_ten_pairs_or_five_recordings():
    records = [label(number, primary="Joy", secondary="Laughter") for number in range(10)]
    records += [label(number, group=f"four-{number % 4}", primary="Anger", secondary=None) for number in range(10, 20)]
    records += [label(number, primary="Fear", secondary=None) for number in range(20, 29)]
    rows = content.by_taxonomy(records, {"model": scores([1.0] * 28 + [-1.0])}, OPTIONS)
    assert [
        (row["primary"], row["secondary"], row["num_pairs"], row["num_groups"], row["is_small"]) for row in rows
    ] == [
        ("Anger", "", 10, 4, True),
        ("Fear", "", 9, 9, True),
        ("Joy", "Laughter", 10, 10, False),
    ]
    assert rows[1]["model"]["accuracy"] == pytest.approx(8 / 9)


def test_rewards_are_described_by_subset_and_side():
    rows = content.describe_rewards([label(0), label(1)], scores([1.0, 3.0]))
    chosen = {"mean": 2.0, "sd": 1.0, "q05": 1.1, "q25": 1.5, "median": 2.0, "q75": 2.5, "q95": 2.9}
    assert rows[0] == pytest.approx({"subset": "wild", "side": "chosen", "num_pairs": 2, **chosen})
    assert rows[1]["mean"] == 0.0
    assert len(rows) == 2


def test_strata_have_their_margins_and_the_subsets_they_come_from():
    records = [label(0), label(1, "scripted"), label(2, "scripted"), label(3)]
    found = content.describe_margins(records, scores([2.0, -0.5, -0.1, 1.0]), OPTIONS)
    high, low, everything, wrong = found["strata"]
    assert (high["mean_margin"], high["accuracy"], high["low"], high["high"]) == (2.0, 1.0, 2.0, 2.0)
    assert (low["mean_margin"], low["accuracy"]) == (-0.1, 0.0)
    assert everything["by_subset"] == {"wild": 2, "scripted": 2}
    assert (wrong["num_pairs"], wrong["mean_margin"], wrong["by_subset"]) == (2, pytest.approx(-0.3), {"scripted": 2})
    assert wrong["accuracy"] is None
    (only_bin,) = found["bins"]
    assert (only_bin["num_pairs"], only_bin["accuracy"]) == (4, 0.5)


def test_a_stratum_without_pairs_says_so():
    wrong = content.describe_margins([label(0)], scores([1.0]), OPTIONS)["strata"][3]
    assert (wrong["num_pairs"], wrong["accuracy"], wrong["mean_margin"]) == (0, None, None)


def test_a_baseline_that_is_above_chance_is_pointed_out(report):
    assert report["accuracies"]["acoustic"]["interval"]["modality_micro"][0] > 0.5
    (note,) = [note for note in report["notes"] if "hears no words" in note]
    assert note.startswith("acoustic baseline: ")
    assert not any("hears nothing" in note for note in report["notes"])
