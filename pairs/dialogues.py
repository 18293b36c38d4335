"""The dialogues of a data set as messages: one lazy sequence over pairs and over rows of any other form."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sdiareward.audio_sdiareward import audio_duration_s, decode_base64
from sdiareward.chat_sdiareward import DialogueError, list_items, turns_to_messages, validate_messages

from .own_forms import find_recording
from .path_sandbox import holds_recordings, list_audio_roots, name_roots, require_inside
from .rows import Block
from .schema import SIDES


class RecordingFinder:
    """Find the recordings of a dialogue, in the folders that it may name."""

    def __init__(self, audio_root: str | Path | None = None, dataset: str | Path | None = None):
        self._dataset = dataset
        self._audio_root = audio_root
        self._roots = list_audio_roots(dataset, audio_root)

    @property
    def roots(self) -> list[str]:
        """Folders at which relative paths begin, in the order in which they are tried."""
        return [os.path.abspath(root) for root in name_roots(self._dataset, self._audio_root)]

    def find(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Put the paths of files into the messages; raise for a recording that cannot be opened."""
        for number, turn in enumerate(messages, start=1):
            for item in turn["content"]:
                if isinstance(item, dict) and item.get("audio") is not None:
                    self._find(item, number)

    def _find(self, item: dict[str, Any], turn: int) -> None:
        audio = item["audio"]
        if isinstance(audio, Mapping) and audio.get("bytes") is None:
            audio = audio.get("path", audio)
        try:
            if isinstance(audio, str) and (encoded := decode_base64(audio)) is not None:
                audio = {"bytes": encoded, "path": None}
            is_path = isinstance(audio, str)
            item["audio"] = find_recording(audio, self._dataset, self._audio_root) if is_path else audio
            if isinstance(item["audio"], str):
                require_inside(item["audio"], self._roots)
            audio_duration_s(item["audio"])
        except (ValueError, OSError, TypeError) as error:
            raise DialogueError(str(error), turn) from error


class Dialogues(Sequence[Any]):
    """The dialogues of some rows, read on access; number `i` is side `i % num_sides` of row `i // num_sides`."""

    def __init__(
        self, rows: Any, numbers: Sequence[int], sides: Sequence[str] = SIDES, finder: RecordingFinder | None = None
    ):
        self._rows = rows
        self._numbers = numbers
        self._sides = sides
        self._finder = finder

    @cached_property
    def _has_recordings(self) -> bool:
        """Whether any of the data, not of these rows alone, are spoken."""
        if isinstance(self._rows, Block):
            return self._rows.has_recordings
        return any(holds_recordings(self._rows.data, side) for side in self._sides)

    def __len__(self) -> int:
        return len(self._sides) * len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"dialogue {index} of {len(self)}")
        position, side = divmod(index, len(self._sides))
        messages = turns_to_messages(self._rows[self._numbers[position]][self._sides[side]])
        validate_messages(messages)
        turns = [turn for turn in messages if turn["role"] != "system"]
        spoken = [any(item["type"] == "audio" for item in list_items(turn)) for turn in turns]
        if not all(spoken) and (any(spoken) or self._has_recordings):
            raise DialogueError("has no recording, in data that have recordings.", spoken.index(False) + 1)
        if self._finder is not None:
            self._finder.find(messages)
        return messages


class WholeDialogues(Sequence[Any]):
    """Dialogues that are checked to be whole on access: a model would also score the beginning of one."""

    def __init__(self, dialogues: Sequence[Any]):
        self._dialogues = dialogues

    def __len__(self) -> int:
        return len(self._dialogues)

    def __getitem__(self, index: Any) -> Any:
        messages = turns_to_messages(self._dialogues[index])
        validate_messages(messages)
        return messages
