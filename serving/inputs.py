"""Convert the dialogues of a request to messages for the processor, with errors that name the turn.

Order, number of turns and the headers of recordings are checked before decoding: a few kilobytes of FLAC can hold
hours of silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sdiareward.audio_sdiareward import AudioError, compose, read_base64
from sdiareward.chat_sdiareward import MAX_TURNS, DialogueError, validate_messages
from sdiareward.pairs.messages import check_recording
from sdiareward.pairs.schema import MAX_TURN_S

from .forms import Audio, Dialogue, Problem, Turn
from .settings import Limits


Messages = list[dict[str, Any]]

# Per turn; thousands of short recordings would be decoded one by one.
_MAX_ITEMS = 64


def read_dialogue_form(
    dialogue: Dialogue, files: Mapping[str, bytes], limits: Limits, *, require_audio: bool = True
) -> Messages:
    has_system = bool(dialogue.turns) and dialogue.turns[0].role == "system"
    longest = min(limits.max_turns or MAX_TURNS, MAX_TURNS)
    if (num_turns := len(dialogue.turns) - has_system) > longest:
        raise DialogueError(f"has {num_turns} turns; this server scores at most {longest}, keep the last {longest}.")
    messages = []
    for number, turn in enumerate(dialogue.turns, start=0 if has_system else 1):
        try:
            messages.append({"role": turn.role, "content": _read_turn(turn, files, limits, require_audio)})
        except ValueError as error:
            raise DialogueError(str(error), number) from error
    validate_messages(messages)
    return messages


def _read_turn(turn: Turn, files: Mapping[str, bytes], limits: Limits, require_audio: bool) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    items, longest_s, total_s = turn.list_items(), min(limits.max_turn_s or MAX_TURN_S, MAX_TURN_S), 0.0
    if len(items) > _MAX_ITEMS:
        raise ValueError(f"has {len(items)} texts and recordings; at most {_MAX_ITEMS} are accepted, join them.")
    for item in items:
        if item.audio is None:
            content.append({"type": "text", "text": item.text})
        else:
            data = _read_recording(item.audio, files)
            try:
                total_s += check_recording(data, longest_s)
            except AudioError as error:
                raise ValueError(str(error).removeprefix("audio bytes: ")) from error
            if total_s > longest_s:
                raise ValueError(f"its recordings last over {longest_s:g} s together, the most of a turn; cut them.")
            content.append({"type": "audio", "audio": {"bytes": data, "path": None}})
    if not content:
        raise ValueError("is empty; give text and audio.")
    if require_audio and turn.role != "system" and all(item["type"] == "text" for item in content):
        raise ValueError("has no audio; give a recording, or require_audio: false to score words alone.")
    return content


def _read_recording(audio: Audio, files: Mapping[str, bytes]) -> bytes:
    if audio.base64 is not None:
        return read_base64(audio.base64)
    name = compose(audio.file or "")
    if name not in files:
        raise ValueError(f"there is no file part {name[:80]!r}; the request has {', '.join(sorted(files)) or 'none'}.")
    return files[name]


def find_turn(reason: str) -> int | None:
    """Return the turn, from 1, that an error of the processor names."""
    found = re.match(r"turn (\d+)\b", reason)
    return int(found[1]) if found else None


def explain_form_errors(errors: Sequence[Mapping[str, Any]], body: Any) -> list[Problem]:
    """Describe the errors of `pydantic` by turn, without the values, which can be megabytes of audio."""
    problems = []
    for error in errors:
        loc = [part for part in error["loc"] if part != "body"]
        after = dict(zip(loc, loc[1:], strict=False))
        dialogue = {"a": 1, "b": 2}.get(str(loc[0])) if loc and "turns" in loc else None
        if isinstance(after.get("dialogues"), int):
            dialogue = int(after["dialogues"]) + 1
        turn = (
            int(after["turns"]) + 1 - _count_system_turns(body, loc) if isinstance(after.get("turns"), int) else None
        )
        fields = {"msg": error["msg"], "type": error["type"], "dialogue": dialogue, "turn": turn or None}
        problems.append(Problem(loc=["body", *loc], **fields))
    return problems


def _count_system_turns(body: Any, loc: Sequence[Any]) -> int:
    value = body
    try:
        for part in loc:
            value = value[part]
            if part == "turns":
                return int(value[0]["role"] == "system")
    except (LookupError, TypeError):
        pass
    return 0
