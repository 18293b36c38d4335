"""Runs of the training script in processes of their own: shared between processes, killed, out of disk."""

import json
import sys

import pytest
from safetensors.torch import load_file
from support import forked
from support.paths import ROOT
from support.refusals import check_refused

from sdiareward.train import main


pytestmark = pytest.mark.slow


@pytest.fixture
def command(make_flags):
    run = {"num_train_epochs": 3, "per_device_eval_batch_size": 2, "batch_tokens": 1200, "save_steps": 1}
    run |= {"lr_scheduler_type": "cosine", "eval_strategy": "steps", "eval_steps": 2}

    def make(output_dir, *flags, **changes):
        return [sys.executable, "-m", "sdiareward.train", *make_flags(output_dir, *flags, **{**run, **changes})]

    return make


def train_here(command):
    """Train in this process, which has the imports already; return the exit status."""
    return main(command[command.index("sdiareward.train") + 1 :])


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_two_processes_learn_what_one_learns(command, tmp_path, tone_pairs, data_folder):
    # Three pairs cannot be dealt evenly to two processes. Adam would make large steps of gradients that are rounding.
    tone_pairs.select([0, 1, 2]).to_parquet(data_folder / "train.parquet")
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert train_here(command(alone, per_device_train_batch_size=4, optim="sgd")) == 0
    ranks = forked.start_ranks(command(shared, per_device_train_batch_size=2, optim="sgd"), 2, cwd=ROOT)
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    losses = [
        [line["loss"] for line in json.loads((folder / "run.json").read_text())["history"] if "loss" in line]
        for folder in (alone, shared)
    ]
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    expected, found = weights(alone), weights(shared)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() < 1e-6, name


def test_a_run_that_has_taken_its_last_step_takes_no_other_when_it_resumes(command, tmp_path):
    # The last step is in the middle of an epoch, after which there are more pairs.
    output, options = tmp_path / "run", {"max_steps": 3, "lr_scheduler_type": "constant"}
    assert train_here(command(output, **options)) == 0
    expected = weights(output)
    (output / "run.json").unlink()
    assert train_here(command(output, "--resume", "True", **options)) == 0
    found = weights(output)
    assert all((found[name] == tensor).all() for name, tensor in expected.items())
    assert not (output / "checkpoint-4").exists()
    steps = [line["step"] for line in json.loads((output / "run.json").read_text())["history"] if "loss" in line]
    assert steps == [1, 2, 3]


@pytest.mark.parametrize("mode", ["full", "lora", "head"])
def test_a_run_resumes_from_the_checkpoint_that_is_named(mode, command, tmp_path):
    options = {"train": mode, "per_device_train_batch_size": 1, "num_train_epochs": 2}
    output = tmp_path / "run"
    assert train_here(command(output, **options)) == 0
    expected, history = weights(output), json.loads((output / "run.json").read_text())["history"]
    written = {step: (output / f"checkpoint-{step}/trainer_state.json").stat().st_mtime_ns for step in range(1, 9)}
    named = output / "checkpoint-3"
    assert train_here(command(output, "--resume_from_checkpoint", str(named), **options)) == 0
    again = {step: (output / f"checkpoint-{step}/trainer_state.json").stat().st_mtime_ns for step in range(1, 9)}
    # The later checkpoints are of the resumed run, the earlier ones are not written again.
    assert [step for step in written if again[step] != written[step]] == [4, 5, 6, 7, 8]
    found = weights(output)
    assert all((found[name] == tensor).all() for name, tensor in expected.items())
    run_json = json.loads((output / "run.json").read_text())
    assert run_json["training"]["resume_from_checkpoint"] == str(named)
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in (history, run_json["history"])]
    assert losses[0] == losses[1] and len(losses[0]) == 8


def test_a_run_begins_from_the_adapters_of_an_earlier_one_and_records_it(command, tmp_path):
    options = {"train": "lora", "num_train_epochs": 1, "eval_strategy": "no"}
    first, second = tmp_path / "first", tmp_path / "second"
    assert train_here(command(first, **options)) == 0
    assert train_here(command(second, adapter_name_or_path=first / "adapter", learning_rate=0, **options)) == 0
    records = [json.loads((run / "run.json").read_text()) for run in (first, second)]
    # The model gives rewards, and nothing tells what it heard.
    assert records[0]["earlier_stages"] == [{}]
    kept = ("git_revision", "arguments", "trained_on")
    assert records[1]["earlier_stages"] == [{}, {name: records[0][name] for name in kept}]
    start, end = (load_file(run / "adapter" / "adapter_model.safetensors") for run in (first, second))
    assert all((end[name] == weight).all() for name, weight in start.items())


def test_a_checkpoint_of_another_kind_of_training_is_refused(command, tmp_path, capsys):
    assert train_here(command(tmp_path / "lora", train="lora", num_train_epochs=1)) == 0
    flags = ("--resume_from_checkpoint", str(tmp_path / "lora" / "checkpoint-1"))
    message = "checkpoint-1 holds adapters, but a whole model or a head is to be trained"
    assert check_refused(capsys, message, train_here, command(tmp_path / "full", *flags))


def test_data_without_a_split_are_refused_in_one_line(command, data_folder, tmp_path, capsys):
    (data_folder / "validation.parquet").unlink()
    line = check_refused(capsys, "validation", train_here, command(tmp_path / "out"))
    assert line.startswith(f"sdiareward-train: error: {data_folder}: ")
