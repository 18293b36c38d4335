"""Resumed runs: which checkpoint, what they refuse to change, and that they end as undisturbed ones."""

import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import datasets
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerState

from sdiareward.common.errors import UserError
from sdiareward.train import main
from sdiareward.training.arguments import describe_settings, parse_arguments
from sdiareward.training.resuming import (
    ResumableTrainer,
    choose_checkpoint,
    record_settings,
    record_training_pairs,
)


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def flip(path):
    content = bytearray(path.read_bytes())
    content[content.index(torch.full([99], 7.0).numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


DAMAGES = {
    "model.safetensors": (cut, empty, Path.unlink),
    "optimizer.pt": (cut, Path.unlink, flip),
    "rng_state.pth": (empty,),
    "trainer_state.json": (cut, empty),
}


@pytest.fixture
def choose(tmp_path):
    """Write the checkpoints 9 and 10; return what chooses the one to resume from."""
    for step in (9, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file({"score.weight": torch.ones(9)}, folder / "model.safetensors")
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.save({"exp_avg": torch.full([99], 7.0)}, folder / name)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))

    def choose(named=None):
        training = SimpleNamespace(output_dir=str(tmp_path), resume_from_checkpoint=named)
        return choose_checkpoint(training, resume=named is None)

    return choose


CASES = [(name, damage) for name, damages in DAMAGES.items() for damage in damages]


@pytest.mark.parametrize(("name", "damage"), CASES, ids=[f"{name}-{damage.__name__}" for name, damage in CASES])
def test_of_a_damaged_checkpoint_the_one_before_is_taken(name, damage, choose, tmp_path, caplog):
    assert choose() == choose("True") == tmp_path / "checkpoint-10"
    newest, before = tmp_path / "checkpoint-10" / name, tmp_path / "checkpoint-9" / name
    damage(newest)
    assert choose() == choose("True") == tmp_path / "checkpoint-9"
    assert str(newest.parent) in caplog.text
    with pytest.raises(UserError, match="checkpoint-10"):
        choose(str(newest.parent))
    damage(before)
    with pytest.raises(UserError, match=f"{tmp_path}.* 2 checkpoints"):
        choose()


def test_an_unfinished_checkpoint_is_none(choose, tmp_path, caplog):
    (tmp_path / "checkpoint-10" / "trainer_state.json").unlink()
    assert choose() == tmp_path / "checkpoint-9"
    shutil.rmtree(tmp_path / "checkpoint-9")
    assert choose() is None and choose("no") is None
    assert not caplog.text


def test_a_damaged_best_checkpoint_is_forgotten_when_training_resumes(choose, tmp_path, caplog):
    class Trainer(ResumableTrainer, type("Begun", (), {"_init_training_state": lambda *_: None})):
        args = SimpleNamespace(load_best_model_at_end=True, logging_steps=1, eval_steps=1, save_steps=1)

    best = tmp_path / "checkpoint-9"
    trainer = Trainer()
    for kept in (str(best), None):
        trainer.state = TrainerState(best_model_checkpoint=str(best), best_metric=0.5, best_global_step=9)
        trainer._init_training_state(10)
        assert trainer.state.best_model_checkpoint == kept
        empty(best / "model.safetensors")
    assert trainer.state.best_metric is None and str(best) in caplog.text


def test_a_run_resumes_only_with_the_pairs_that_it_began_with(tmp_path):
    rows = datasets.Dataset.from_dict({"pair_id": ["a", "b"], "content": ["1 2", "3 4"]})
    swapped = datasets.Dataset.from_dict({"pair_id": ["a", "b"], "content": ["1 2", "4 3"]})
    training, checkpoint = SimpleNamespace(output_dir=str(tmp_path), process_index=0), tmp_path / "checkpoint-1"
    with pytest.raises(UserError, match="lacks .pairs.json"):
        record_training_pairs({"train": rows}, training, checkpoint)
    record_training_pairs({"train": rows}, training)
    record_training_pairs({"train": rows}, training, checkpoint)
    for other, counts in ((rows.select([0]), "2 pairs.*, now .1 pairs"), (swapped, "2 pairs.*, now .2 pairs")):
        with pytest.raises(UserError, match=f"began with different pairs .train was .{counts}.* in another output"):
            record_training_pairs({"train": other}, training, checkpoint)
    record_training_pairs({"train": rows.select([0])}, training)
    with pytest.raises(UserError, match="1 pairs.*, now .2 pairs"):
        record_training_pairs({"train": rows}, training, checkpoint)


RUN = {"num_train_epochs": 3, "save_steps": 3, "logging_steps": 4, "batch_tokens": 1200, "mode": "head"}
CHANGES = {
    **{"learning_rate": 1e-3, "lr_scheduler_type": "constant", "warmup_steps": 2, "weight_decay": 0.1},
    **{"optim": "sgd", "adam_beta2": 0.9, "max_grad_norm": 0.5, "label_smoothing_factor": 0.1, "seed": 5},
    **{"center_rewards_coefficient": 0.1, "data_seed": 5, "num_train_epochs": 4, "max_steps": 5, "max_length": 9},
    **{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "dataloader_drop_last": True},
    **{"through_backbone": True, "max_turn_s": 0.3, "augmentations": "channel", "validation_share": 0.2},
    **{"max_eval_samples": 2, "mode": "full", "model_name_or_path": "nano"},
}
SAME = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "save_steps": 2, "logging_steps": 1}


