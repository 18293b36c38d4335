import json
import math

import pytest
from support import report_world

from sdiareward.evaluation.report import content


OPTIONS = {"nan": "wrong", "num_bootstrap": 50, "seed": 0}


def label(number, subset="wild", group=None, **fields):
    about = {"pair_id": f"pair-{number}", "criterion": "modality", "subset": subset, "source": "made_up"}
    return {**about, "synthesizer": "known", "group_id": group or f"group-{number}", **fields}


def scores(found):
    return {f"pair-{number}": {"chosen": margin, "rejected": 0.0} for number, margin in enumerate(found)}


@pytest.fixture(scope="module")
def report():
    pairs, labels, by_scorer = report_world.make_evaluation()
    records = [{**label, "primary": "Joy", "secondary": None} for label in labels]
    others = [report_world.make_other(labels, folder=folder) for folder in ("runs/a", "runs/b")]
    by_scorer["model"]["pair-03"] = {"chosen": math.nan, "rejected": 0.0}
    results = report_world.make_results(labels, by_scorer, nan="wrong")
    return content.build_report(results, records, by_scorer, others)


def test_the_report_is_strict_json_with_every_scorer_the_model_first(report):
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    # Models of one name have their folders in their titles.
    assert [(row["name"], row["title"], row["kind"]) for row in report["scorers"]] == [
        ("model", "checkpoints/tiny", "model"),
        ("compared_1", "other/<model> (runs/a)", "compared"),
        ("compared_2", "other/<model> (runs/b)", "compared"),
        ("acoustic", "acoustic baseline", "baseline"),
        ("text", "text baseline", "baseline"),
    ]
    names = [row["name"] for row in report["scorers"]]
    assert list(report["accuracies"]) == names and {*names} <= set(report["by_synthesizer"][0])
    assert report["accuracies"]["text"]["num_ties"]["overall_micro"] == 48


def test_a_reward_that_is_not_finite_is_named_and_no_part_of_calibration_and_margins(report):
    assert report["not_finite"] == [{"scorer": "model", "pair_id": "pair-03"}]
    assert [row["scorer"] for row in report["calibration"]] == ["model", "compared_1", "compared_2"]
    found = report["calibration"][0]
    assert found["num_pairs"] == report["margins"]["strata"][2]["num_pairs"] == 47
    assert sum(row["num_pairs"] for row in report["margins"]["bins"]) == 47
    assert sum(row["num_pairs"] for row in found["after"]["bins"]) == 47 and len(found["fold_temperatures"]) == 5
    assert found["before"]["by_subset"].keys() == {"wild", "semi_wild", "scripted", "colloquialness"}
    assert any("not finite" in note for note in report["notes"])


def test_every_other_scorer_is_compared_on_all_pairs_and_by_criterion(report):
    assert [(row["scorer"], row["column"], row["num_pairs"]) for row in report["comparisons"]] == [
        (scorer, column, num_pairs)
        for scorer in ("compared_1", "compared_2", "acoustic", "text")
        for column, num_pairs in (("overall_micro", 48), ("modality_micro", 36), ("colloquialness", 12))
    ]
    for row in report["comparisons"]:
        own, other = (report["accuracies"][name][row["column"]] for name in ("model", row["scorer"]))
        assert row["difference"] == pytest.approx(own - other)


def test_a_baseline_that_is_above_chance_is_pointed_out(report):
    assert report["accuracies"]["acoustic"]["interval"]["modality_micro"][0] > 0.5
    (note,) = [note for note in report["notes"] if "hears no words" in note]
    assert note.startswith("acoustic baseline: ") and not any("hears nothing" in each for each in report["notes"])


def test_a_cell_is_small_below_ten_pairs_or_five_recordings():
    records = [label(number, primary="Joy", secondary="Laughter") for number in range(10)]
    records += [label(number, group=f"four-{number % 4}", primary="Anger", secondary=None) for number in range(10, 20)]
    records += [label(number, primary="Fear", secondary=None) for number in range(20, 29)]
    rows = content.by_taxonomy(records, {"model": scores([1.0] * 28 + [-1.0])}, OPTIONS)
    names = ("primary", "secondary", "num_pairs", "num_groups", "is_small")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("Anger", "", 10, 4, True),
        ("Fear", "", 9, 9, True),
        ("Joy", "Laughter", 10, 10, False),
    ]
    assert rows[1]["model"]["accuracy"] == pytest.approx(8 / 9)


def test_rewards_are_described_by_subset_and_side():
    chosen, rejected = content.describe_rewards([label(0), label(1)], scores([1.0, 3.0]))
    expected = {"mean": 2.0, "sd": 1.0, "q05": 1.1, "q25": 1.5, "median": 2.0, "q75": 2.5, "q95": 2.9}
    assert chosen == pytest.approx({"subset": "wild", "side": "chosen", "num_pairs": 2, **expected})
    assert rejected["mean"] == 0.0


def test_strata_have_their_margins_and_the_subsets_they_come_from():
    records = [label(0), label(1, "scripted"), label(2, "scripted"), label(3)]
    found = content.describe_margins(records, scores([2.0, -0.5, -0.1, 1.0]), OPTIONS)
    high, low, everything, wrong = found["strata"]
    assert (high["mean_margin"], high["accuracy"], high["low"], high["high"]) == (2.0, 1.0, 2.0, 2.0)
    assert (low["mean_margin"], low["accuracy"]) == (-0.1, 0.0)
    assert everything["by_subset"] == {"wild": 2, "scripted": 2}
    assert (wrong["num_pairs"], wrong["mean_margin"], wrong["by_subset"]) == (2, pytest.approx(-0.3), {"scripted": 2})
    assert wrong["accuracy"] is None and [row["accuracy"] for row in found["bins"]] == [0.5]
    wrong = content.describe_margins([label(0)], scores([1.0]), OPTIONS)["strata"][3]
    assert (wrong["num_pairs"], wrong["accuracy"], wrong["mean_margin"]) == (0, None, None)


def test_logs_of_training_have_the_mean_reward_of_each_side_and_a_title(tmp_path):
    paths = [tmp_path / f"{name}.json" for name in "abc"]
    for path, weight in zip(paths, (0.01, None, 0.0), strict=True):
        path.write_text(json.dumps(report_world.make_training(weight, 2.0)))
    runs = content.read_training_runs(paths)
    titles = ["with centering, λ = 0.01", *(f"without centering ({path})" for path in paths[1:])]
    assert [run["title"] for run in runs] == titles
    assert runs[0]["train"][-1] == {"step": 100, "chosen": 3.0, "rejected": 1.0, "margin": 2.0}
    assert runs[0]["validation"][0] == {"step": 50, "chosen": 1.5, "rejected": 0.5, "margin": 1.0}


@pytest.mark.parametrize("text", [None, '{"model": "m"}', '{"training": {}, "history": [{"loss": 1.0, "step": 1}]}'])
def test_a_log_that_is_none_of_training_is_refused_by_name(tmp_path, text):
    path = tmp_path / "run.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises((FileNotFoundError, ValueError), match="run.json: "):
        content.read_training_runs([path])
