"""No command writes to a folder that another one is writing to, or reads a data set that is being written."""

import errno

import pytest

from sdiareward.cli import main
from sdiareward.common.files import lock_folder


# `DIR` is the folder that is being written; no input exists, so a command that takes no lock reports that.
WRITING = {
    "score": "--dataset none.jsonl --output_dir DIR",
    "score --engine ray": "--dataset none.jsonl --output_dir DIR",
    "compare": "a b --output_dir DIR",
    "compare by default": "compare a b",
    "build bench": "none --output_dir DIR",
    "build filter": "none --output_dir DIR",
    "build release": "none --output_dir DIR",
    "build reconstruct": "none --output_dir DIR",
    "build stats": "none --output_dir DIR",
    "build stats of what is built": "build stats DIR",
    "build filter of what is built": "build filter DIR --output_dir other",
    "build chatreward rate": "none --ratings none.csv --output_dir DIR",
    "train": "--dataset_name none --output_dir DIR",
    "eval": "--dataset none --output_dir DIR",
    "train --recipe wavreward_sft": "--dataset none --output_dir DIR --use_cpu",
    "train --recipe wavreward_grpo": "--dataset none --output_dir DIR --use_cpu",
    "eval --recipe wavreward": "--model none --dataset none --output_dir DIR",
    "eval --recipe wavreward_reasoning": "--dataset none --judge none --predictions DIR",
    "audit": "--dataset none --output_dir DIR",
    "human sample": "none --output_dir DIR",
    "human ab": "none none --output_dir DIR",
    "human rate": "DIR",
    "push model": "none me/model --preview DIR",
    "build convert": "none DIR",
    "build convert --to vllm": "none DIR",
    "build convert of nano": "build convert nano DIR",
}


@pytest.mark.parametrize("command", WRITING)
def test_a_folder_that_is_being_written_is_refused(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ("compare-a-b" if "by default" in command else "run")
    words = WRITING[command].replace("DIR", folder.name).split()
    argv = words if words[0] in ("compare", "build") else [*command.split(), *words]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with lock_folder(folder):
        assert main(argv) == 2
    error = capsys.readouterr().err
    assert f"{folder.name}: another process is writing to this folder" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("reason", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_to(reason, tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(reason, "no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    with lock_folder(tmp_path / "run"):
        assert [path.name for path in tmp_path.rglob("*")] == ["run"]
