"""Read a request: a body, JSON or multipart, which FastAPI cannot declare together, and the dialogues in it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from sdiareward.audio_sdiareward import AudioError, Clip, compose, read_base64
from sdiareward.chat_sdiareward import MAX_TURNS, Dialogue, DialogueError, make_dialogue
from sdiareward.pairs.messages import check_recording
from sdiareward.pairs.schema import MAX_TURN_S

from .forms import Dialogue as DialogueForm
from .forms import Options, Problem
from .settings import Limits


AnyRequest = TypeVar("AnyRequest", bound=Options)
JSON, MULTIPART = "application/json", "multipart/form-data"
# The part of a multipart request that holds the JSON.
REQUEST_PART = "request"
_MAX_FILES = 1024
_MAX_PROBLEMS = 100
# Thousands of short ones would be opened one by one.
_MAX_RECORDINGS = 1024


class BadRequestError(ValueError):
    """Raised for a malformed request, with its problems."""

    def __init__(self, *problems: Problem):
        super().__init__("; ".join(problem.msg for problem in problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Body:
    """The content of a request: the JSON, and files by the name of their part."""

    text: bytes
    files: dict[str, bytes] = field(default_factory=dict)

    def parse(self, form: type[AnyRequest]) -> AnyRequest:
        try:
            return form.model_validate_json(self.text)
        except ValidationError as error:
            # The input may be megabytes.
            found = error.errors(include_url=False, include_context=False, include_input=False)
        problems = []
        for each in found[:_MAX_PROBLEMS]:
            loc, dialogue = ["body", *each["loc"]], _find_dialogue(each["loc"])
            problems.append(Problem(loc=loc, msg=each["msg"], type=each["type"], dialogue=dialogue))
        if len(found) > _MAX_PROBLEMS:
            reason = f"{len(found) - _MAX_PROBLEMS} more problems are not listed; fix these first."
            problems.append(Problem(loc=["body"], msg=reason, type="too_many"))
        raise BadRequestError(*problems)


def _find_dialogue(loc: Sequence[str | int]) -> int | None:
    """Return the number of the dialogue, from 1, in which an error of the form is."""
    named = {"a": 1, "b": 2}.get(str(loc[0])) if loc else None
    return int(loc[1]) + 1 if loc[:1] == ("dialogues",) and len(loc) > 1 else named


async def read_body(request: Request, limits: Limits) -> Body:
    """Read a body; HTTP errors: 400 multipart, 408 too slow, 413 too large, 415 type, charset or encoding."""
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind not in (JSON, MULTIPART):
        raise HTTPException(415, f"content type is {kind[:80] or 'missing'!r}; send {JSON} or {MULTIPART}.")
    # Python would decode others: a megabyte of `punycode` takes an hour.
    charset = parse_options_header(given)[1].get(b"charset", b"utf-8") if kind == MULTIPART else b"utf-8"
    if charset.lower() not in (b"utf-8", b"utf8"):
        raise HTTPException(415, f"charset is {charset[:80].decode('latin-1')!r}; send UTF-8.")
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise HTTPException(415, f"content encoding is {coding[:80]!r}; send the body as it is.")
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            return await _read_multipart(request, limits) if kind == MULTIPART else Body(await request.body())
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {limits.body_timeout_s:g} s.") from None
    except OSError as error:
        raise HTTPException(503, f"the server's disk cannot take what was sent ({error.strerror}).") from error


async def _read_multipart(request: Request, limits: Limits) -> Body:
    parts: dict[str, bytes] = {}
    async with request.form(max_files=_MAX_FILES, max_fields=1, max_part_size=limits.max_body_bytes) as form:
        for written, part in form.multi_items():
            name = compose(written)
            if name in parts:
                reason = f"the multipart body has two parts {name[:80]!r}; give each its own name."
                raise BadRequestError(Problem(loc=["body"], msg=reason, type="multipart"))
            parts[name] = await part.read() if isinstance(part, UploadFile) else part.encode()
    if not (text := parts.pop(REQUEST_PART, b"")):
        reason = f"the multipart body has no part {REQUEST_PART!r}; put the JSON into it."
        raise BadRequestError(Problem(loc=["body"], msg=reason, type="multipart"))
    return Body(text, parts)


def read_dialogue_form(
    form: DialogueForm, files: Mapping[str, bytes], limits: Limits, *, require_audio: bool = True
) -> Dialogue:
    """Return the dialogue of a request; headers of recordings are checked: kilobytes of FLAC can hold hours."""
    longest = min(limits.max_turns or MAX_TURNS, MAX_TURNS)
    if (num_turns := sum(turn.get("role") != "system" for turn in form.turns)) > longest:
        raise DialogueError(f"has {num_turns} turns; this server scores at most {longest}, keep the last {longest}.")
    longest_s, durations_s = min(limits.max_turn_s or MAX_TURN_S, MAX_TURN_S), dict[int, float]()

    def find(audio: Any) -> Clip:
        if len(durations_s) == _MAX_RECORDINGS:
            raise ValueError(f"is beyond {_MAX_RECORDINGS} recordings of one dialogue; join some.")
        clip = Clip({"bytes": _read_recording(audio, files), "path": None})
        try:
            durations_s[id(clip)] = check_recording(clip.source, longest_s)
        except AudioError as error:
            raise ValueError(str(error).removeprefix("audio bytes: ")) from error
        return clip

    dialogue = make_dialogue(form.turns, find=find)
    for number, turn in enumerate(dialogue.turns, start=1):
        if sum(durations_s[id(clip)] for clip in turn.clips) > longest_s:
            reason = f"its recordings last over {longest_s:g} s together, the most of a turn; cut them."
            raise DialogueError(reason, number)
        if require_audio and turn.audio is None:
            reason = "has no audio; give a recording, or require_audio: false to score words alone."
            raise DialogueError(reason, number)
    return dialogue


def _read_recording(audio: Any, files: Mapping[str, bytes]) -> bytes:
    """Return the file that a request holds; it may name no file or address of the server."""
    if isinstance(audio, str) and audio.startswith("data:"):
        audio = {"base64": audio}
    keys = set(audio) if isinstance(audio, Mapping) else set()
    if keys not in ({"base64"}, {"file"}) or not isinstance(value := next(iter(audio.values())), str):
        raise ValueError('its recording is neither {"base64": ...} nor {"file": NAME} of a part; give one of them.')
    if keys == {"base64"}:
        return read_base64(value)
    if (name := compose(value)) not in files:
        reason = f"there is no file part {name[:80]!r}; the request has {', '.join(sorted(files)) or 'none'}."
        raise ValueError(reason)
    return files[name]


def find_turn(reason: str) -> int | None:
    """Return the turn, from 1, that an error of the processor names."""
    found = re.match(r"turn (\d+)\b", reason)
    return int(found[1]) if found else None
