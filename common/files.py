"""Read and write files: whole files and folders, JSON objects, JSON lines. Imports the standard library only."""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import re
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4


logger = logging.getLogger(__name__)
_CHECKSUM_NAME = b"crc32"
# At most; the numbers of a line need not be searched.
_CHECKSUM_LENGTH = 32
_CHECKSUM = re.compile(rb'(?:, )?"crc32": ([0-9]+)}\s*\Z')
# A dialogue has six levels; libraries end the process at some ten thousand.
_MAX_JSON_DEPTH = 100
_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|([\[{])|[\]}]', re.DOTALL)


@contextmanager
def replace_atomically(path: Path, *, is_shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path, renamed to `path` when the block ends; after an error `path` is unchanged.

    It is on the disk before it is renamed: a power failure leaves the old content or the new one.
    """
    # Of several writers the last one wins.
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
        # The first error counts; on a disk that fails, the removal fails too.
        with suppress(OSError):
            _remove(temporary)
        raise


def _sync(path: Path) -> None:
    # A system may not be able to open a folder, or to sync it.
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
    """Write a file, text as UTF-8, so that a reader sees all of it or none."""
    with replace_atomically(path, is_shared=is_shared) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def require_other_folder(folder: str | Path, output: str | Path) -> None:
    if Path(folder).resolve() == Path(output).resolve():
        raise ValueError(f"{output}: is the data set itself; write to another folder.")


def split_lines(text: str) -> list[str]:
    """Return the lines of a JSON Lines file; `str.splitlines` would cut at line separators within texts too."""
    return text.removesuffix("\n").split("\n") if text else []


def seal(record: Mapping[str, Any]) -> str:
    """Return a record as a line of JSON that ends with its checksum, `crc32`."""
    text = json.dumps(record, ensure_ascii=False)
    return f'{text[:-1]}{", " if record else ""}"crc32": {zlib.crc32(text.encode())}}}\n'


def unseal(content: bytes) -> bytes | None:
    """Return the JSON of `seal` without its checksum, which need not be there; None if the content is damaged."""
    found = _CHECKSUM.search(content, len(content) - _CHECKSUM_LENGTH)
    if found is None:
        return content
    content = content[: found.start()] + b"}"
    return content if zlib.crc32(content) == int(found[1]) else None


def read_sealed(path: Path) -> dict[str, Any]:
    """Return the record of a file that `seal` made; an empty one, to be made again, if it is absent or damaged."""
    if not path.is_file():
        return {}
    with suppress(ValueError, RecursionError):
        record = json.loads(unseal(path.read_bytes()) or b"")
        if isinstance(record, dict):
            return record
    logger.warning("%s: is damaged; it is made again.", path)
    return {}


class JsonLines:
    """A file of one JSON object per line that survives being killed in the middle of a line.

    A line has a checksum, unless the file is one that users edit. A damaged line is logged and not read.
    """

    def __init__(self, path: Path, *, is_edited: bool = False):
        self.path = path
        self._format = _format if is_edited else seal
        self._is_whole = False

    def read(self) -> list[dict[str, Any]]:
        """Return the complete lines and remove a torn last line; one that lacks only its line end stays."""
        return list(self)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists() or not self.path.stat().st_size:
            return
        self._cut_torn_line()
        self._is_whole = True
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if (record := self._parse(line, number)) is not None:
                    yield record

    def _cut_torn_line(self) -> None:
        # A file that may only be read, and is complete, must be readable.
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            complete = content.rfind(b"\n") + 1
            tail = content[complete:]
        if not tail:
            return
        with self.path.open("ab") as end:
            try:
                self._parse(tail, 0)
            except ValueError:
                end.truncate(complete)
            else:
                end.write(b"\n")

    def _parse(self, line: bytes, number: int) -> dict[str, Any] | None:
        content = unseal(line)
        try:
            record = parse_json(content or b"")
        except ValueError as error:
            if number and _CHECKSUM_NAME in line:
                logger.warning("%s, line %d: is damaged; it is not read.", self.path, number)
                return None
            raise ValueError(f"{self.path}, line {number}: not JSON ({error}); remove the line.") from error
        if not isinstance(record, dict):
            found = type(record).__name__
            raise ValueError(f"{self.path}, line {number}: holds a {found}, not an object; remove the line.")
        return record

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the records and hand them to the operating system before returning."""
        if not self._is_whole and self.path.exists() and self.path.stat().st_size:
            self._cut_torn_line()
        self._is_whole = True
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(map(self._format, records)))


def _format(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def read_text(path: Path, what: str) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such {what}.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text ({error}); save it as UTF-8.") from error


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
    """Raise `ValueError` for JSON that is nested deeper than any of ours, malformed or not."""
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
    try:
        content = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); {remedy}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a {type(content).__name__}, not an object; {remedy}.")
    return content


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a finite number in the range of a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def hash_json(value: Any) -> str:
    """Return the SHA-256 of a JSON value, in hexadecimal; bytes within it count by their own hash."""
    text = json.dumps(value, sort_keys=True, default=lambda data: hashlib.sha256(data).hexdigest())
    return hashlib.sha256(text.encode()).hexdigest()
