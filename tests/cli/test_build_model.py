"""`sdiareward build-model` and the names of the package's models."""

import pytest

from sdiareward.checkpoint_io import models
from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.cli import main
from sdiareward.common.package_files import NANO
from sdiareward.scoring.model_spec import ModelSpec


def test_nano_is_written_as_it_lies_in_the_package(tmp_path, capsys):
    assert main(["build-model", "nano", str(tmp_path / "nano")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'nano'}\n"
    assert fingerprint_model(str(tmp_path / "nano")) == fingerprint_model(str(NANO))


def test_a_folder_that_holds_something_is_kept(tmp_path, capsys, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["build-model", "nano", str(tmp_path)]) == 2
    assert f"{tmp_path}: is there, and not empty; give a new folder." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main(["build-model", "nano", "."]) == 0
    assert (tmp_path / "empty" / "config.json").is_file()


@pytest.mark.slow
def test_an_untrained_nano_has_the_seed_that_was_given(tmp_path):
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(folders, ("0", "0", "1"), strict=True):
        assert main(["build-model", "nano", str(folder), "--untrained", "--seed", seed]) == 0
    first, again, other = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert first == again != other


def test_a_name_of_the_package_stands_for_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert models.find_checkpoint("nano") == str(NANO)
    assert ModelSpec("nano").checkpoint == str(NANO)
    assert models.find_checkpoint("owner/model") == "owner/model"
    # A folder of that name counts first.
    (tmp_path / "nano").mkdir()
    assert models.find_checkpoint("nano") == "nano"
