"""Training shared by two processes, also with a part of the model each: FSDP2, and DeepSpeed where it is there."""

import importlib.util
import json
import sys

import pytest
import torch
from safetensors.torch import load_file
from support import forked
from support.launched import write_variant
from support.paths import CONFIGS, ROOT, TESTS

from sdiareward.train import main


pytestmark = pytest.mark.slow
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason='pip install ".[deepspeed]" to test it'
)

_RANK = """
import runpy, sys
from support.launched import be_a_rank_on_a_cpu
be_a_rank_on_a_cpu(sys.argv.pop(1))
import accelerate
prepare = accelerate.Accelerator.prepare
def prepare_and_report(self, *args, **options):
    prepared = prepare(self, *args, **options)
    print("prepared", self.distributed_type.value, [type(model).__name__ for model in self._models])
    return prepared
accelerate.Accelerator.prepare = prepare_and_report
runpy.run_module("sdiareward.train", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def options(make_flags):
    run = {"eval_strategy": "no", "save_strategy": "no", "max_steps": 2, "optim": "sgd", "learning_rate": 3}

    def make(output_dir, **changes):
        # A step is several micro-batches.
        return make_flags(output_dir, **{**run, "use_cpu": False, "batch_tokens": 1200, **changes})

    return make


def train_in_two_processes(config, options, tmp_path, monkeypatch):
    """Return what the first process printed."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=":")
    with (tmp_path / "out").open("w+") as out:
        ranks = forked.start_ranks([sys.executable, "-c", _RANK, str(config), *options], 2, cwd=ROOT, stdout=out)
        codes = [rank.wait(240) for rank in ranks]
        out.seek(0)
        assert codes == [0, 0]
        return out.read()


def losses(folder):
    return [line["loss"] for line in json.loads((folder / "run.json").read_text())["history"] if "loss" in line]


def check_that_both_learned_the_same(alone, shared):
    assert losses(shared) == pytest.approx(losses(alone), abs=1e-6)
    expected, found = (load_file(folder / "model.safetensors") for folder in (alone, shared))
    assert found.keys() == expected.keys()
    assert all((found[name] - tensor).abs().max() < 1e-6 for name, tensor in expected.items())
    return found


def check_that_all_is_learned_as_by_one_process(config, options, tmp_path, monkeypatch, **changes):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    main(options(alone, per_device_train_batch_size=4, use_cpu=True, **changes))
    printed = train_in_two_processes(config, options(shared, **changes), tmp_path, monkeypatch)
    start, found = load_file(options.start / "model.safetensors"), check_that_both_learned_the_same(alone, shared)
    assert (found["score.weight"] - start["score.weight"]).abs().max() > 0.01
    return printed


def check_that_losses_are_in_float32(folder):
    # Of rewards in bfloat16 the losses would be values of bfloat16 too.
    assert [torch.tensor(loss).bfloat16().item() == loss for loss in losses(folder)] == [False, False]


def test_fsdp2_learns_what_one_process_learns(options, tiny_checkpoint, tmp_path, monkeypatch):
    options.start = tiny_checkpoint
    config = write_variant(CONFIGS / "accelerate_fsdp2.yaml", tmp_path, mixed_precision="no")
    printed = check_that_all_is_learned_as_by_one_process(config, options, tmp_path, monkeypatch)
    assert "prepared FSDP ['FSDPSDiaRewardModel']" in printed


def test_losses_are_in_float32_under_the_shipped_fsdp2(options, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    config = CONFIGS / "accelerate_fsdp2.yaml"
    train_in_two_processes(config, options(folder, bf16=True), tmp_path, monkeypatch)
    check_that_losses_are_in_float32(folder)


@needs_deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_learns_what_one_process_learns(stage, options, tiny_checkpoint, tmp_path, monkeypatch):
    options.start = tiny_checkpoint
    config = write_variant(CONFIGS / f"accelerate_zero{stage}.yaml", tmp_path, mixed_precision="no")
    printed = check_that_all_is_learned_as_by_one_process(config, options, tmp_path, monkeypatch)
    assert "prepared DEEPSPEED ['DeepSpeedEngine']" in printed


@needs_deepspeed
@pytest.mark.parametrize(("mode", "config"), [("head", "zero2"), ("full", "zero3")])
def test_the_shipped_deepspeed_recipes_train_in_bfloat16(
    mode, config, options, tiny_checkpoint, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    path = CONFIGS / f"accelerate_{config}.yaml"
    train_in_two_processes(path, options(folder, train=mode, bf16=True), tmp_path, monkeypatch)
    check_that_losses_are_in_float32(folder)
    head = load_file(folder / "model.safetensors")["score.weight"]
    assert head.dtype == torch.float32
    # DeepSpeed saves the head that computed, which is in bfloat16.
    assert torch.equal(head, head.bfloat16().float())
    assert (head - load_file(tiny_checkpoint / "model.safetensors")["score.weight"]).abs().max() > 0.01


def test_two_processes_learn_what_one_learns(make_flags, tmp_path, tone_pairs, data_folder):
    # Three pairs cannot be dealt evenly to two processes. Adam would make large steps of gradients that are rounding.
    tone_pairs.select([0, 1, 2]).to_parquet(data_folder / "train.parquet")
    run = {"num_train_epochs": 3, "batch_tokens": 1200, "optim": "sgd", "lr_scheduler_type": "cosine"}
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert main(make_flags(alone, per_device_train_batch_size=4, **run)) == 0
    flags = make_flags(shared, per_device_train_batch_size=2, **run)
    ranks = forked.start_ranks([sys.executable, "-m", "sdiareward.train", *flags], 2, cwd=ROOT)
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    assert len(losses(alone)) == 3
    check_that_both_learned_the_same(alone, shared)
