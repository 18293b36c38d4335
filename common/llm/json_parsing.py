"""Read the JSON in the reply of a language model, if there is exactly one piece of it.

Repaired is what has one meaning: the same piece twice, a bracket or a list of plain values beside an object, a comma
before a closing bracket, a line break in a text. Two pieces that differ, or one key with two values, are an error.

Requests carry no schema (`response_format`): many endpoints, local models and models that hear audio take none, and a
schema would change the keys of all cached answers. An endpoint that takes one gets it through `extra_body`; its reply
is JSON as it stands and passes the first test.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sdiareward.common.files import require_shallow


# About fifty thousand tokens: a longer reply is no answer, and slow to search.
_MAX_CHARACTERS = 200_000
_OPENING = re.compile(r"[{\[]")
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*+")|,\s*(?=[}\]])', re.DOTALL)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON.")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs) and (twice := [key for key, value in pairs if made[key] != value]):
        raise ValueError(f"{twice[0]!r} is there twice with different values.")
    return made


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_make_object, strict=False)


def parse_json(text: str, *, is_cut: bool = False) -> Any:
    """Return the only JSON object or array in a reply; prose or a code fence around it is ignored."""
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"the answer has {len(text)} characters; it must have at most {_MAX_CHARACTERS}.")
    stripped = text.strip()
    require_shallow(stripped)
    problem = "it is a bare value"
    try:
        value = _DECODER.decode(stripped)
        if isinstance(value, dict | list):
            return value
    except ValueError as error:
        if is_cut:  # JSON inside a cut answer may be a part of it.
            raise ValueError("the answer was cut off at the token limit; be shorter.") from None
        problem = str(error)
    found = _find_json(stripped)
    if found is None:
        raise ValueError(f"the JSON is not complete or not valid ({problem}).")
    if not found:
        raise ValueError(f"the answer holds no valid JSON object or array ({problem}).")
    found = list({json.dumps(value, sort_keys=True): value for value in found}.values())
    objects = [value for value in found if "{" in json.dumps(value)]
    found = objects if len(objects) == 1 else found
    if len(found) > 1:
        raise ValueError(f"the answer holds {len(found)} pieces of JSON; it must be exactly one.")
    return found[0]


def _find_json(text: str) -> list[Any] | None:
    """Return the outermost objects and arrays in prose; None if one of them is incomplete."""
    found: list[Any] = []
    position, is_mended = 0, False
    while opening := _OPENING.search(text, position):
        start = opening.start()
        try:
            value, position = _DECODER.raw_decode(text, start)
        except ValueError:
            # From a bracket on, so that strings are recognized; once, because it is slow.
            if not is_mended and text[start + 1 :].lstrip()[:1] in ('"', "{", "["):
                text, is_mended = text[:start] + _TRAILING_COMMA.sub(r"\1", text[start:]), True
                continue
            if found and not text[start:].strip("{[ \r\n"):
                break
            # A bracket of prose is closed before another opens; any other bracket begins incomplete JSON.
            closing = text.find("}" if text[start] == "{" else "]", start)
            following = _OPENING.search(text, start + 1)
            if closing < 0 or (following and following.start() < closing):
                return None
            position = closing + 1
        else:
            found.append(value)
    return found
