"""Read the JSON in the reply of a language model, if there is exactly one piece of it.

Requests carry no schema (`response_format`): many endpoints, local models and models that hear audio take none, and a
schema would change the keys of all cached answers. An endpoint that takes one gets it through `extra_body`; its reply
is JSON as it stands and passes the first test.
"""

from __future__ import annotations

import json
import re
from typing import Any


# About fifty thousand tokens: a longer reply is no answer, and slow to search.
_MAX_CHARACTERS = 200_000
_OPENING = re.compile(r"[{\[]")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON.")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_json(text: str, *, is_cut: bool = False) -> Any:
    """Return the only JSON object or array in a reply; prose or a code fence around it is ignored."""
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"the answer has {len(text)} characters; it must have at most {_MAX_CHARACTERS}.")
    stripped = text.strip()
    problem = "it is a bare value"
    try:
        value = _DECODER.decode(stripped)
        if isinstance(value, dict | list):
            return value
    except RecursionError:
        raise ValueError("the JSON is nested too deeply.") from None
    except ValueError as error:
        if is_cut:  # JSON inside a cut answer may be a part of it.
            raise ValueError("the answer was cut off at the token limit; be shorter.") from None
        problem = str(error)
    found = _find_json(stripped)
    if found is None:
        raise ValueError(f"the JSON is not complete or not valid ({problem}).")
    if not found:
        raise ValueError(f"the answer holds no valid JSON object or array ({problem}).")
    if len(found) > 1:
        raise ValueError(f"the answer holds {len(found)} pieces of JSON; it must be exactly one.")
    return found[0]


def _find_json(text: str) -> list[Any] | None:
    """Return the outermost objects and arrays in prose; None if one of them is incomplete."""
    found: list[Any] = []
    position = 0
    while (start := _find_next_bracket(text, position)) is not None:
        try:
            value, position = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            # A bracket of prose is closed before another opens; any other bracket begins incomplete JSON.
            closing = text.find("}" if text[start] == "{" else "]", start)
            following = _find_next_bracket(text, start + 1)
            if closing < 0 or (following is not None and following < closing):
                return None
            position = closing + 1
        else:
            found.append(value)
    return found


def _find_next_bracket(text: str, position: int) -> int | None:
    found = _OPENING.search(text, position)
    return found.start() if found else None
