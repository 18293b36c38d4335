"""Read and write files and folders, JSON objects and JSON lines; lock folders."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from .errors import UserError


Item = TypeVar("Item")
LOCK_FILE = ".lock"
# A reader briefly holds the lock to check whether the folder is complete.
_WAIT_S = 0.2
# A dialogue has six levels; libraries crash at about ten thousand.
_MAX_JSON_DEPTH = 100
_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|([\[{])|[\]}]', re.DOTALL)


@contextmanager
def replace_atomically(path: Path, *, is_shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path and rename it to `path` when the block ends; an error leaves `path` unchanged.

    The file is synced before the rename: after a power failure, `path` has the old content or the new.
    """
    # With several writers, the last one wins.
    mark = f".{uuid4().hex}" if is_shared else ""
    temporary = path.with_name(f".{path.name}{mark}.tmp")
    _remove(temporary)
    try:
        yield temporary
        for each in (*temporary.rglob("*"), temporary):
            _sync(each)
        temporary.replace(path)
        _sync(path.parent)
    except BaseException:
        # Report the first error; on a failing disk the removal fails too.
        with suppress(OSError):
            _remove(temporary)
        raise


def _sync(path: Path) -> None:
    # Some systems cannot open or sync a folder.
    with nullcontext() if path.is_file() else suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_file(path: Path, content: str | bytes, *, is_shared: bool = False) -> None:
    """Write a file atomically, text as UTF-8."""
    with replace_atomically(path, is_shared=is_shared) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def require_other_folder(folder: str | Path, output: str | Path) -> None:
    if Path(folder).resolve() == Path(output).resolve():
        raise ValueError(f"{output}: this is the data set itself; choose another output folder.")


def require_new_folder(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder}: is not an empty folder, and nothing is overwritten; give a new one.")


def split_lines(text: str) -> list[str]:
    """Return the lines of a JSON Lines file; `str.splitlines` would also split at line separators inside strings."""
    return text.removesuffix("\n").split("\n") if text else []


def read_lines(path: str | Path, make: Callable[[Any], Item]) -> list[Item]:
    """Apply `make` to the JSON of each line; an error names the line."""
    items = []
    for number, line in enumerate(split_lines(Path(path).read_text(encoding="utf-8")), start=1):
        try:
            items.append(make(json.loads(line)))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: a field is missing or has the wrong type: {error!r}.") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return items


def format_line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


class JsonLines:
    """A file with one JSON object per line that survives a kill in the middle of a write."""

    def __init__(self, path: Path):
        self.path = path
        self._is_whole = False

    def read(self) -> list[dict[str, Any]]:
        """Return the complete lines and remove a torn last line; keep one that only lacks its newline."""
        self._cut_torn_line()
        if not self.path.exists():
            return []
        lines = enumerate(split_lines(self.path.read_text(encoding="utf-8")), start=1)
        return [parse_json_object(line, f"{self.path}, line {k}", "remove the line") for k, line in lines]

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the records and flush them to the operating system."""
        if not self._is_whole:
            self._cut_torn_line()
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(map(format_line, records)))

    def _cut_torn_line(self) -> None:
        self._is_whole = True
        content = self.path.read_bytes() if self.path.exists() else b""
        if last := content[content.rfind(b"\n") + 1 :]:
            with self.path.open("ab") as file:
                try:
                    json.loads(last)
                    file.write(b"\n")
                except ValueError:
                    file.truncate(len(content) - len(last))


def read_text(path: Path, what: str) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such {what}.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error}); save it as UTF-8.") from error


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; raise `ValueError` if it is malformed or nested too deeply."""
    require_shallow(text)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{error}{explain_escape(error)}") from error


def explain_escape(error: Exception) -> str:
    return "; write paths with forward slashes" if "escape" in str(error) else ""


def require_shallow(text: str | bytes) -> None:
    """Raise `ValueError` for JSON with deep nesting, malformed or not."""
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if content.count(b"[") + content.count(b"{") <= _MAX_JSON_DEPTH:
        return
    depth = 0
    for found in _BRACKETS.finditer(content):
        depth += 1 if found[1] else -(found[0] in b"]}")
        if depth > _MAX_JSON_DEPTH:
            raise ValueError(f"JSON is nested deeper than {_MAX_JSON_DEPTH} levels at byte {found.start()}")


def read_json_object(path: Path, remedy: str) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; {remedy}.")
    return parse_json_object(path.read_bytes(), str(path), remedy)


def parse_json_object(text: str | bytes, label: str, remedy: str) -> dict[str, Any]:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{label}: not JSON ({error}); {remedy}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{label}: found a {type(content).__name__}, not an object; {remedy}.")
    return content


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a finite number in the range of a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def hash_json(value: Any) -> str:
    """Return the SHA-256 of a JSON value, in hexadecimal; bytes in it are replaced by their hash."""
    text = json.dumps(value, sort_keys=True, default=lambda data: hashlib.sha256(data).hexdigest())
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Lock a folder until the process ends, even if it is killed; only the main process of a run takes the lock."""
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    place = Path(folder).resolve()
    new = [each for each in (place, *place.parents) if not each.exists()]
    place.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as held:
            # Some commands need an empty folder. The parent of a mounted volume may be read-only.
            if not _acquire(place.with_name(f".{place.name}{LOCK_FILE}"), folder, held):
                _acquire(place / LOCK_FILE, folder, held)
            yield
    finally:
        # Remove the folder of a run that wrote nothing.
        with suppress(OSError):
            for each in new:
                each.rmdir()


def require_unlocked(folder: str | Path) -> None:
    """Raise `UserError` if another process is writing to a folder."""
    if Path(folder).is_dir():
        with lock_folder(folder):
            pass


def _acquire(path: Path, folder: str | Path, held: ExitStack) -> bool:
    """Return whether a lock file could be written; a read-only folder needs no lock."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=_WAIT_S)
    try:
        lock.acquire()
    except Timeout:
        reason = "another process is writing to this folder; wait, stop it, or choose another output."
        raise UserError(f"{folder}: {reason}") from None
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            # The file system does not support locks.
            path.unlink(missing_ok=True)
        elif error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        return False
    held.callback(lock.release)
    held.callback(path.unlink, missing_ok=True)
    return True
