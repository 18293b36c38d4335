"""A damaged checkpoint is not resumed from, whatever is damaged in it: the one before is, and that is logged."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from transformers import TrainerState

from sdiareward.common.user_errors import UserError
from sdiareward.training.resuming import ResumableTrainer, choose_checkpoint


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def flip(path):
    content = bytearray(path.read_bytes())
    content[content.index(torch.full([99], 7.0).numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


DAMAGES = {
    "model.safetensors": (cut, empty, remove),
    "optimizer.pt": (cut, empty, remove, flip),
    "scheduler.pt": (cut, flip),
    "rng_state.pth": (cut, empty),
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
        return choose_checkpoint(training, resume=named is None, has_adapters=False)

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


def test_a_checkpoint_that_was_not_written_to_its_end_is_none(choose, tmp_path, caplog):
    (tmp_path / "checkpoint-10" / "trainer_state.json").unlink()
    assert choose() == tmp_path / "checkpoint-9"
    shutil.rmtree(tmp_path / "checkpoint-9")
    assert choose() is None
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
