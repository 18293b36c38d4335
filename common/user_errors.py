"""What keeps a run from going on, to be said in one line: a full disk, a folder in use, a lost connection, no data.

Each ends the command with one line that says what to do. What is finished stays on disk, so that the same command goes
on once the hindrance is gone; `benchmarks/faults.py` tries it.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager


_AGAIN = "run the same command again: what is finished is kept"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Of an input or of an output: the system does not say which.
_NOT_ALLOWED = (errno.EACCES, errno.EPERM)
_REMEDIES = {
    **dict.fromkeys(_NO_ROOM, "make room on its disk"),
    **dict.fromkeys(_NOT_ALLOWED, "allow it to be read or written, or name another"),
    errno.EROFS: "make it writable or name another output",
    errno.EIO: "look after its disk",
    errno.ENOENT: "put it back",
}
# How torch.save says that a write failed, whatever the reason, and how Rust names what the system said.
_TORCH_WRITER = re.compile(r"PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
# Module -> what it raises when nobody answers, or no longer.
_LOST_CONNECTIONS = (
    ("builtins", "ConnectionError"),
    ("httpx", "TransportError"),
    ("httpx2", "TransportError"),
    ("requests", "ConnectionError"),
    ("huggingface_hub.errors", "LocalEntryNotFoundError"),
)


class RunBlockedError(RuntimeError):
    """Raised for what keeps a run from going on, with a message for the user in one line."""


@contextmanager
def exit_on_user_error(command: str) -> Iterator[None]:
    """End the process with one line and status 2 if a run is hindered; decorates `main`.

    Args:
        command (`str`): Name of the command, with which the line begins.

    Raises:
        SystemExit: The run was hindered.
    """
    try:
        yield
    except Exception as error:
        line = format_user_error(error)
        if line is None:
            raise
        sys.stderr.write(f"{command}: error: {line}\n")
        raise SystemExit(2) from error


def format_user_error(error: BaseException) -> str | None:
    """Return what hinders a run and what to do, in one line; None for an error of another kind.

    Args:
        error (`BaseException`): What was raised. That a file cannot be written, a library may say in its own words.
    """
    # A command of `sdiareward` that makes an error for its input of one says it itself.
    if _is_of(error, "sdiareward.pairs.loading", "PairsError"):
        return str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RunBlockedError):
            return str(cause)
        if found := _explain_recording(cause) or _explain_disk(cause) or _explain_network(cause):
            return found
        # An error of the system that has no number was made by a library, of the one that it was about to handle.
        is_made = isinstance(cause, OSError) and cause.errno is None
        cause = cause.__cause__ or (cause.__context__ if is_made else None)
    return None


def _explain_recording(error: BaseException) -> str | None:
    """Return that a recording cannot be read, any more, where that is no pair's own affair."""
    if not _is_of(error, "sdiareward.audio_sdiareward", "AudioError"):
        return None
    return f"{str(error).rstrip('.')}; see to that recording, then {_AGAIN}."


def _is_of(error: BaseException, module: str, kind: str) -> bool:
    """Return whether an error is of a kind, without importing what defines it."""
    return isinstance(error, getattr(sys.modules.get(module), kind, ()))


def _explain_disk(error: BaseException) -> str | None:
    """Return what the disk refused, if that is what an error says."""
    text = " ".join(str(error).split())
    if found := _TORCH_WRITER.search(text):
        return f"a file cannot be written ({found[0]}); {_REMEDIES[errno.ENOSPC]}, then {_AGAIN}."
    code, name = None, None
    if isinstance(error, OSError):
        code, name = error.errno, error.filename
    elif found := _OS_ERROR.search(text):
        code = int(found[1])
    if code not in _REMEDIES:
        return None
    return f"{name or 'an output file'}: {os.strerror(code)}; {_REMEDIES[code]}, then {_AGAIN}."


def _explain_network(error: BaseException) -> str | None:
    """Return that the connection failed, if that is what an error says; of libraries only what is imported."""
    if not any(_is_of(error, module, kind) for module, kind in _LOST_CONNECTIONS):
        return None
    return f"the connection failed ({type(error).__name__}: {' '.join(str(error).split())}); check it, then {_AGAIN}."


class PairsError(ValueError):
    """Raised for data that are no pairs, or lack what was asked for; says so in one line."""


class PairsNotFoundError(PairsError, FileNotFoundError):
    """Raised where there are no data at all."""
