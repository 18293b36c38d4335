import json
from pathlib import Path

import pytest

from sdiareward.cli import env, main
from sdiareward.common import optional_dependencies
from sdiareward.common.package_files import EXAMPLES, NANO
from sdiareward.scoring.tolerances import SAME_REWARD


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
    monkeypatch.setattr(env, "RECORDED", tmp_path / "rewards.json")
    assert main(["env"]) == status
    rewards = [line for line in capsys.readouterr().out.splitlines() if line.startswith("reward ")]
    assert " as recorded: nano on examples/human.json" in rewards[0]
    assert ("DIFFERS from the recorded" in rewards[1]) == bool(status)


def test_another_version_and_a_missing_extra_stand_beside_what_to_do(tmp_path, monkeypatch, capsys):
    (tmp_path / "constraints.txt").write_text("# tested\ntorch==0.1\n")
    monkeypatch.setattr(env, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setitem(optional_dependencies.EXTRAS, "demo", ("gradio", "no_such_module"))
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (torch,) = (line for line in lines if line.startswith("torch "))
    assert torch.endswith(", tested with 0.1")
    (numpy,) = (line for line in lines if line.startswith("numpy "))
    assert "tested with" not in numpy
    (extra,) = (line for line in lines if "sdiareward[demo]" in line)
    assert extra.endswith('lacks no_such_module; if wanted, pip install "sdiareward[demo]"')
