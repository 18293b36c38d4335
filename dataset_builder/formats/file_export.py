"""Export a data set folder as tables and separate audio files, for tools that do not read Parquet.

`<criterion>/<split>.jsonl` holds one pair per line; a turn's `audio` is the path of its file relative to the folder,
`audio/<pair_id>/<side>-<turn>.<ending>`. The builder class in `sdiareward.py` reads it back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

from sdiareward.common.files import replace_atomically, write_file
from sdiareward.pairs.schema import SIDES, stable_id

from .shards import read_rows


_SAFE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_ENDINGS = {b"fLaC": ".flac", b"OggS": ".ogg", b"RIFF": ".wav"}


def export_files(folder: Path, output: Path) -> dict[str, int]:
    """Write the pairs of a data set folder as tables and audio files apart.

    The audio is written as it is encoded. A run that was stopped resumes: complete files are kept, and the tables are
    renamed last.

    Args:
        folder (`Path`): As `build` writes it.
        output (`Path`): Folder to write; it holds no tables yet.

    Returns:
        `dict[str, int]`: Number of pairs by table.

    Raises:
        FileNotFoundError: `folder` holds no pairs.
        FileExistsError: `output` already holds tables.
    """
    from tqdm import tqdm

    if tables := sorted(output.glob("*/*.jsonl")):
        raise FileExistsError(f"{tables[0]}: is already there; export to another folder, or delete it.")
    counts: dict[str, int] = {}
    files: dict[str, Any] = {}
    with ExitStack() as stack:
        for split, row in tqdm(read_rows(folder), desc="export", unit="pair"):
            name = f"{row['criterion']}/{split}.jsonl"
            if name not in files:
                (output / name).parent.mkdir(parents=True, exist_ok=True)
                temporary = stack.enter_context(replace_atomically(output / name))
                files[name] = stack.enter_context(temporary.open("w", encoding="utf-8"))
            sides = {side: export_turns(row, side, output) for side in SIDES}
            files[name].write(json.dumps({**row, **sides}, ensure_ascii=False) + "\n")
            counts[name] = counts.get(name, 0) + 1
    return counts


def export_turns(row: Mapping[str, Any], side: str, output: Path) -> list[dict[str, Any]]:
    """Write the audio of one side of a pair; return its turns with the paths, relative to `output`.

    Args:
        row (`Mapping`): A pair with its audio as `{"bytes", "path"}`.
        side (`str`): `"chosen"` or `"rejected"`.
        output (`Path`): Folder to write into.
    """
    pair_id = str(row["pair_id"])
    # An id from a table that somebody else wrote may not be fit to name a folder.
    name = pair_id if _SAFE_NAME.fullmatch(pair_id) else stable_id(pair_id)
    turns = []
    for position, turn in enumerate(row[side]):
        data = turn["audio"]["bytes"]
        ending = _ENDINGS.get(data[:4], PurePosixPath(turn["audio"]["path"] or "").suffix)
        path = f"audio/{name}/{side}-{position}{ending}"
        _write_bytes(output / path, data)
        turns.append({**turn, "audio": path})
    return turns


def _write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole, unless it is there already."""
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data)
