"""Read manifests and clips, skipping only bad lines and files; write lines with a language model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sdiareward.common.errors import Skipped
from sdiareward.common.files import JsonLines, parse_json, read_lines
from sdiareward.common.llm import ChatClient, ChatError, FailureLimit
from sdiareward.pairs.path_sandbox import describe_link, resolve_inside

from ..episodes import SkipError


_Item = TypeVar("_Item")


def find_clip(root: Path, relative: str) -> Path:
    """Return the file `root / relative`; raise `SkipError` if there is none."""
    try:
        path = resolve_inside(root, relative)
    except ValueError as error:
        raise SkipError("outside_root", str(error)) from error
    if not os.path.isfile(path):
        link = "; write it with forward slashes" if "\\" in repr(relative) else describe_link(path, root)
        raise SkipError("missing_audio", f"{relative:.200}: no such file under {root}{link}.")
    if not os.path.getsize(path):
        raise SkipError("empty_audio", f"{relative}: has 0 bytes; get the file again.")
    return path


def require_file(root: Path, relative: str) -> Path:
    path = resolve_inside(root, relative)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{str(path):.200}: not found; get the corpus as described in the card of its source.")
    return path


def read_json_lines(
    path: Path, label: str, read: Callable[[dict[str, Any], str], Iterable[_Item]]
) -> Iterator[_Item | Skipped]:
    """Yield the items that `read` makes from each line's object and name; a `Skipped` for each bad line."""
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
        raise SkipError("not_utf8", f"byte {line[error.start]:#04x} at {error.start}: save it as UTF-8.") from error
    except ValueError as error:
        raise SkipError("not_json", f"{error}; give one JSON object per line.") from error
    if not isinstance(value, dict):
        raise SkipError("not_json", f"found {type(value).__name__}; give one JSON object per line.")
    return value


def read_scenario_lines(path: str | Path, make: Callable[[Any], _Item]) -> list[_Item]:
    """Read a JSONL file of scenarios with unique `scenario_id`."""
    scenarios: list[Any] = read_lines(path, make)
    counts = Counter(scenario.scenario_id for scenario in scenarios)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"{path}: scenario_id {twice[:5]} is repeated; make them unique.")
    return scenarios


def write_lines(
    path: str | Path,
    client: ChatClient,
    writer: Mapping[str, Any],
    names: Iterable[str],
    make: Callable[[str], dict[str, Any]],
    find_words: Callable[[Any], str],
    limit: FailureLimit,
    noun: str,
    kinds: tuple[str, str],
) -> list[Skipped]:
    """Write a row for each name, which `make` gets from a language model; resume a file of the same `writer`.

    The `kinds` are for names without a usable answer, and for rows that repeat another row's words.
    """
    file, skipped = JsonLines(Path(path)), []
    file.path.parent.mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(rows := file.read(), start=1):
        if other := {name: row.get(name) for name, value in writer.items() if row.get(name) != value}:
            wanted = {name: writer[name] for name in other}
            raise ValueError(f"{path}, line {number}: was written with {other}, not {wanted}; use another file.")
    known, words = {row["scenario_id"] for row in rows}, {find_words(row) for row in rows}
    pending = [name for name in names if name not in known]

    def ask(name: str) -> dict[str, Any] | Skipped:
        try:
            return make(name)
        except ChatError as error:
            return Skipped(name, kinds[0], str(error))

    for name, found in zip(pending, client.map(ask, pending, noun), strict=True):
        limit.count(found.reason if isinstance(found, Skipped) else None)
        if isinstance(found, dict) and find_words(found) in words:
            found = Skipped(name, kinds[1], "the model repeated earlier words; raise the temperature.")
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            words.add(find_words(found))
            file.append([found])
    return skipped
