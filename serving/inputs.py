"""Turn the dialogues of a request into messages for the processor, and name what is wrong with them by turn.

Before the model sees a dialogue, these are checked: the order and number of turns, and of each recording its header,
its length and the memory it takes decoded. A few kilobytes of FLAC can hold hours of silence.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sdiareward.audio_sdiareward import MAX_TURNS, AudioError, DialogueError, validate_messages
from sdiareward.pairs.messages import check_recording
from sdiareward.pairs.schema import MAX_TURN_S

from .forms import Audio, Dialogue, Problem, Turn
from .settings import Limits


Messages = list[dict[str, Any]]


def read_dialogue_form(
    dialogue: Dialogue, files: Mapping[str, bytes], limits: Limits, *, require_audio: bool = True
) -> Messages:
    """Return the messages of one dialogue, its audio encoded as `{"bytes", "path"}`.

    Args:
        dialogue ([`Dialogue`]): The form that a client sent.
        files (`Mapping[str, bytes]`): Files of a multipart request by the name of their part.
        limits ([`Limits`]): The longest dialogue and turn.
        require_audio (`bool`, *optional*, defaults to `True`): Refuse a turn without audio.

    Raises:
        DialogueError: It cannot be scored.
    """
    # Before any recording is decoded.
    if excess := _find_excess(dialogue, limits):
        raise DialogueError(excess)
    messages = []
    for number, turn in enumerate(dialogue.turns, start=0 if _has_system(dialogue) else 1):
        try:
            messages.append({"role": turn.role, "content": _read_turn(turn, files, limits, require_audio)})
        except ValueError as error:
            raise DialogueError(str(error), number) from error
    validate_messages(messages)
    return messages


def _has_system(dialogue: Dialogue) -> bool:
    return bool(dialogue.turns) and dialogue.turns[0].role == "system"


def _find_excess(dialogue: Dialogue, limits: Limits) -> str | None:
    """Return what is wrong with a dialogue of too many turns."""
    num_turns = len(dialogue.turns) - _has_system(dialogue)
    longest = min(limits.max_turns or MAX_TURNS, MAX_TURNS)
    if num_turns <= longest:
        return None
    return f"has {num_turns} turns; this server scores at most {longest}, keep the last {longest}."


def _read_turn(turn: Turn, files: Mapping[str, bytes], limits: Limits, require_audio: bool) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for item in turn.items():
        if item.audio is None:
            content.append({"type": "text", "text": item.text})
        else:
            data = _read_recording(item.audio, files)
            try:
                check_recording(data, min(limits.max_turn_s or MAX_TURN_S, MAX_TURN_S))
            except AudioError as error:
                raise ValueError(str(error).removeprefix("audio bytes: ")) from error
            content.append({"type": "audio", "audio": {"bytes": data, "path": None}})
    if not content:
        raise ValueError("is empty; give text and audio.")
    if require_audio and turn.role != "system" and all(item["type"] == "text" for item in content):
        raise ValueError("has no audio; give a recording, or require_audio: false to score words alone.")
    return content


def _read_recording(audio: Audio, files: Mapping[str, bytes]) -> bytes:
    """Return the encoded file that a turn names or holds."""
    if audio.base64 is not None:
        try:
            return base64.b64decode(audio.base64, validate=True)
        except binascii.Error as error:
            raise ValueError(f"its audio is not base64 ({error}); encode the file's bytes.") from error
    name = audio.file or ""
    if name not in files:
        raise ValueError(f"there is no file part {name[:80]!r}; the request has {', '.join(sorted(files)) or 'none'}.")
    return files[name]


def find_turn(reason: str) -> int | None:
    """Return the turn, from 1, that an error of the processor names."""
    found = re.match(r"turn (\d+)\b", reason)
    return int(found[1]) if found else None


def make_problem(reason: str, turn: int | None, place: Sequence[str | int], number: int) -> Problem:
    """Describe why a dialogue cannot be scored.

    Args:
        reason (`str`): Why.
        turn (`int`, *optional*): Number of its turn, from 1.
        place (`Sequence`): Where the dialogue is in the request.
        number (`int`): Number of the dialogue, from 1.
    """
    return Problem(loc=["body", *place], msg=reason, type="dialogue", dialogue=number, turn=turn)


def explain_form_errors(errors: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Describe what `pydantic` found, with the turn, but without the value: it can be megabytes of audio."""
    problems = []
    for error in errors:
        loc = [part for part in error["loc"] if part != "body"]
        after = dict(zip(loc, loc[1:], strict=False))
        dialogue = {"a": 1, "b": 2}.get(str(loc[0])) if loc and "turns" in loc else None
        if isinstance(after.get("dialogues"), int):
            dialogue = int(after["dialogues"]) + 1
        turn = int(after["turns"]) + 1 if isinstance(after.get("turns"), int) else None
        fields = {"msg": error["msg"], "type": error["type"], "dialogue": dialogue, "turn": turn}
        problems.append(Problem(loc=["body", *loc], **fields))
    return problems
