import json

import pytest
from support import report_world

from sdiareward.evaluation.report import inputs


def write_evaluation(folder, scores, skipped=(), model="other/model"):
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"config": {"model": model}}))
    lines = [json.dumps({"pair_id": pair_id, **score}) + "\n" for pair_id, score in scores.items()]
    (folder / "scores.jsonl").write_text("".join(lines))
    (folder / "skipped.jsonl").write_text("".join(json.dumps(row) + "\n" for row in skipped))
    return folder


def write_run(path, *args):
    path.write_text(json.dumps(report_world.make_training(*args)))
    return path


def test_a_finished_evaluation_is_read_with_its_model_and_scores(tmp_path):
    found = inputs.read_evaluation(write_evaluation(tmp_path / "a", {"x": {"chosen": 1.0, "rejected": 0.5}}))
    assert found.model == "other/model"
    assert found.scores["x"]["chosen"] == 1.0


@pytest.mark.parametrize("name", ["scores.jsonl", "results.json"])
def test_a_folder_that_is_no_finished_evaluation_is_refused(tmp_path, name):
    folder = write_evaluation(tmp_path / "a", {})
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {name}; give the output_dir of a finished evaluation"):
        inputs.read_evaluation(folder)


def test_pairs_that_another_evaluation_lacks_are_named_with_the_reason(tmp_path):
    skipped = [{"pair_id": "y", "reason": "chosen, turn 1: cannot be decoded"}]
    folder = write_evaluation(tmp_path / "a", {"x": {"chosen": 1.0, "rejected": 0.5}}, skipped)
    found = inputs.read_evaluation(folder)
    inputs.check_same_pairs(found, ["x"], "error")
    with pytest.raises(ValueError, match=r"a: lacks 2 of 3 pairs, the first is 'y' \(skipped there: chosen, turn 1"):
        inputs.check_same_pairs(found, ["x", "y", "z"], "error")


def test_a_reward_that_is_not_finite_is_an_error_unless_it_counts_as_wrong(tmp_path):
    found = inputs.read_evaluation(write_evaluation(tmp_path / "a", {"x": {"chosen": float("nan"), "rejected": 0.5}}))
    inputs.check_same_pairs(found, ["x"], "wrong")
    with pytest.raises(ValueError, match="1 pairs have a reward that is missing or not finite, the first is 'x'"):
        inputs.check_same_pairs(found, ["x"], "error")


def test_the_mean_reward_of_each_side_is_the_mean_and_half_of_the_margin(tmp_path):
    (run,) = inputs.read_training_runs([write_run(tmp_path / "run.json", 0.01, 2.0)])
    assert run.center_rewards_coefficient == 0.01
    assert len(run.train) == 10
    assert run.train[-1] == {"step": 100, "chosen": 3.0, "rejected": 1.0, "margin": 2.0}
    assert run.validation[0] == {"step": 50, "chosen": 1.5, "rejected": 0.5, "margin": 1.0}


def test_runs_are_named_by_their_centering_and_by_their_path_where_that_is_not_enough(tmp_path):
    paths = [
        write_run(tmp_path / f"{name}.json", value, 0.0) for name, value in (("a", 0.01), ("b", None), ("c", 0.0))
    ]
    titles = [run.title for run in inputs.read_training_runs(paths)]
    assert titles == [
        "with centering, λ = 0.01",
        f"without centering ({paths[1]})",
        f"without centering ({paths[2]})",
    ]


def test_a_log_that_is_none_of_training_is_refused_by_name(tmp_path):
    path = tmp_path / "run.json"
    with pytest.raises(FileNotFoundError, match="run.json: no such file"):
        inputs.read_training_runs([path])
    for content in ('{"model": "m"}', '{"training": {}, "history": [{"loss": 1.0, "step": 1}]}'):
        path.write_text(content)
        with pytest.raises(ValueError, match="run.json: "):
            inputs.read_training_runs([path])
