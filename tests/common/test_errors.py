"""User errors are printed in one line with a remedy; other errors are bugs."""

import errno
import os
import resource

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from sdiareward.audio_sdiareward import AudioError
from sdiareward.chat_sdiareward import DialogueError
from sdiareward.common.errors import UserError, format_user_error


WRITERS = {
    "python": lambda path: path.write_bytes(b"x" * 8000),
    "arrow": lambda path: pq.write_table(pa.table({"a": [os.urandom(8000)]}), path),
    "rust": lambda path: save_file({"a": torch.zeros(2000)}, path),
    "torch": lambda path: torch.save({"a": torch.zeros(2000)}, path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_is_recognised_whichever_library_writes(write, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(Exception) as caught:  # noqa: B017, PT011
            write(tmp_path / "large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "free some disk space, then run the same command again" in format_user_error(caught.value)


def wrap(error, outer, *, is_cause=True):
    """Return an error that a library raised from another one, or while it handled it."""
    try:
        try:
            raise error
        except type(error):
            if is_cause:
                raise outer from error
            raise outer  # noqa: B904
    except type(outer) as found:
        return found


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.EROFS, "", "a/b"), "a/b: Read-only file system; make it writable or choose another output"),
        (PermissionError(errno.EACCES, "", "a"), "a: Permission denied; fix its permissions"),
        (OSError(errno.EIO, "", "a"), "a: Input/output error; check the disk"),
        (ConnectionResetError("gone"), "the connection failed (ConnectionResetError: gone); check your network, then"),
        (httpx.ConnectError("nobody"), "the connection failed (ConnectError: nobody); check your network"),
        (UserError("as it says."), "as it says."),
        (ValueError("the disk says: No space left on device"), None),
        (FileNotFoundError(errno.ENOENT, "", "a"), "a: No such file or directory; restore it, then run the same"),
        (FileExistsError(errno.EEXIST, "", "a"), "a: File exists; move that file away or choose another output"),
        (OSError(errno.ENAMETOOLONG, "", "a"), "a: File name too long; give it a shorter name"),
        (DialogueError("has no turns.", 2, "d.json"), "d.json, turn 2: has no turns."),
        (FileNotFoundError("a: no such file."), None),
        (AudioError("a.wav: no such audio file."), "a.wav: no such audio file; replace that recording, then run"),
        (wrap(OSError(errno.ENOSPC, "", "c/a.arrow"), RuntimeError("x")), "c/a.arrow: No space left on device"),
        (wrap(httpx.ConnectError("nobody"), OSError("x"), is_cause=False), "the connection failed (ConnectError: nob"),
        (wrap(httpx.ConnectError("nobody"), ValueError("bad row"), is_cause=False), None),
    ],
)
def test_a_user_error_is_separated_from_a_bug(error, line):
    found = format_user_error(error)
    assert found is None if line is None else found.startswith(line)
