"""Read foreign tables, manifests and clips so that a bad line or file is skipped alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sdiareward.common.errors import Skipped
from sdiareward.common.files import parse_json
from sdiareward.pairs.path_sandbox import describe_link, resolve_inside

from ..episodes import SkipError


_Item = TypeVar("_Item")
# Windows-1252 puts quotes and dashes where Unicode has control characters that no transcript means.
_WINDOWS_CHARACTERS = {
    code: bytes([code]).decode("cp1252") for code in range(0x80, 0xA0) if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}


def find_clip(root: Path, relative: str) -> Path:
    """Return the file `root / relative`; raise `SkipError` if there is none."""
    try:
        path = resolve_inside(root, relative)
        size = path.stat().st_size if path.is_file() else None
    except ValueError as error:
        raise SkipError("outside_root", str(error)) from error
    except OSError as error:
        raise SkipError("missing_audio", f"{relative}: {error.strerror}; a readable file is needed.") from error
    if size is None:
        link = "; write it with forward slashes" if "\\" in repr(relative) else describe_link(path, root)
        raise SkipError("missing_audio", f"{relative}: no such file under {root}{link}.")
    if size == 0:
        raise SkipError("empty_audio", f"{relative}: has 0 bytes; get the file again.")
    return path


def require_file(root: Path, relative: str) -> Path:
    path = resolve_inside(root, relative)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found; get the corpus as the card of its source describes.")
    return path


def read_json_lines(
    path: Path, label: str, read: Callable[[dict[str, Any], str], Iterable[_Item]]
) -> Iterator[_Item | Skipped]:
    """Yield what `read` makes of each line's object and name; a `Skipped` for a line that is none or raises it."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            item = f"{label} {path.name} line {number}"
            try:
                if line.strip():
                    yield from read(_parse_line(line), item)
            except SkipError as error:
                yield Skipped(item, error.kind, str(error))


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        value = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        reason = f"byte {line[error.start]:#04x} at {error.start}: save the file as UTF-8."
        raise SkipError("not_utf8", reason) from error
    except ValueError as error:
        raise SkipError("not_json", f"{error}; one JSON object a line is needed.") from error
    if not isinstance(value, dict):
        raise SkipError("not_json", f"found {type(value).__name__}; one JSON object a line is needed.")
    return value


def decode_table_line(line: bytes) -> str:
    """Decode a line of a table that may be UTF-8, Windows-1252, or one saved as the other."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = line.decode("latin-1")
    return text.translate(_WINDOWS_CHARACTERS)
