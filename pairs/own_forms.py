"""Convert a side of a pair to turns, whatever form its row has, and find the recordings that rows name.

A side is a list of turns or messages, or one recording: a path, or encoded bytes. The column `prompt`, as in TRL,
holds the beginning that both sides share. A relative path begins at its table, else at the audio root.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import Clip, decode_base64, find_file, strip_scheme
from sdiareward.chat_sdiareward import AUDIO_KEYS, ROLES, DialogueError, make_dialogue, read_parts

from .labels import WRITTEN_ID, hash_sides
from .path_sandbox import iter_paths, name_roots
from .schema import SIDES


if TYPE_CHECKING:
    import datasets

PROMPT = "prompt"
USER, ASSISTANT = ROLES
_logger = logging.getLogger(__name__)


def join_turns(side: Any, prompt: Any = None) -> Any:
    """Return the turns of a side after its prompt; a single recording is the answer, or in a prompt the question."""
    turns, before = _as_turns(side, ASSISTANT), _as_turns(prompt, USER)
    return [*before, *turns] if isinstance(before, list) and isinstance(turns, list) else turns


def _as_turns(value: Any, role: str) -> Any:
    return [{"role": role, "audio": value}] if value and isinstance(value, (str, Mapping)) else value


def find_recording(path: str, dataset: str | Path | None, audio_root: str | Path | None = None) -> str:
    """Return the absolute path of a recording: beside its table, or below the audio root if it exists only there.

    A recording in base64 stays as it is.
    """
    if decode_base64(path) is not None:
        return path
    places = [Path(root).expanduser().absolute() / strip_scheme(path) for root in name_roots(dataset, audio_root)]
    return str(next(filter(None, map(find_file, places)), places[0]))


def unify_sides(
    pairs: datasets.Dataset, dataset: str | Path, audio_root: str | Path | None = None
) -> datasets.Dataset:
    """Return pairs whose sides are lists of turns with absolute paths; sides in this form are not copied.

    Others get the column `labels.WRITTEN_ID`, so that their ids stay when the table moves with its recordings.
    """
    import datasets

    def place(row: dict[str, Any]) -> dict[str, Any]:
        turns: dict[str, Any] = {side: row[side] for side in SIDES}
        written = hash_sides(turns)
        for holder, key in (found for side in turns.values() for found in _list_holders(side)):
            _place(holder, key, dataset, audio_root)
        return {**turns, WRITTEN_ID: written}

    def unify(row: dict[str, Any]) -> dict[str, Any]:
        return place({side: _as_row(join_turns(row[side], row.get(PROMPT))) for side in SIDES})

    for side in SIDES:
        if isinstance(kind := pairs.features[side], datasets.Value) and not kind.dtype.endswith("string"):
            raise ValueError(f"{side} is {kind.dtype}; give the path of a recording, or a list of turns.")
    are_lists = all(isinstance(pairs.features[side], (datasets.List, datasets.LargeList)) for side in SIDES)
    if not are_lists or PROMPT in pairs.column_names:
        function, kinds = unify, dict.fromkeys(SIDES, make_message_feature())
    elif all(map(os.path.isabs, iter_paths(pairs, SIDES))):
        return pairs
    else:
        function, kinds = place, {}
    features = datasets.Features({**pairs.features, **kinds, WRITTEN_ID: datasets.Value("string")})
    # Not from a cache: where a recording is found may have changed.
    return pairs.map(function, features=features, keep_in_memory=True, load_from_cache_file=False, desc="paths")


def _as_row(turns: Any) -> list[dict[str, Any]]:
    """Return turns as a row of messages; malformed ones become an empty list, which is refused on use."""
    try:
        return list(map(make_message_row, make_dialogue(turns, is_whole=False).to_messages()))
    except DialogueError as error:
        _logger.warning("a side of a pair is malformed: %s", error)
        return []


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


def _list_holders(turns: Any) -> list[tuple[dict[str, Any], str]]:
    """Return every mapping of a side that has a recording, and the key of that."""
    found = [turn for turn in turns or () if isinstance(turn, dict)]
    items = [item for turn in found if isinstance(turn.get("content"), list) for item in turn["content"]]
    holders = [holder for holder in (*found, *items) if isinstance(holder, dict)]
    return [(holder, key) for holder in holders for key in AUDIO_KEYS if holder.get(key)]


def _place(holder: dict[str, Any], key: str, dataset: str | Path, audio_root: str | Path | None) -> None:
    audio = holder[key]
    if isinstance(audio, str):
        holder[key] = find_recording(audio, dataset, audio_root)
    elif isinstance(audio, Mapping) and audio.get("bytes") is None:
        found = {name: audio[name] for name in ("path", "url") if isinstance(audio.get(name), str)}
        holder[key] = {**audio, **{name: find_recording(path, dataset, audio_root) for name, path in found.items()}}
