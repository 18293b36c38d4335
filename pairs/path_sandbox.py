"""Restrict the files that a data set may name: those below its root, and what `datasets` fetched itself.

A table of pairs may come from anyone. If it holds paths in place of audio, a path out of the root would copy a private
recording of the reader into scores, pages and studies that are shared. The header of a card, which names the files of
the tables, could do the same.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

# Folders, separated as in PATH, in place of the working directory.
ROOTS_VARIABLE = "SDIAREWARD_AUDIO_ROOT"
# Files in which a folder or a repository describes its own tables.
_CARD, _SETTINGS = "README.md", ".huggingface.yaml"
# A root, a home, a drive, a folder above, an address, or one within another (`zip://*::https://...`).
_ELSEWHERE = re.compile(r"^[/~]|^[A-Za-z]:|(^|/)\.\.(/|$)|\\|::|://|[\x00-\x1f]")
# A few kilobytes of these can stand for a full disk, onto which `datasets` unpacks them.
_PACKED = (".7z", ".bz2", ".gz", ".lz4", ".rar", ".tar", ".tgz", ".xz", ".zip", ".zst")


def list_audio_roots(dataset: str | Path | None, audio_root: str | Path | None = None) -> tuple[Path, ...]:
    """Return the folders below which the recordings of a data set may lie.

    Args:
        dataset (`str` or `Path`, *optional*): File, folder or Hub id; the folder of a local one is among them.
        audio_root (`str` or `Path`, *optional*): The root that was asked for; by default what the environment
            variable `SDIAREWARD_AUDIO_ROOT` says, else the working directory.

    Returns:
        `tuple[Path, ...]`: As they are named and with links followed, and the folders in which libraries keep what
        they fetched.
    """
    import datasets
    from huggingface_hub import constants

    fetched = (datasets.config.HF_DATASETS_CACHE, constants.HF_HUB_CACHE)
    named = [Path(os.path.abspath(Path(root).expanduser())) for root in (*name_roots(dataset, audio_root), *fetched)]
    return tuple(dict.fromkeys([*named, *(root.resolve() for root in named)]))


def name_roots(dataset: str | Path | None, audio_root: str | Path | None = None) -> list[Path]:
    """Return the folders that relative paths may begin at, in the order in which they are tried.

    Args:
        dataset (`str` or `Path`, *optional*): File, folder or Hub id; the folder of a local one comes first.
        audio_root (`str` or `Path`, *optional*): See [`list_audio_roots`].
    """
    given = [str(audio_root)] if audio_root else os.environ.get(ROOTS_VARIABLE, "").split(os.pathsep)
    roots = [Path(root) for root in given if root] or [Path.cwd()]
    if dataset is not None and (tables := Path(dataset)).exists():
        roots.insert(0, tables if tables.is_dir() else tables.parent)
    return roots


def require_inside(path: str | Path, roots: Sequence[Path]) -> None:
    """Raise unless a path, links followed, lies below one of some folders.

    Args:
        path (`str` or `Path`): As a data set gives it, relative to the working directory if it is relative.
        roots (`Sequence[Path]`): What `list_audio_roots` gave.

    Raises:
        ValueError: It lies outside, or is no path.
    """
    try:
        # As it is written first: to follow a path to another machine is to ask that machine.
        is_inside = _is_below(Path(os.path.abspath(path)), roots) and _is_below(Path(path).resolve(), roots)
    # A link to itself, or a zero byte in a name.
    except (OSError, RuntimeError, ValueError):
        is_inside = False
    if not is_inside:
        raise ValueError(
            f"audio {str(path)[:200]!r} lies outside of the audio root; data sets may name recordings below it only: "
            f"set --audio-root or {ROOTS_VARIABLE} to a folder above them."
        )


def _is_below(path: Path, roots: Sequence[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def require_audio_inside(pairs: datasets.Dataset, columns: Iterable[str], roots: Sequence[Path]) -> None:
    """Raise unless every recording that a data set gives as a path lies below one of some folders.

    Audio is not read, and paths that come with their bytes do not count: nothing is looked up for them.

    Args:
        pairs (`datasets.Dataset`): The data set.
        columns (`Iterable[str]`): Those that hold dialogues.
        roots (`Sequence[Path]`): What `list_audio_roots` gave.

    Raises:
        ValueError: Names the first that lies outside.
    """
    for path in iter_paths(pairs, columns):
        require_inside(path, roots)


def iter_paths(pairs: datasets.Dataset, columns: Iterable[str]) -> Iterator[str]:
    """Yield the paths of recordings that come without their bytes.

    Args:
        pairs (`datasets.Dataset`): The data set.
        columns (`Iterable[str]`): Those that hold dialogues.
    """
    for column in columns:
        for chunk in pairs.data.column(column).chunks:
            yield from sorted(set(_iter_column_paths(chunk, column)))


def _iter_column_paths(array: pa.Array, name: str) -> Iterator[str]:
    """Yield the paths in a column of dialogues, whose audio is bytes, a path, or both."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_struct(array.type):
        fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        if set(fields) == {"bytes", "path"}:
            fields = {"audio": fields["path"].filter(fields["bytes"].is_null())}
        for field, values in fields.items():
            yield from _iter_column_paths(values, field)
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        yield from _iter_column_paths(array.flatten(), name)
    elif pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        if name == "audio":
            yield from (path for path in array.unique().to_pylist() if path)
        elif name not in ("role", "text", "type"):
            for text in array.unique().to_pylist():
                yield from _iter_json_paths(text)


