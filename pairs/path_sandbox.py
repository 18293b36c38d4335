"""Restrict the files that a data set may name to those below its root, and those that `datasets` fetched.

A table of pairs may come from anyone. A path that leaves the root would copy a private recording of the reader into
scores, pages and studies that are shared. A link in a folder that the user names is the user's own and is followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sdiareward.audio_sdiareward import decode_base64, find_file
from sdiareward.chat_sdiareward import AUDIO_KEYS
from sdiareward.common.files import require_shallow


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

# Folders, separated as in PATH, in place of the working directory.
ROOTS_VARIABLE = "SDIAREWARD_AUDIO_ROOT"


class Roots(NamedTuple):
    """Absolute folders: below `own`, links are followed; below `others`, a path must stay inside, links resolved."""

    own: tuple[Path, ...]
    others: tuple[Path, ...] = ()


def list_audio_roots(dataset: str | Path | None, audio_root: str | Path | None = None) -> Roots:
    """Return the folders that may hold the recordings of a data set, caches of libraries included.

    Data of the Hub follow no link of the working directory, which nobody named for them.
    """
    import datasets
    from huggingface_hub import constants

    roots = tuple(root.expanduser().absolute() for root in name_roots(dataset, audio_root))
    fetched = (Path(datasets.config.HF_DATASETS_CACHE), Path(constants.HF_HUB_CACHE))
    is_named = audio_root or os.environ.get(ROOTS_VARIABLE) or dataset is None or Path(dataset).exists()
    return Roots(roots, fetched) if is_named else Roots((), roots + fetched)


def name_roots(dataset: str | Path | None, audio_root: str | Path | None = None) -> list[Path]:
    """Return the folders at which relative paths may begin, in the order in which they are tried."""
    given = [str(audio_root)] if audio_root else os.environ.get(ROOTS_VARIABLE, "").split(os.pathsep)
    roots = [Path(root) for root in given if root] or [Path.cwd()]
    if dataset is not None and (tables := Path(dataset)).exists():
        roots.insert(0, tables if tables.is_dir() else tables.parent)
    return roots


def require_inside(path: str | Path, roots: Roots) -> None:
    """Raise `ValueError` unless a path is below one of the folders; base64 names no file."""
    if decode_base64(str(path)) is None and not _is_inside(place := Path(path).absolute(), roots):
        link = describe_link(place, *roots.others)
        raise ValueError(
            f"audio {str(path)[:200]!r} lies outside of the audio root{link}; data sets may name recordings below it "
            f"only: set --audio-root or {ROOTS_VARIABLE} to a folder above them."
        )


def resolve_inside(root: Path, relative: str, *, follow_links: bool = True) -> Path:
    """Return `root / relative` for a path from a foreign file; raise `ValueError` if it leaves `root`."""
    path, roots = find_file(root / relative) or root / relative, (root.absolute(),)
    if not _is_inside(path.absolute(), Roots(roots) if follow_links else Roots((), roots)):
        link = describe_link(path, root)
        raise ValueError(f"path {relative!r}: lies outside of {root}{link}; paths must be relative and stay inside.")
    return path


def _is_inside(path: Path, roots: Roots) -> bool:
    if any(path.is_relative_to(root) and ".." not in path.relative_to(root).parts for root in roots.own):
        return True
    resolved = Path(os.path.realpath(path))
    return any(resolved.is_relative_to(os.path.realpath(root)) for root in (*roots.own, *roots.others))


def describe_link(path: Path, *roots: Path) -> str:
    """Return which part of a path below a root is a link, and where it leads, for an error; else nothing."""
    below = (each for each in (path, *path.parents) if any(root in each.parents for root in roots))
    link = next(filter(os.path.islink, below), None)
    return "" if link is None else f" ({link} is a link to {os.readlink(link)})"


def iter_paths(pairs: datasets.Dataset, columns: Iterable[str]) -> Iterator[str]:
    """Yield the paths of recordings without bytes."""
    for column in columns:
        for chunk in pairs.data.column(column).chunks:
            yield from sorted(set(_iter_paths(chunk, column)))


def holds_recordings(table: Any, column: str) -> bool:
    """Return whether a column of dialogues has a recording: one that is not a path is in a struct under its name."""
    return any(_holds_recordings(chunk, column) for chunk in table.column(column).chunks)


def _holds_recordings(array: pa.Array, name: str) -> bool:
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        return any(True for _ in _iter_paths(array, name))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _holds_recordings(array.flatten(), name)
    if not pa.types.is_struct(array.type):
        return name in AUDIO_KEYS and array.null_count < len(array)
    fields = zip((field.name for field in array.type), array.flatten(), strict=True)
    return any(_holds_recordings(values, name if name in AUDIO_KEYS else field) for field, values in fields)


def _iter_paths(array: pa.Array, name: str) -> Iterator[str]:
    """Yield the paths in a column of dialogues, whose audio is bytes, a path, or both."""
    import pyarrow as pa

    if is_json := isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_struct(array.type):
        fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        if set(fields) == {"bytes", "path"}:
            fields = {"audio": fields["path"].filter(fields["bytes"].is_null())}
        for field, values in fields.items():
            yield from _iter_paths(values, field)
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        yield from _iter_paths(array.flatten(), name)
    elif pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        is_audio, texts = name in AUDIO_KEYS, array.unique().to_pylist()
        if is_audio and not is_json:
            yield from filter(None, texts)
        elif name not in ("role", "text", "type"):
            for text in texts:
                yield from _iter_json_paths(text, is_audio)


def _iter_json_paths(text: str | None, is_audio: bool) -> Iterator[str]:
    """Yield the paths in what `datasets` keeps as JSON, because its values are of several kinds."""
    require_shallow(text or "")
    try:
        waiting = [(json.loads(text or "null"), is_audio)]
    except ValueError:
        return  # Words.
    while waiting:
        value, is_audio = waiting.pop()
        if isinstance(value, str) and is_audio:
            yield value
        elif isinstance(value, list):
            waiting += [(each, is_audio) for each in value]
        elif isinstance(value, dict) and value.get("bytes") is None:
            waiting += [(each, key in AUDIO_KEYS) for key, each in value.items()]
