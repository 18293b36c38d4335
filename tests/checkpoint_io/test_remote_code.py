from sdiareward.checkpoint_io.files import REMOTE_CODE
from sdiareward.checkpoint_io.remote_code import write_remote_code
from sdiareward.common.package_files import NANO, PACKAGE


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