def _iter_json_paths(text: str | None) -> Iterator[str]:
    """Yield the paths in content that `datasets` keeps as JSON, because its items are of several kinds."""
    if not text or '"audio"' not in text:
        return
    try:
        waiting = [json.loads(text)]
    except (ValueError, RecursionError):
        return  # Words.
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            audio: Any = value.get("audio")
            if isinstance(audio, dict) and audio.get("bytes") is None:
                audio = audio.get("path")
            if isinstance(audio, str):
                yield audio
            waiting += [item for key, item in value.items() if key != "audio"]


def load_safe_builder(dataset: str | Path, name: str | None = None) -> datasets.DatasetBuilder:
    """Return what `datasets` finds in a folder or a repository: files of its own, none of them packed.

    Args:
        dataset (`str` or `Path`): Folder or Hub id.
        name (`str`, *optional*): Configuration of the data set.

    Raises:
        FileNotFoundError: There is no such data set.
        ValueError: A table is packed, or is a file from elsewhere.
    """
    import datasets

    require_own_tables(dataset)
    builder = datasets.load_dataset_builder(str(dataset), name)
    files = [str(file) for split in (builder.config.data_files or {}).values() for file in split]
    if packed := [file for file in files if file.lower().endswith(_PACKED)]:
        raise ValueError(f"{dataset}: {Path(packed[0]).name[:200]!r} is packed; unpack it where you trust it.")
    return builder


def require_own_tables(dataset: str | Path) -> None:
    """Raise if a data set says of itself that its tables are files which are not its own.

    `datasets` follows the header of a card, and the list of files of a saved data set, to any path and any address.

    Args:
        dataset (`str` or `Path`): Folder or Hub id.

    Raises:
        ValueError: Names what lies elsewhere.
    """
    for file, named in _read_named_tables(str(dataset)):
        if elsewhere := sorted(name for name in named if _ELSEWHERE.search(name)):
            raise ValueError(
                f"{file}: has {elsewhere[0][:200]!r} read as a table; a data set may name files beside and below it "
                "only, with forward slashes: take the line out."
            )


def _read_named_tables(dataset: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each file that says where the tables are, and what it says."""
    from sdiareward.common.files import read_json_object
    from sdiareward.common.yaml_files import parse_yaml

    for name in (_CARD, _SETTINGS):
        if path := _find(dataset, name):
            text = path.read_text(encoding="utf-8", errors="replace")
            header = _find_header(text) if name == _CARD else text
            yield f"{dataset}/{name}", list(_iter_card_tables(parse_yaml(header, f"{dataset}/{name}")))
    folder = Path(dataset)
    for path in (folder / "dataset_dict.json", folder / "state.json", *sorted(folder.glob("*/state.json"))):
        if path.is_file():
            state = read_json_object(path, "save the data set again")
            yield str(path), list(_iter_texts([state.get("splits"), state.get("_data_files")]))


def _find(dataset: str, name: str) -> Path | None:
    """Return a file of a folder or a repository; None where there is none, or nothing can be had of the repository."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if Path(dataset).is_dir():
        path = Path(dataset, name)
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(dataset, name, repo_type="dataset"))
    # That there is no such repository, or no connection, `datasets` says when it is asked for the tables.
    except (HfHubHTTPError, HFValidationError, OSError):
        return None


def _find_header(card: str) -> str:
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    found = REGEX_YAML_BLOCK.search(card)
    return found[2] if found else ""


def _iter_card_tables(header: Any) -> Iterator[str]:
    """Yield the paths and patterns of all configurations of a card."""
    configs = header.get("configs") if isinstance(header, Mapping) else None
    for config in configs if isinstance(configs, list) else ():
        if isinstance(config, Mapping):
            yield from _iter_texts([config.get("data_files"), config.get("data_dir")])


def _iter_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _iter_texts(item)
