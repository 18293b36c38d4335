"""Find the recordings that data name, in the folders that they may name only.

A table of pairs may come from anyone. A path that leaves the root would copy a private recording of the reader into
scores, pages and studies that are shared. A link in a folder that the user names is the user's own and is followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sdiareward.audio_sdiareward import Clip, decode_base64, find_file, open_source, strip_scheme
from sdiareward.chat_sdiareward import AUDIO_KEYS
from sdiareward.common.files import require_shallow


# Folders, separated as in PATH, in place of the working directory.
ROOTS_VARIABLE = "SDIAREWARD_AUDIO_ROOT"


class Roots(NamedTuple):
    """Absolute folders: below `own`, links are followed; below `others`, a path must stay inside, links resolved."""

    own: tuple[Path, ...]
    others: tuple[Path, ...] = ()


def name_roots(dataset: str | Path | None, audio_root: str | Path | None = None) -> list[Path]:
    """Return the folders at which relative paths may begin, in the order in which they are tried."""
    given = [str(audio_root)] if audio_root else os.environ.get(ROOTS_VARIABLE, "").split(os.pathsep)
    roots = [Path(root).expanduser().absolute() for root in given if root] or [Path.cwd()]
    if dataset is not None and (tables := Path(dataset).absolute()).exists():
        roots.insert(0, tables if tables.is_dir() else tables.parent)
    return roots


def list_audio_roots(dataset: str | Path | None, audio_root: str | Path | None = None) -> Roots:
    """Return the folders that may hold the recordings of a data set, caches of libraries included.

    Data of the Hub follow no link of the working directory, which nobody named for them.
    """
    import datasets
    from huggingface_hub import constants

    roots = tuple(name_roots(dataset, audio_root))
    fetched = (Path(datasets.config.HF_DATASETS_CACHE), Path(constants.HF_HUB_CACHE))
    is_named = audio_root or os.environ.get(ROOTS_VARIABLE) or dataset is None or Path(dataset).exists()
    return Roots(roots, fetched) if is_named else Roots((), roots + fetched)


def _is_inside(path: Path, roots: Roots) -> bool:
    if any(path.is_relative_to(root) and ".." not in path.relative_to(root).parts for root in roots.own):
        return True
    resolved = Path(os.path.realpath(path))
    return any(resolved.is_relative_to(os.path.realpath(root)) for root in (*roots.own, *roots.others))


def require_inside(path: str | Path, roots: Roots) -> None:
    """Raise `ValueError` unless a path is below one of the folders; base64 names no file."""
    if decode_base64(str(path)) is None and not _is_inside(place := Path(path).absolute(), roots):
        link = describe_link(place, *roots.others)
        raise ValueError(
            f"audio {str(path)[:200]!r} lies outside of the audio root{link}; data sets may name recordings below it "
            f"only: set --audio-root or {ROOTS_VARIABLE} to a folder above them."
        )


def resolve_inside(root: Path, relative: str) -> Path:
    """Return `root / relative` for a path from a foreign file; raise `ValueError` if it leaves `root`."""
    path = find_file(root / relative) or root / relative
    if not _is_inside(path.absolute(), Roots((root.absolute(),))):
        link = describe_link(path, root)
        raise ValueError(f"path {relative!r}: lies outside of {root}{link}; paths must be relative and stay inside.")
    return path


def describe_link(path: Path, *roots: Path) -> str:
    """Return which part of a path below a root is a link, and where it leads, for an error; else nothing."""
    below = (each for each in (path, *path.parents) if any(root in each.parents for root in roots))
    link = next(filter(os.path.islink, below), None)
    return "" if link is None else f" ({link} is a link to {os.readlink(link)})"


def find_recording(path: str, places: Sequence[Path]) -> str:
    """Return the path of a recording in the first folder that has it, else in the first one; base64 as it is."""
    if decode_base64(path) is not None:
        return path
    paths = [place / strip_scheme(path) for place in places]
    return str(next(filter(None, map(find_file, paths)), paths[0]))


class RecordingFinder:
    """Find the recordings of a dialogue in the folders that its data set may name."""

    def __init__(self, audio_root: str | Path | None = None, dataset: str | Path | None = None, *others: str | Path):
        self._places = name_roots(dataset, audio_root)
        self._roots = list_audio_roots(dataset, audio_root)
        own = [root for other in others for root in name_roots(other, audio_root)]
        self._roots = self._roots._replace(own=(*self._roots.own, *own))
        # Folders at which relative paths begin, in the order in which they are tried.
        self.roots = list(map(str, self._places))

    def __call__(self, audio: Any) -> Clip:
        """Return the recording that a table names; raise unless it is a file below one of the folders."""
        if isinstance(audio, Mapping) and audio.get("bytes") is None:
            audio = audio.get("path", audio)
        if isinstance(audio, str):
            if (encoded := decode_base64(audio)) is not None:
                return Clip({"bytes": encoded, "path": None})
            audio = find_recording(audio, self._places)
            require_inside(audio, self._roots)
            open_source(audio)
        return Clip(audio)


def iter_recordings(column: Any, key: str, *, is_inside: bool = False) -> Iterator[str]:
    """Yield the path of each recording in Arrow values of dialogues, and an empty text for those without a path.

    A recording is under one of `AUDIO_KEYS`, at which `is_inside` becomes true, or in JSON, as which `datasets` keeps
    values of several kinds.
    """
    import pyarrow as pa

    is_inside |= key in AUDIO_KEYS
    for values in getattr(column, "chunks", [column]):
        is_json = isinstance(values, pa.ExtensionArray)
        values = values.storage if is_json else values
        if pa.types.is_struct(values.type):
            fields = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
            if is_encoded := set(fields) == {"bytes", "path"}:
                # A path beside bytes is only a name.
                fields["path"] = fields["path"].filter(fields["bytes"].is_null())
            for name, part in fields.items():
                yield from iter_recordings(part, name, is_inside=is_inside or is_encoded)
        elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            yield from iter_recordings(values.flatten(), key, is_inside=is_inside)
        elif not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            yield from [""] if is_inside and values.null_count < len(values) else []
        elif is_inside and not is_json:
            texts = values.unique().drop_null().to_pylist()
            yield from texts if key in AUDIO_KEYS else [""] * len(texts)
        elif key not in ("role", "text", "type"):
            for text in values.unique().drop_null().to_pylist():
                yield from _iter_in_json(text, is_inside)


def _iter_in_json(text: str, is_inside: bool) -> Iterator[str]:
    require_shallow(text)
    try:
        waiting = [(json.loads(text), is_inside)]
    except ValueError:
        return  # Words.
    while waiting:
        value, is_inside = waiting.pop()
        if isinstance(value, list):
            waiting += [(each, is_inside) for each in value]
        elif isinstance(value, dict) and value.get("bytes") is None:
            waiting += [(each, key in AUDIO_KEYS) for key, each in value.items()]
        elif isinstance(value, str) and is_inside:
            yield value
