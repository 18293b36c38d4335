"""What a stage of training takes, from a part of its steps."""

import json

import pytest
import yaml

from benchmarks import stage_times
from benchmarks.racing import ROOT
from sdiareward.common.yaml_files import read_yaml


def test_all_steps_take_as_long_each_as_those_that_were_run():
    history = [{"loss": 1.0, "step": 5}, {"train_runtime": 20.0, "step": 10}, {"eval_loss": 1.0, "step": 10}]
    found = stage_times.extrapolate(history, 180, 4)
    # Two seconds each, six minutes in all.
    assert found == {"steps": 180, "measured_steps": 10, "pairs_a_step": 4, "step_s": 2.0, "hours": 0.1}


def test_a_stage_that_has_ended_is_read_from_its_record(tmp_path):
    record, output = tmp_path / "run.json", tmp_path / "times.json"
    history = [{"train_runtime": 720.0, "step": 90}, {"eval_loss": 1.0, "step": 90}]
    record.write_text(
        json.dumps({"history": history, "training": {"max_steps": 90, "per_device_train_batch_size": 16}})
    )
    stage_times.main(["--finished", f"last={record}", "--output", str(output)])
    found = json.loads(output.read_text())["stages"]
    assert found == {"last": {"steps": 90, "measured_steps": 90, "pairs_a_step": 16, "step_s": 8.0, "hours": 0.2}}


@pytest.mark.parametrize("name", stage_times.STAGES)
def test_the_recipe_of_each_stage_says_how_many_steps_it_has(name):
    recipe = read_yaml(ROOT / "configs" / f"{name}.yaml")
    assert ("max_clips" if stage_times.STAGES[name] == "align" else "max_steps") in recipe
    assert recipe["per_device_train_batch_size"] and recipe["output_dir"] == f"runs/{name}"


@pytest.mark.slow
def test_a_stage_is_run_for_some_of_its_steps(tiny_checkpoint, tone_pairs, tmp_path, monkeypatch):
    tone_pairs.add_column("group_id", list("abcd")).to_parquet(tmp_path / "pairs.parquet")
    settings = {
        "model_name_or_path": str(tiny_checkpoint),
        "dataset": str(tmp_path / "pairs.parquet"),
        "output_dir": "run",
        "train": "head",
        "max_steps": 50,
        "per_device_train_batch_size": 2,
        "use_cpu": True,
        "report_to": "none",
    }
    config = tmp_path / "stage.yaml"
    config.write_text(yaml.safe_dump(settings))
    monkeypatch.chdir(tmp_path)
    found = stage_times.measure("train", config, 2)
    assert (found["steps"], found["measured_steps"], found["pairs_a_step"]) == (50, 2, 2)
    (tmp_path / "pairs.parquet").unlink()
    with pytest.raises(RuntimeError, match=r"sdiareward train --config .*stage\.yaml failed"):
        stage_times.measure("train", config, 2)
