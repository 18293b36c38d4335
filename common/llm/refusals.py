"""Find the parameter that an endpoint refuses, and what to send instead.

Providers name it in `param` (OpenAI, vLLM), in the `loc` of a validation error (FastAPI, Mistral), or in words alone
(Gemini, TGI, LiteLLM). A refusal that is about the messages, such as a context that is too long, names none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any


_RENAMED = {"max_tokens": "max_completion_tokens"}
_STATUS_OF_CODES = {
    "invalid_api_key": 401,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    "model_not_found": 404,
}
# The length of one question, or a filter of contents.
_OF_ONE_QUESTION = re.compile(
    r"context.{0,9}(length|window|size)|exceeds?.{0,20}context|"
    r"(prompt|input|audio|messages?|request).{0,20}too (long|large)|content.{0,9}(filter|policy|management)",
    re.IGNORECASE,
)
# A validation error may repeat the whole request behind its reason.
_SEARCHED_CHARACTERS = 600


def substitute(request: Mapping[str, Any], changed: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the fields of a request without the parameters that have changed, or with them under another name."""
    fields = {**request, "extra_body": dict(request.get("extra_body", {}))}
    for name, other in changed.items():
        for part in (fields, fields["extra_body"]):
            if name in part:
                value = part.pop(name)
                if other is not None:
                    fields["extra_body"].setdefault(other, value)
    return fields


def find_change(
    error: Any, request: Mapping[str, Any], changed: Mapping[str, str | None]
) -> dict[str, str | None] | None:
    """Return the refused parameter of a request with its new name, or None to omit it; None if there is none."""
    if find_status(error) not in (400, 422) or is_of_one_question(error):
        return None
    sent = {*request, *request["extra_body"]} - {"model", "messages", "extra_body"}
    known = {*sent, "messages"}
    named = [name for name in _list_names(error.body) if name in known] or _search_names(error, known)
    if not named or named[0] not in sent:
        return None
    other = _RENAMED.get(named[0])
    return {named[0]: other if other and other in _read_text(error) and other not in changed else None}


def find_status(error: Any) -> int | None:
    """Return the HTTP status of an error, also of one that was sent as an answer; None without a response."""
    status = getattr(error, "status_code", None)
    if status is None:
        return None
    if status not in (200, 400, 403):
        return int(status)
    code = "model_not_found" if error.param == "model" else str(error.code)
    given = int(code) if code.isdecimal() and 400 <= int(code) < 600 else 400
    return _STATUS_OF_CODES.get(code, given if status == 200 else int(status))


def is_of_one_question(error: Any) -> bool:
    return bool(_OF_ONE_QUESTION.search(_read_text(error)))


def _read_text(error: Any) -> str:
    return f"{error.message} {error.body}"[: 2 * _SEARCHED_CHARACTERS]


def _list_names(body: Any) -> Iterator[str]:
    """Yield the fields of the request that an error names by `param` or `loc`."""
    if isinstance(body, list):
        for part in body:
            yield from _list_names(part)
    elif isinstance(body, dict):
        if isinstance(param := body.get("param"), str) and param.strip():
            yield re.split(r"[.\[]", param.strip())[0]
        if isinstance(loc := body.get("loc"), list):
            yield next((str(part) for part in loc if part != "body"), "")
        for name in ("detail", "message", "error"):
            yield from _list_names(body.get(name))


def _search_names(error: Any, names: set[str]) -> list[str]:
    """Return the names that occur in the words of an error, in their order."""
    text = _read_text(error)[:_SEARCHED_CHARACTERS]
    return re.findall(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b", text)
