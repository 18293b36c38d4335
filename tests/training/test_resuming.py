"""Runs that resume: what they refuse to change, and that their records are those of an undisturbed run."""

import json
import shutil

import pytest
from safetensors.torch import load_file
from support.refusals import check_refused

from sdiareward.train import main


pytestmark = pytest.mark.slow
RUN = {"num_train_epochs": 3, "save_steps": 3, "logging_steps": 4, "batch_tokens": 1200, "train": "head"}


def read_run(folder):
    return json.loads((folder / "run.json").read_text())


CHANGES = {
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 2,
    "weight_decay": 0.1,
    "optim": "sgd",
    "adam_beta2": 0.9,
    "max_grad_norm": 0.5,
    "label_smoothing_factor": 0.1,
    "center_rewards_coefficient": 0.1,
    "seed": 5,
    "data_seed": 5,
    "num_train_epochs": 4,
    "max_steps": 5,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "dataloader_drop_last": True,
    "through_backbone": True,
    "max_turn_s": 0.3,
    "augmentations": "channel",
    "validation_share": 0.2,
    "max_eval_samples": 2,
    "train": "full",
    "model_name_or_path": "nano",
}


def test_a_resumed_run_refuses_by_name_what_it_cannot_change(make_flags, tmp_path, capsys):
    output = tmp_path / "run"
    assert main(make_flags(output, **RUN)) == 0
    card, weights = (output / "README.md").read_bytes(), (output / "model.safetensors").read_bytes()
    copied = shutil.copytree(output / "checkpoint-3", tmp_path / "checkpoint-3")
    newest, named = ("--resume", "True"), ("--resume_from_checkpoint", str(copied))
    for name, value in CHANGES.items():
        for resume in (newest, named):
            folder = output if resume == newest else tmp_path / "other"
            check_refused(capsys, name, main, make_flags(folder, *resume, **{**RUN, name: value}))
    assert (card, weights) == ((output / "README.md").read_bytes(), (output / "model.safetensors").read_bytes())
    # The same steps, and settings that change no weight.
    same = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "save_steps": 2, "logging_steps": 1}
    flags = ("--resume_from_checkpoint", str(output / "checkpoint-3"))
    assert main(make_flags(output, *flags, **{**RUN, **same, "batch_tokens": 500})) == 0
    assert (output / "model.safetensors").read_bytes() == weights
    assert [line["step"] for line in read_run(output)["history"] if "loss" in line] == [3, 4, 5, 6]
    assert (output / "checkpoint-4").is_dir()


def test_checkpoints_of_an_earlier_run_in_the_folder_are_not_resumed_with_other_settings(make_flags, tmp_path, capsys):
    output = tmp_path / "run"
    assert main(make_flags(output, **RUN)) == 0
    # A second run in the folder that ends before it saves leaves the checkpoints of the first.
    changed = {**RUN, "learning_rate": 1e-3}
    assert main(make_flags(output, **{**changed, "save_strategy": "no"})) == 0
    check_refused(capsys, "learning_rate", main, make_flags(output, "--resume", "True", **changed))


@pytest.mark.parametrize("mode", ["head", "lora"])
def test_the_record_of_a_resumed_run_is_that_of_an_undisturbed_one(mode, make_flags, tmp_path):
    output, options = tmp_path / "run", {**RUN, "train": mode}
    assert main(make_flags(output, **options)) == 0
    expected, weights = read_run(output)["history"], load_file(output / "model.safetensors")
    timed = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "tokens_per_second"}
    timed |= {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "resumed_from_step"}

    def untimed(history):
        return [{name: value for name, value in line.items() if name not in timed} for line in history]

    # Step 3 is between two lines of the log; step 6 is the last.
    for step in (3, 6):
        checkpoint = output / f"checkpoint-{step}"
        assert main(make_flags(output, "--resume_from_checkpoint", str(checkpoint), **options)) == 0
        found = read_run(output)["history"]
        assert [line["resumed_from_step"] for line in found if "train_loss" in line] == [step]
        for line, other in zip(untimed(found), untimed(expected), strict=True):
            assert line == pytest.approx(other, abs=1e-9)
        assert all((load_file(output / "model.safetensors")[name] == weight).all() for name, weight in weights.items())


def test_a_run_that_stopped_early_stops_where_it_did_when_it_resumes(make_flags, tmp_path):
    # No step lowers the loss: the second evaluation without a lower one ends the run.
    stop = {
        "early_stopping_patience": 2,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_steps": 1,
        "learning_rate": 0,
    }
    output, options = tmp_path / "run", {**RUN, **stop}
    assert main(make_flags(output, **options)) == 0
    expected = max(line["step"] for line in read_run(output)["history"])
    assert expected == 3
    for resume in (("--resume_from_checkpoint", str(output / "checkpoint-2")), ("--resume", "True")):
        assert main(make_flags(output, *resume, **options)) == 0
        assert max(line["step"] for line in read_run(output)["history"]) == expected
