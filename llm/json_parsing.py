"""Read the JSON in what a language model says, where it is plain which JSON is meant."""

from __future__ import annotations

import json
import re
from typing import Any


# Some fifty thousand tokens: what is longer is no answer, and takes long to look through.
_MAX_CHARACTERS = 200_000
_OPENING = re.compile(r"[{\[]")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON.")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_json(text: str, *, is_cut: bool = False) -> Any:
    """Return the JSON object or array in a model's answer, from among prose or a code fence if there is just one.

    Args:
        text (`str`): The answer.
        is_cut (`bool`, *optional*, defaults to `False`): Whether the answer ended at the token limit; it is then taken
            only if it is JSON as it stands, since what looks whole may be a piece.

    Raises:
        ValueError: There is no JSON object or array, more than one, or one that is not complete, or the answer is
            longer than any that was asked for.
    """
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
        if is_cut:
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
    """Return the objects and arrays in prose, outermost ones only; None if one of them breaks off."""
    found: list[Any] = []
    position = 0
    while (start := _next_bracket(text, position)) is not None:
        try:
            value, position = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            # A bracket in the prose is closed again before another opens; one that is not begins JSON that breaks off.
            closing = text.find("}" if text[start] == "{" else "]", start)
            following = _next_bracket(text, start + 1)
            if closing < 0 or (following is not None and following < closing):
                return None
            position = closing + 1
        else:
            found.append(value)
    return found


def _next_bracket(text: str, position: int) -> int | None:
    found = _OPENING.search(text, position)
    return found.start() if found else None
