"""The files of a checkpoint; the tests run without the Hub (HF_HUB_OFFLINE)."""

import json

import pytest

from sdiareward.checkpoint_io.files import REMOTE_CODE, list_checkpoint_tensors, write_remote_code
from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.common.hub import ModelNotFoundError
from sdiareward.common.package import NANO, PACKAGE


UNREACHABLE = (
    r"ORG/absent: is not a folder here; the Hub cannot be reached \(HF_HUB_OFFLINE is set\), and the model is not"
)


@pytest.mark.parametrize("read", [fingerprint_model, list_checkpoint_tensors])
def test_a_model_that_is_not_in_the_cache_is_reported_as_that(read):
    with pytest.raises(ModelNotFoundError, match=UNREACHABLE):
        read("ORG/absent")
    with pytest.raises(ModelNotFoundError, match="runs/nano/typo: no such file or folder"):
        read("runs/nano/typo")


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


def test_nano_is_small_and_holds_the_remote_code_whose_writing_replaces_a_symbolic_link(tmp_path):
    assert (NANO / "model.safetensors").stat().st_size <= 30_000_000
    for name in REMOTE_CODE:
        assert not (NANO / name).is_symlink(), f"{name} is a symbolic link; run make nano-code"
        assert (NANO / name).read_bytes() == (PACKAGE / name).read_bytes(), f"{name} is old; run make nano-code"
    (tmp_path / "other.py").write_text("other")
    (tmp_path / REMOTE_CODE[0]).symlink_to(tmp_path / "other.py")
    write_remote_code(tmp_path)
    assert (tmp_path / "other.py").read_text() == "other"
    assert (tmp_path / REMOTE_CODE[0]).read_bytes() == (PACKAGE / REMOTE_CODE[0]).read_bytes()


def test_the_remote_code_is_all_that_lies_beside_the_package_init():
    assert {path.name for path in PACKAGE.glob("*_sdiareward.py")} == set(REMOTE_CODE)