def test_a_resumed_run_refuses_by_name_what_it_cannot_change(make_flags, tmp_path, monkeypatch):
    checkpoint = tmp_path / "run" / "checkpoint-3"
    checkpoint.mkdir(parents=True)
    monkeypatch.setattr("sdiareward.training.arguments.fingerprint_model", str)

    def record(folder, checkpoint, **changes):
        args, training, model_args = parse_arguments(make_flags(folder, **{**RUN, **changes}))
        settings = describe_settings(args, training, model_args, model_args.model_name_or_path[-12:])
        record_settings(training, checkpoint, settings)

    record(tmp_path / "run", None)
    record(tmp_path / "run", checkpoint, **SAME, batch_tokens=500, dataset_name="moved")
    for name, value in CHANGES.items():
        # Also into another folder.
        with pytest.raises(UserError, match="train was" if name == "mode" else name):
            record(tmp_path / "other", checkpoint, **{name: value})
    (tmp_path / "run" / ".settings.json").unlink()
    with pytest.raises(UserError, match="lacks .settings.json"):
        record(tmp_path / "run", checkpoint)


def read_run(folder):
    return json.loads((folder / "run.json").read_text())


def plain(history):
    timed = ("runtime", "per_second", "resumed_from_step", "total_flos")
    return [{name: line[name] for name in line if not any(word in name for word in timed)} for line in history]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "lora", "head"])
def test_a_resumed_run_ends_as_an_undisturbed_one(mode, make_flags, tmp_path, bomb):
    output, options = tmp_path / "run", {**RUN, "mode": mode}
    assert main(make_flags(output, **options)) == 0
    expected, weights = read_run(output)["history"], load_file(output / "model.safetensors")
    # Step 3 is between two lines of the log; step 6 is the last.
    ways = {3: ("--resume_from_checkpoint", str(output / "checkpoint-3")), 6: ("--resume",)}
    for step in ways if mode == "head" else (3,):
        assert main(make_flags(output, *ways[step], **options)) == 0
        found = read_run(output)
        assert [line["resumed_from_step"] for line in found["history"] if "train_loss" in line] == [step]
        for line, other in zip(plain(found["history"]), plain(expected), strict=True):
            assert line == pytest.approx(other, abs=1e-9)
        again = load_file(output / "model.safetensors")
        assert all(torch.equal(again[name], weight) for name, weight in weights.items())
    assert not (output / "checkpoint-7").exists()
    if mode == "full":
        # The same steps, and settings that change no weight.
        assert main(make_flags(output, *ways[3], **{**options, **SAME, "batch_tokens": 500})) == 0
        assert [line["step"] for line in read_run(output)["history"] if "loss" in line] == [3, 4, 5, 6]
        assert (output / "checkpoint-4").is_dir()
    if mode == "head":
        # Whatever of a checkpoint is no safetensors is read by PyTorch, as numbers alone.
        content, trace = bomb
        with ZipFile(output / "checkpoint-3" / "optimizer.pt", "w") as archive:
            for part, of_part in (("data.pkl", content), ("version", "3"), ("byteorder", "little")):
                archive.writestr(f"optimizer/{part}", of_part)
        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            main(make_flags(output, *ways[3], **options))
        assert not trace.exists()


@pytest.mark.slow
def test_a_run_that_stopped_early_stops_where_it_did_when_it_resumes(make_flags, tmp_path):
    # No step lowers the loss: the second evaluation without a lower one ends the run.
    stop = {"early_stopping_patience": 2, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    output, options = tmp_path / "run", {**RUN, **stop, "learning_rate": 0}
    for resume in ((), ("--resume_from_checkpoint", str(output / "checkpoint-2")), ("--resume",)):
        assert main(make_flags(output, *resume, **options)) == 0
        assert max(line["step"] for line in read_run(output)["history"]) == 3
