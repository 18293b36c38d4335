"""Find the rows of a data set that have changed since they were scored; their records are dropped.

The record of a scored row has the `content` of its dialogues, a digest for each, and the stamps of the `files` that
they name. A row is read again only if the stamp of one of these or of a table differs, or if it names files and the
folder of the recordings is another one than before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.common.files import read_sealed, replace_atomically, seal, write_file
from sdiareward.pairs.content import digest_dialogue, has_changed, is_unchanged, stamp_file
from sdiareward.pairs.dialogues import Dialogues, RecordingFinder
from sdiareward.pairs.rows import Block, Rows, read_block

from .engine import Record
from .results import iter_records, list_logs


def describe_content(dialogues: Sequence[Any], indices: Sequence[int], criterion: str | None) -> dict[str, Any]:
    """Return the `content` of some dialogues and the stamps of the `files` that they name."""
    found = [dialogues[index] for index in indices]
    content = [digest_dialogue(dialogue, criterion) for dialogue in found]
    sources = [clip.source for dialogue in found for turn in dialogue.turns for clip in turn.clips]
    files = [stamp_file(path) for path in sources if isinstance(path, str)]
    return {"content": content} | ({"files": files} if files else {})


def drop_changed(
    folder: Path, rows: Rows, sides: Sequence[str], criterion: str | None, finder: RecordingFinder
) -> int:
    """Drop the records of rows that have changed; return their number."""
    stamps = folder / "tables.json"
    now = {"tables": [list(stamp) for stamp in rows.tables], "roots": finder.roots}
    before = read_sealed(stamps)
    # Rows that are in no file have no stamp.
    is_same = bool(rows.tables) and before.get("tables") == now["tables"]
    is_same_place = before.get("roots") == now["roots"]
    doubtful = _find_doubtful(folder, rows.num_rows, len(sides), is_same, is_same_place)
    changed = {
        row
        for row, content in _iter_contents(rows, sorted(doubtful), sides, criterion, finder)
        if has_changed(doubtful[row], content)
    }
    for path in list_logs(folder) if changed else ():
        with replace_atomically(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            kept = (record for record in iter_records(path, len(sides)) if record["row"] not in changed)
            file.writelines(map(seal, kept))
    write_file(stamps, seal(now))
    return len(changed)


def _find_doubtful(folder: Path, num_rows: int, num_sides: int, is_same: bool, is_same_place: bool) -> dict[int, Any]:
    """Return the `content` of the rows that have to be read again."""
    is_known = np.zeros(num_rows, dtype=np.bool_)
    doubtful = {}
    for record in (record for path in list_logs(folder) for record in iter_records(path, num_sides)):
        row = record["row"]
        if "rewards" not in record or row >= num_rows or is_known[row]:
            continue
        is_known[row] = True
        if not (is_same and _has_its_files(record) and (is_same_place or not record.get("files"))):
            doubtful[row] = record.get("content")
    return doubtful


def _has_its_files(record: Record) -> bool:
    return "content" in record and all(is_unchanged(stamp) for stamp in record.get("files", []))


def _iter_contents(
    rows: Rows, numbers: list[int], sides: Sequence[str], criterion: str | None, finder: RecordingFinder
) -> Iterator[tuple[int, list[str | None]]]:
    from tqdm.auto import tqdm

    with tqdm(total=len(numbers), unit="row", desc="looking for changes", disable=not numbers) as bar:
        for start in range(0, len(numbers), rows.block_rows):
            block = read_block(rows, np.array(numbers[start : start + rows.block_rows]), sides)
            dialogues = Dialogues(block, range(len(block.numbers)), block.sides, finder)
            for position, row in enumerate(block.numbers.tolist()):
                yield row, [_digest(dialogues, block, position, side, criterion) for side in range(len(sides))]
                bar.update()


def _digest(dialogues: Dialogues, block: Block, position: int, side: int, criterion: str | None) -> str | None:
    try:
        return digest_dialogue(dialogues[position * len(block.sides) + side], criterion or block.criteria[position])
    except (ValueError, OSError):
        return None
