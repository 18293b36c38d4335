"""The dialogues of a data set: one lazy sequence over pairs and over rows of any other form."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sdiareward.audio_sdiareward import Clip, decode_base64, open_source
from sdiareward.chat_sdiareward import Dialogue, DialogueError, make_dialogue

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

    def __call__(self, audio: Any) -> Clip:
        """Return the recording that a table names; raise unless it is a file below one of the folders."""
        if isinstance(audio, Mapping) and audio.get("bytes") is None:
            audio = audio.get("path", audio)
        if isinstance(audio, str):
            if (encoded := decode_base64(audio)) is not None:
                return Clip({"bytes": encoded, "path": None})
            audio = find_recording(audio, self._dataset, self._audio_root)
            require_inside(audio, self._roots)
            open_source(audio)
        return Clip(audio)


class Dialogues(Sequence[Dialogue]):
    """The dialogues of some rows, read and checked on access; those of a block are kept.

    Number `i` is side `i % num_sides` of row `i // num_sides`.
    """

    def __init__(
        self, rows: Any, numbers: Sequence[int], sides: Sequence[str] = SIDES, finder: RecordingFinder | None = None
    ):
        self._rows = rows
        self._numbers = numbers
        self._sides = sides
        self._finder = finder or Clip
        self._kept: dict[int, Dialogue] = {}

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
        if index in self._kept:
            return self._kept[index]
        position, side = divmod(index, len(self._sides))
        dialogue = make_dialogue(self._rows[self._numbers[position]][self._sides[side]], find=self._finder)
        spoken = [turn.audio is not None for turn in dialogue.turns]
        if not all(spoken) and (any(spoken) or self._has_recordings):
            raise DialogueError("has no recording, in data that have recordings.", spoken.index(False) + 1)
        if isinstance(self._rows, Block):
            self._kept[index] = dialogue
        return dialogue
