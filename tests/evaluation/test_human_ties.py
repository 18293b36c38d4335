"""Pairs that people called a tie are reported apart from the accuracy."""

import json

import datasets
import numpy as np
import pytest
from support.mapped_world import write_mapped

from sdiareward import eval as evaluation
from sdiareward.evaluation.human_ties import describe_ties, measure_ties


def score(margin):
    return {"margin": margin}


def test_margins_of_ties_are_compared_with_those_of_decided_pairs():
    found = measure_ties(map(score, [0.0, -0.2, 0.4, None]), map(score, [-1.0, 3.0]), num_skipped=2)
    assert found == {
        "num_pairs": 3,
        "num_skipped": 2,
        "num_equal": 1,
        "median_margin": pytest.approx(0.2),
        "median_margin_of_decided": pytest.approx(2.0),
    }
    note = "Ties of the human label: 5, in no accuracy, 2 of them skipped; the median |margin| is 0.2, that of"
    assert describe_ties(found) == f"{note} decided pairs 2."


@pytest.mark.parametrize("found", [None, measure_ties([], [score(1.0)], 0)])
def test_nothing_is_told_without_ties(found):
    assert describe_ties(found) is None


@pytest.mark.slow
def test_an_evaluation_of_mapped_columns_scores_ties_but_counts_them_in_no_accuracy(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    mapping, out = write_mapped(tmp_path, test=["A", "Tie", "B", "Tie"]), tmp_path / "out"
    arguments = ["--dataset", str(mapping), "--output_dir", str(out), "--num_bootstrap", "20", "--device", "cpu"]
    assert evaluation.main(arguments) == 0
    results = json.loads((out / "results.json").read_text())
    assert results["accuracies"]["model"]["num_pairs"]["overall_micro"] == 2
    scores, ties = (
        {line["pair_id"]: line for line in map(json.loads, (folder / "scores.jsonl").read_text().splitlines())}
        for folder in (out, out / "ties")
    )
    assert (sorted(scores), sorted(ties)) == (["0", "2"], ["1", "3"])
    assert results["human_ties"]["median_margin"] == pytest.approx(np.mean([abs(ties[row]["margin"]) for row in "13"]))
    assert "Ties of the human label: 2, in no accuracy" in capsys.readouterr().out
