"""Rows of messages that are read one by one: a folder of dialogues, or several sources, as one data set.

They are in no table, so a resumed run reads every recording again to find changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import Clip
from sdiareward.chat_sdiareward import Dialogue, DialogueError, read_parts

from .content import Stamp
from .dialogue_folders import read_dialogue_folder
from .messages import Form


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

COLUMN = "messages"
_logger = logging.getLogger(__name__)


class MessageRows:
    """Dialogues by number as `rows.Rows`, with the columns `id` and `messages`."""

    block_rows = 512

    def __init__(self, ids: Sequence[str], read: Callable[[int], list[dict[str, Any]]]):
        import datasets

        self._ids = ids
        self._read = read
        self.num_rows = len(ids)
        self.tables: list[Stamp] = []
        self.features = datasets.Features({"id": datasets.Value("string"), COLUMN: make_message_feature()})

    def read(self, numbers: Sequence[int] | np.ndarray, columns: Sequence[str]) -> pa.Table:
        import datasets
        import pyarrow as pa

        schema = datasets.Features({name: self.features[name] for name in columns}).arrow_schema
        rows = [{name: self._read_value(int(number), name) for name in columns} for number in numbers]
        return pa.Table.from_pylist(rows, schema=schema)

    def _read_value(self, number: int, column: str) -> Any:
        return self._ids[number] if column == "id" else list(map(make_message_row, self._read(number)))


def make_message_feature() -> datasets.List:
    import datasets

    text = datasets.Value("string")
    # Not `Audio`: that would decode.
    audio = {"bytes": datasets.Value("binary"), "path": text}
    return datasets.List({"role": text, "content": datasets.List({"type": text, "text": text, "audio": audio})})


def make_message_row(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with content as items and audio as bytes and path."""
    return {"role": message["role"], "content": [_as_item(part) for part in read_parts(message)]}


def _as_item(part: str | Clip) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    audio = part.source
    if isinstance(audio, str):
        audio = {"bytes": None, "path": audio}
    elif isinstance(audio, bytes):
        audio = {"bytes": audio, "path": None}
    elif not isinstance(audio, Mapping) or not {"bytes", "path"} & set(audio):
        raise DialogueError(f"its audio is a {type(audio).__name__}; give the path of a recording, or its bytes.")
    return {"type": "audio", "audio": {"bytes": audio.get("bytes"), "path": audio.get("path")}}


def open_folder(folder: str | Path, form: Form | None = None) -> MessageRows:
    """Open a folder of dialogues as rows; a malformed dialogue is logged, and has no turns."""
    found = read_dialogue_folder(folder, form=form)
    for name, reason in found.skipped.items():
        _logger.warning("%s: %s: %s", folder, name, reason)
    names = [*found.dialogues, *found.skipped]
    empty = Dialogue((), is_whole=False)
    return MessageRows(names, lambda number: found.dialogues.get(names[number], empty).to_messages())
