"""User errors are printed in one line, and one process at a time writes to a folder."""

import errno
import os
import resource
import subprocess
import sys

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from sdiareward.audio_sdiareward import AudioError
from sdiareward.chat_sdiareward import DialogueError
from sdiareward.common.locks import LOCK_FILE, lock_folder
from sdiareward.common.user_errors import UserError, format_user_error


HOLD = """
import sys
from sdiareward.common.locks import lock_folder
with lock_folder(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """Return a function that starts a process which holds a folder until its stdin ends."""
    started = []

    def start(folder):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_folder_that_another_process_writes_to_is_refused_and_free_when_that_was_killed(hold, tmp_path):
    holder = hold(tmp_path / "run")
    with (
        pytest.raises(UserError, match="run: another process is writing to this folder; wait"),
        lock_folder(tmp_path / "run"),
    ):
        pass
    holder.kill()
    holder.wait()
    assert (tmp_path / f".run{LOCK_FILE}").exists()
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run" / "result").touch()
    assert os.listdir(tmp_path / "run") == ["result"]
    assert os.listdir(tmp_path) == ["run"]


def test_two_folders_do_not_disturb_each_other(hold, tmp_path):
    hold(tmp_path / "one")
    with lock_folder(tmp_path / "two"):
        assert (tmp_path / f".two{LOCK_FILE}").exists()
        with pytest.raises(UserError, match="another process"), lock_folder(tmp_path / "one"):
            pass


def test_a_run_that_wrote_nothing_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="bad input"), lock_folder(tmp_path / "new"):
        raise ValueError("bad input")
    (tmp_path / "old").mkdir()
    with lock_folder(tmp_path / "old"):
        pass
    assert os.listdir(tmp_path) == ["old"]


WRITERS = {
    "python": lambda path: path.write_bytes(b"x" * 8000),
    "arrow": lambda path: pq.write_table(pa.table({"a": [os.urandom(8000)]}), path),
    "rust": lambda path: save_file({"a": torch.zeros(2000)}, path),
    "torch": lambda path: torch.save({"a": torch.zeros(2000)}, path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_no_room_for_a_file_is_understood_in_the_words_of_every_library_that_writes(write, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(Exception) as caught:  # noqa: B017, PT011
            write(tmp_path / "large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "make room on its disk, then run the same command again" in format_user_error(caught.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EROFS, "", "a/b"), "a/b: Read-only file system; make it writable or name another output"),
        (PermissionError(errno.EACCES, "", "a"), "a: Permission denied; allow it to be read or written"),
        (OSError(errno.EFBIG, "", "a"), "a: File too large; make room"),
        (OSError(errno.EIO, "", "a"), "a: Input/output error; look after its disk"),
        (ConnectionResetError("gone"), "the connection failed (ConnectionResetError: gone); check it, then"),
        (httpx.ConnectError("nobody"), "the connection failed (ConnectError: nobody); check it"),
        (UserError("as it says."), "as it says."),
        (ValueError("the disk says: No space left on device"), None),
        (FileNotFoundError(errno.ENOENT, "", "a"), "a: No such file or directory; put it back, then run the same"),
        (FileExistsError(errno.EEXIST, "", "a"), "a: File exists; move that file away or name another output"),
        (IsADirectoryError(errno.EISDIR, "", "a"), "a: Is a directory; move that folder away"),
        (NotADirectoryError(errno.ENOTDIR, "", "a/b"), "a/b: Not a directory; move that file away"),
        (OSError(errno.ENAMETOOLONG, "", "a"), "a: File name too long; give it a shorter name"),
        (DialogueError("has no turns.", 2, "d.json"), "d.json, turn 2: has no turns."),
        (FileNotFoundError("a: no such file."), None),
        (AudioError("a.wav: no such audio file."), "a.wav: no such audio file; see to that recording, then run"),
    ],
)
def test_a_user_error_is_told_from_a_bug(error, said):
    found = format_user_error(error)
    assert found is None if said is None else found.startswith(said)


def test_the_reason_is_found_behind_what_a_library_made_of_it():
    try:
        try:
            raise OSError(errno.ENOSPC, "", "cache/a.arrow")
        except OSError as error:
            raise RuntimeError("the data set cannot be generated") from error
    except RuntimeError as error:
        assert format_user_error(error).startswith("cache/a.arrow: No space left on device")


def test_the_reason_is_found_where_a_library_does_not_pass_it_on():
    with pytest.raises(OSError) as caught:
        try:
            raise httpx.ConnectError("nobody")
        except httpx.ConnectError:
            raise OSError("cannot load the configuration")  # noqa: B904
    assert format_user_error(caught.value).startswith("the connection failed (ConnectError: nobody)")
    with pytest.raises(ValueError, match="bad row") as caught:
        try:
            raise httpx.ConnectError("nobody")
        except httpx.ConnectError:
            raise ValueError("bad row")  # noqa: B904
    assert format_user_error(caught.value) is None
