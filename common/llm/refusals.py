"""Find the parameter that an endpoint refuses in the words of its error, and what to send instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


_RENAMED = {"max_tokens": "max_completion_tokens"}
# The refusal of a question that is too long often names `max_tokens`.
_TOO_LONG = re.compile(r"context.{0,9}(length|size)", re.IGNORECASE)
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
    message: str, request: Mapping[str, Any], changed: Mapping[str, str | None]
) -> dict[str, str | None] | None:
    """Return the parameter that a refusal names first, with its new name, or None to omit it."""
    text = message[:_SEARCHED_CHARACTERS]
    fields = sorted({*request, *request["extra_body"]} - {"model", "extra_body"})
    named = re.search(rf"\b(?:{'|'.join(map(re.escape, fields))})\b", text)
    if named is None or named[0] == "messages" or _TOO_LONG.search(text):
        return None
    other = _RENAMED.get(named[0])
    return {named[0]: other if other and other in text and other not in changed else None}
