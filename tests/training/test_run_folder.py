from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from datasets import Dataset

from sdiareward.common.user_errors import UserError
from sdiareward.training.run_folder import record_training_pairs, resolve_base_model


def test_a_run_resumes_only_with_the_pairs_that_it_began_with(tmp_path):
    rows = Dataset.from_dict({"pair_id": ["a", "b"], "content": ["1 2", "3 4"]})
    whole, less = {"train": rows}, {"train": rows.select([0])}
    swapped = {"train": Dataset.from_dict({"pair_id": ["a", "b"], "content": ["1 2", "4 3"]})}
    training = SimpleNamespace(output_dir=str(tmp_path), process_index=0)
    checkpoint = tmp_path / "checkpoint-1"
    record_training_pairs(whole, training, checkpoint)
    record_training_pairs(whole, training, checkpoint)
    with pytest.raises(UserError, match="began with other pairs .2 of train, now 1.: .* in another output"):
        record_training_pairs(less, training, checkpoint)
    with pytest.raises(UserError, match="began with other pairs .2 of train, now 2."):
        record_training_pairs(swapped, training, checkpoint)
    record_training_pairs(less, training)
    with pytest.raises(UserError, match="1 of train, now 2"):
        record_training_pairs(whole, training, checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize("process_index", [0, 1])
def test_the_main_process_builds_nano(process_index, tmp_path):
    order = []

    @contextmanager
    def main_process_first(local):
        order.append("waited")
        assert not local
        yield
        order.append("resumed")

    training = SimpleNamespace(
        output_dir=str(tmp_path), seed=0, process_index=process_index, main_process_first=main_process_first
    )
    assert resolve_base_model("nano", training) == str(tmp_path / "init")
    assert (tmp_path / "init" / "model.safetensors").exists() == (process_index == 0)
    assert order == ["waited", "resumed"]


def test_small_is_the_checkpoint_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr("sdiareward.training.run_folder.find_checkpoint", {"small": str(tmp_path)}.get)
    assert resolve_base_model("small", SimpleNamespace()) == str(tmp_path)
