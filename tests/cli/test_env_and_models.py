"""`sdiareward env`, `sdiareward build convert` of nano, and the names of the package's models."""

import json
import sys
from pathlib import Path

import pytest

from sdiareward.checkpoint_io import models
from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.cli import main
from sdiareward.common.package import EXAMPLES, NANO
from sdiareward.scoring.outcomes import SAME_REWARD


# The function of this name hides the module in its package.
ENV = sys.modules["sdiareward.cli.env"]


@pytest.fixture(scope="module")
def recorded():
    return json.loads((EXAMPLES / "rewards.json").read_text(encoding="utf-8"))


def shift(recorded, difference):
    """Return the recorded rewards with the second one moved."""
    first, second = recorded["dialogues"]
    return {**recorded, "dialogues": [first, {**second, "reward": second["reward"] + difference}]}


def test_the_recorded_rewards_are_what_the_score_command_prints(recorded, capsys, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    files = ["examples/human.json", "examples/synthetic.json"]
    assert main(["score", *files, "--criterion", "modality", "--dtype", "float32", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["path"] for each in found["dialogues"]] == [each["path"] for each in recorded["dialogues"]] == files
    for now, then in zip(found["dialogues"], recorded["dialogues"], strict=True):
        assert now["reward"] == pytest.approx(then["reward"], abs=1e-5)


def test_the_report_fits_a_screen_and_shows_neither_a_token_nor_a_path(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    assert main(["env"]) == 0
    report = capsys.readouterr().out
    assert len(report.splitlines()) <= 24
    names = [line.split()[0] for line in report.splitlines()]
    assert names[:5] == ["python", "sdiareward", "torch", "transformers", "trl"]
    assert {"cpu", "reward"} <= set(names)
    assert report.count(" as recorded: nano on examples/") == 2
    assert not any(secret in report for secret in ("hf_", str(Path.home()), str(NANO.parent)))


@pytest.mark.parametrize(("share", "status"), [(0.5, 0), (2.0, 1), (-2.0, 1)])
def test_a_reward_off_by_more_than_the_tolerance_is_named_and_sets_the_exit_status(
    share, status, recorded, tmp_path, monkeypatch, capsys
):
    moved = shift(recorded, share * SAME_REWARD["float32"])
    (tmp_path / "rewards.json").write_text(json.dumps(moved))
    monkeypatch.setattr(ENV, "RECORDED", tmp_path / "rewards.json")
    assert main(["env"]) == status
    rewards = [line for line in capsys.readouterr().out.splitlines() if line.startswith("reward ")]
    assert " as recorded: nano on examples/human.json" in rewards[0]
    assert ("DIFFERS from the recorded" in rewards[1]) == bool(status)


def test_another_version_and_a_missing_extra_stand_beside_what_to_do(tmp_path, monkeypatch, capsys):
    (tmp_path / "constraints.txt").write_text("# tested\ntorch==0.1\n")
    monkeypatch.setattr(ENV, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setattr(ENV, "read_extras", lambda: {"demo": ("gradio", "no_such_module")})
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (torch,) = (line for line in lines if line.startswith("torch "))
    assert torch.endswith(", tested with 0.1")
    (numpy,) = (line for line in lines if line.startswith("numpy "))
    assert "tested with" not in numpy
    (extra,) = (line for line in lines if "sdiareward[demo]" in line)
    assert extra.endswith('lacks no_such_module; if wanted, pip install "sdiareward[demo]"')


def test_nano_is_written_as_it_lies_in_the_package(tmp_path, capsys):
    assert main(["build", "convert", "nano", str(tmp_path / "nano")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'nano'}\n"
    assert fingerprint_model(str(tmp_path / "nano")) == fingerprint_model(str(NANO))


def test_a_folder_that_holds_something_is_kept(tmp_path, capsys, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["build", "convert", "nano", str(tmp_path)]) == 2
    assert f"{tmp_path}: is not an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main(["build", "convert", "nano", "."]) == 0
    assert (tmp_path / "empty" / "config.json").is_file()


def test_a_name_of_the_package_stands_for_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert models.find_checkpoint("nano") == str(NANO)
    # A folder of that name counts first.
    (tmp_path / "nano").mkdir()
    assert models.find_checkpoint("nano") == "nano"
