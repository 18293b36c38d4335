"""The files of a checkpoint; the tests run without the Hub (HF_HUB_OFFLINE)."""

import json

import pytest

from sdiareward.checkpoint_io.files import REMOTE_CODE, list_checkpoint_tensors, write_remote_code
from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.cli import main as command
from sdiareward.common.hub import ModelNotFoundError, fetch_snapshot
from sdiareward.common.package_files import NANO, PACKAGE
from sdiareward.eval import main as evaluate
from sdiareward.loading_sdiareward import list_tensors
from sdiareward.train import main as train


UNREACHABLE = (
    r"ORG/absent: is not a folder here; the Hub cannot be reached \(HF_HUB_OFFLINE is set\), and the model is not"
)


@pytest.mark.parametrize("read", [fingerprint_model, list_checkpoint_tensors])
def test_a_model_that_is_not_in_the_cache_is_reported_as_that(read):
    with pytest.raises(ModelNotFoundError, match=UNREACHABLE):
        read("ORG/absent")
    with pytest.raises(ModelNotFoundError, match="runs/nano/typo: no such file or folder"):
        read("runs/nano/typo")


def test_a_model_of_which_the_cache_lacks_the_weights_is_not_said_to_have_none(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--ORG--part" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (refs := tmp_path / "models--ORG--part" / "refs").mkdir()
    (refs / "main").write_text("abc")
    assert fetch_snapshot("ORG/part", ["config.json"]).name == "abc"
    with pytest.raises(ModelNotFoundError, match="ORG/part: .* not whole, in the cache"):
        list_checkpoint_tensors("ORG/part")
    with pytest.raises(FileNotFoundError, match="ORG/part: its weights are not in the cache"):
        list_tensors("ORG/part")


def run(main, *arguments):
    try:
        return main(list(map(str, arguments)))
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize("name", ["train", "eval", "score", "convert"])
def test_every_command_says_that_the_hub_cannot_be_reached(name, data_folder, tone_pairs, tmp_path, capsys):
    subsets = ["wild" if name == "modality" else name for name in tone_pairs["criterion"]]
    tone_pairs.add_column("subset", subsets).to_parquet(data_folder / "train.parquet")
    data, output = ("--dataset", data_folder), ("--output_dir", tmp_path / "out")
    commands = {
        "train": (train, "--model_name_or_path", "ORG/absent", *data, *output, "--use_cpu", "--bf16", "False"),
        "eval": (evaluate, "--model", "ORG/absent", *data, *output, "--split", "train", "--no_baselines"),
        "score": (
            command,
            name,
            "--model",
            "ORG/absent",
            *data,
            "--split",
            "train",
            "--output_dir",
            tmp_path / "s.jsonl",
        ),
        "convert": (command, name, "ORG/absent", tmp_path / "converted"),
    }
    assert run(*commands[name]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "error: ORG/absent: is not a folder here; the Hub cannot be reached (HF_HUB_OFFLINE is set)" in line


def test_what_describes_a_checkpoint_does_not_change_its_fingerprint_and_weights_do(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1")
    before = fingerprint_model(str(tmp_path))
    for name in ("README.md", "results.json", "run.json", "rewards.png"):
        (tmp_path / name).write_text(name)
    assert fingerprint_model(str(tmp_path)) == before
    (adapters := tmp_path / "adapters").mkdir()
    (adapters / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    on_base = fingerprint_model(str(adapters))
    (tmp_path / "model.safetensors").write_bytes(b"2")
    assert fingerprint_model(str(tmp_path)) != before
    assert fingerprint_model(str(adapters)) != on_base


def test_nano_holds_the_remote_code_of_the_package():
    for name in REMOTE_CODE:
        assert not (NANO / name).is_symlink(), f"{name} is a symbolic link; run make nano-code"
        assert (NANO / name).read_bytes() == (PACKAGE / name).read_bytes(), (
            f"{name} is out of date; run make nano-code"
        )


def test_the_remote_code_is_all_that_lies_beside_the_package_init():
    assert {path.name for path in PACKAGE.glob("*_sdiareward.py")} == set(REMOTE_CODE)


def test_writing_the_remote_code_replaces_a_symbolic_link(tmp_path):
    (tmp_path / "other.py").write_text("other")
    (tmp_path / REMOTE_CODE[0]).symlink_to(tmp_path / "other.py")
    write_remote_code(tmp_path)
    assert (tmp_path / "other.py").read_text() == "other"
    assert (tmp_path / REMOTE_CODE[0]).read_bytes() == (PACKAGE / REMOTE_CODE[0]).read_bytes()
