"""Read the body of a request within a time limit; it is JSON or multipart, which FastAPI cannot declare together."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from sdiareward.audio_sdiareward import compose

from .forms import Options, Problem
from .inputs import explain_form_errors
from .settings import Limits


AnyRequest = TypeVar("AnyRequest", bound=Options)
JSON, MULTIPART = "application/json", "multipart/form-data"
# The part of a multipart request that holds the JSON.
REQUEST_PART = "request"
_MAX_FILES = 1024
_MAX_PROBLEMS = 100


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
        try:
            body = json.loads(self.text)
        except (ValueError, RecursionError):
            body = None
        problems = explain_form_errors(found[:_MAX_PROBLEMS], body)
        if len(found) > _MAX_PROBLEMS:
            reason = f"{len(found) - _MAX_PROBLEMS} more problems are not listed; fix these first."
            problems.append(Problem(loc=["body"], msg=reason, type="too_many"))
        raise BadRequestError(*problems)


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
