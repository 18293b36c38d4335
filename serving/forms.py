"""The schemas of requests and answers, which also make the OpenAPI page, and the parsing of requests.

A body is JSON or multipart; FastAPI cannot declare both.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import numpy as np
import soundfile
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from sdiareward.audio_sdiareward import AudioError, Clip, compose, read_base64
from sdiareward.chat_sdiareward import Dialogue, DialogueError, make_dialogue
from sdiareward.pairs.messages import check_recording

from .settings import Limits


JSON, MULTIPART = "application/json", "multipart/form-data"
# The multipart part with the JSON.
REQUEST_PART = "request"
_MAX_FILES = 1024
_MAX_PROBLEMS = 100
# Thousands of short recordings would be opened one by one.
_MAX_RECORDINGS = 1024


class Form(BaseModel):
    """A schema that rejects unknown fields, so that a misspelt option is not ignored."""

    model_config = ConfigDict(extra="forbid")


class DialogueForm(Form):
    """Turns or messages of user and assistant, alternating, the user first, the assistant last."""

    turns: list[dict[str, Any]] = Field(
        description="Each has a `role` and `text`, `audio` or both, or `content`, a list of items. A recording (WAV, "
        'FLAC, OGG or MP3) is `{"base64": ...}`, a data: URL, or `{"file": NAME}`, the name of a multipart part.'
    )


class Options(Form):
    """The criterion and the options of a request."""

    criterion: str = Field(default="joint", description="One of the criteria that `/health` lists.")
    calibrated: bool = Field(default=False, description="Also return calibrated values.")
    subset: str | None = Field(default=None, description="With `calibrated`: log-odds of this subset, not quantiles.")
    require_audio: bool = Field(default=True, description="Refuse a turn without a recording.")

    @model_validator(mode="after")
    def _require_calibrated(self) -> Options:
        if self.subset is not None and not self.calibrated:
            raise ValueError("subset needs calibrated: true; add it, or omit subset")
        return self


class ScoreRequest(Options):
    """Dialogues to score."""

    dialogues: list[DialogueForm] = Field(min_length=1)
    skip_bad: bool = Field(default=False, description="Skip dialogues that cannot be scored.")


class CompareRequest(Options):
    """Two versions of a dialogue."""

    a: DialogueForm
    b: DialogueForm


class Problem(BaseModel):
    """The reason why part of a request cannot be scored."""

    loc: list[str | int] = Field(description="Location in the request.")
    msg: str
    type: str
    dialogue: int | None = Field(default=None, description="Number of the dialogue, from 1.")
    turn: int | None = Field(default=None, description="Number of the turn, from 1; a system turn is not counted.")


class Problems(BaseModel):
    """The problems of a request, at most 100."""

    detail: list[Problem]


class Result(BaseModel):
    """The result of a dialogue."""

    reward: float | None = Field(description="Higher is better.")
    calibrated: float | None = Field(default=None, description="Share of lower reference rewards, or log-odds.")
    given_s: float | None = Field(default=None, description="Duration of all recordings in seconds.")
    heard_s: float | None = Field(default=None, description="Heard seconds: at most `max_turn_s` per turn.")
    num_recordings: int | None = None
    cut_turns: list[int] | None = Field(default=None, description="Numbers of truncated turns, from 1.")
    silent_turns: list[int] | None = Field(default=None, description="Numbers of silent turns, from 1.")
    error: Problem | None = None


class ScoreResponse(BaseModel):
    """The results of the dialogues, in order."""

    criterion: str
    results: list[Result]


class CompareResponse(BaseModel):
    """The results of two versions, and their margin."""

    criterion: str
    a: Result
    b: Result
    margin: float = Field(description="Reward of a minus reward of b.")
    probability: float = Field(
        description="Probability that a is better: sigmoid(margin), the model of the training loss; with a subset "
        "sigmoid(margin / temperature of the subset)."
    )


class Health(BaseModel):
    """The state of the server, its model, and what it accepts."""

    status: Literal["ok"]
    model: str
    criteria: list[str]
    calibration_subsets: list[str] | None = Field(description="Null for a model without calibration.")
    max_turn_s: float = Field(description="Seconds that the model hears of each turn; longer turns are truncated.")
    limits: dict[str, int | float]


class BadRequestError(ValueError):
    """Raised for a malformed request, with its problems."""

    def __init__(self, *problems: Problem):
        super().__init__("; ".join(problem.msg for problem in problems))
        self.problems = list(problems)


AnyRequest = TypeVar("AnyRequest", bound=Options)


async def read_request(
    request: Request, form: type[AnyRequest], limits: Limits
) -> tuple[AnyRequest, dict[str, bytes]]:
    """Return the form and files of a request; HTTP errors: 400 multipart, 408 slow, 413 large, 415 media type."""
    given, options = parse_options_header(request.headers.get("content-type", ""))
    kind, charset = given.decode("latin-1"), options.get(b"charset", b"utf-8").decode("latin-1").lower()
    coding = request.headers.get("content-encoding", "identity").lower()
    for name, found, accepted in (
        ("content type", kind, (JSON, MULTIPART)),
        # Python knows other encodings: decoding a megabyte of `punycode` takes an hour.
        ("charset", charset, ("utf-8", "utf8")),
        ("content encoding", coding, ("identity",)),
    ):
        if found not in accepted:
            raise HTTPException(415, f"{name} is {found[:80]!r}; send {' or '.join(accepted)}.")
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            files = (
                await _read_multipart(request, limits) if kind == MULTIPART else {REQUEST_PART: await request.body()}
            )
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {limits.body_timeout_s:g} s.") from None
    except OSError as error:
        reason = f"the server cannot store the upload ({error.strerror})."
        raise HTTPException(503, reason, {"Retry-After": str(limits.retry_after_s)}) from error
    return await asyncio.to_thread(parse_form, form, files.pop(REQUEST_PART)), files


async def _read_multipart(request: Request, limits: Limits) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    async with request.form(max_files=_MAX_FILES, max_fields=1, max_part_size=limits.max_body_bytes) as form:
        for written, part in form.multi_items():
            name = compose(written)
            if name in parts:
                reason = f"the multipart body has two parts named {name[:80]!r}; rename one."
                raise BadRequestError(Problem(loc=["body"], msg=reason, type="multipart"))
            parts[name] = await part.read() if isinstance(part, UploadFile) else part.encode()
    if not parts.get(REQUEST_PART):
        reason = f"the multipart body has no part {REQUEST_PART!r}; send the JSON in it."
        raise BadRequestError(Problem(loc=["body"], msg=reason, type="multipart"))
    return parts


def parse_form(form: type[AnyRequest], text: bytes) -> AnyRequest:
    try:
        return form.model_validate_json(text)
    except ValidationError as error:
        # Omit the input: it can be megabytes.
        found = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_PROBLEMS]
    problems = []
    for each in found:
        problems.append(Problem(loc=["body", *each["loc"]], msg=each["msg"], type=each["type"]))
        match each["loc"]:
            case ("dialogues", int(index), *_):
                problems[-1].dialogue = index + 1
            case ("a" | "b" as name, *_):
                problems[-1].dialogue = "ab".index(name) + 1
    raise BadRequestError(*problems)


def read_dialogue_form(
    form: DialogueForm, files: Mapping[str, bytes], limits: Limits, *, require_audio: bool = True
) -> Dialogue:
    """Return the dialogue of a request; check durations in headers, because kilobytes of FLAC can contain hours."""
    longest, longest_s, clips = limits.max_turns, limits.max_turn_s, list[Clip]()
    if (num_turns := sum(turn.get("role") != "system" for turn in form.turns)) > longest:
        raise DialogueError(f"has {num_turns} turns; this server scores at most {longest}: keep the last {longest}.")

    def find(audio: Any) -> Clip:
        if len(clips) == _MAX_RECORDINGS:
            raise ValueError(f"exceeds {_MAX_RECORDINGS} recordings per dialogue; join some.")
        clip = Clip({"bytes": _read_recording(audio, files), "path": None})
        clips.append(clip)
        try:
            vars(clip)["duration_s"] = check_recording(clip.source, longest_s)
        except AudioError as error:
            raise ValueError(str(error).removeprefix("audio bytes: ")) from error
        return clip

    dialogue = make_dialogue(form.turns, find=find)
    for number, turn in enumerate(dialogue.turns, start=1):
        if sum(clip.duration_s for clip in turn.clips) > longest_s:
            reason = f"its recordings exceed {longest_s:g} s per turn; shorten them."
            raise DialogueError(reason, number)
        if require_audio and turn.audio is None:
            reason = "has no audio; give a recording, or require_audio: false to score text only."
            raise DialogueError(reason, number)
    return dialogue


def _read_recording(audio: Any, files: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a recording in the request; paths and URLs on the server are not allowed."""
    match {"base64": audio} if isinstance(audio, str) and audio.startswith("data:") else audio:
        case {"base64": str(text), **others} if not others:
            return read_base64(text)
        case {"file": str(written), **others} if not others:
            if (name := compose(written)) in files:
                return files[name]
            found = ", ".join(sorted(files)) or "none"
            raise ValueError(f"the request has no file part {name[:80]!r}; it has {found}.")
    raise ValueError('its recording must be {"base64": ...} or {"file": NAME of a part}.')


def make_examples() -> dict[type[Options], dict[str, Any]]:
    """Return examples for the OpenAPI page that can be sent unchanged."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(400), 8000, format="WAV", subtype="PCM_U8")
    silence = {"base64": base64.b64encode(buffer.getvalue()).decode()}

    def make(answer: str) -> dict[str, Any]:
        turns = (("user", "Please enter a new extension."), ("assistant", answer))
        return {"turns": [{"role": role, "text": text, "audio": silence} for role, text in turns]}

    a, b = make("Sure, um, which one?"), make("Please specify the extension.")
    score = {"criterion": "modality", "dialogues": [make("Please enter your password.")]}
    return {ScoreRequest: score, CompareRequest: {"criterion": "joint", "a": a, "b": b}}
