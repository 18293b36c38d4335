"""Read the JSON in the answers of language models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from .files import require_shallow


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_OPENING = re.compile(r"[{\[]")
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


def parse_answer(text: str, is_cut: bool = False) -> Any:
    """Return the only JSON object or array in an answer; prose or a code fence around it is ignored.

    A repeated piece, or a list of plain values beside an object, is unambiguous. Two different pieces, one key with
    two values, and an unclosed piece are errors: `json_repair` alone would pick one or complete it.
    """
    require_shallow(text)
    with suppress(ValueError):
        value = _DECODER.decode(text.strip())
        if isinstance(value, dict | list):
            return value
    if is_cut:  # The JSON of a cut answer may be incomplete.
        raise ValueError("the answer was cut off at the token limit; be shorter.")
    values = [_read_piece(piece) for piece in dict.fromkeys(_split_pieces(text))]
    found = {json.dumps(value, sort_keys=True): value for value in values if value is not None}
    objects = [value for key, value in found.items() if "{" in key]
    left = objects if len(objects) == 1 else list(found.values())
    if len(left) != 1:
        count = f"{len(left)} pieces of" if left else "no valid"
        raise ValueError(f"the answer has {count} JSON; give exactly one object or array.")
    return left[0]


def _split_pieces(text: str) -> Iterator[str]:
    """Yield the outermost objects and arrays in prose."""
    end = 0
    while opening := _OPENING.search(text, end):
        depth, start = 0, opening.start()
        for found in _BRACKETS.finditer(text, start):
            depth += _STEPS.get(found[0], 0)
            if not depth:
                end = found.end()
                yield text[start:end]
                break
        else:
            if end and not text[start:].strip("{[ \r\n"):
                return
            raise ValueError("the JSON is incomplete or invalid.")


def _read_piece(piece: str) -> Any:
    """Parse a piece of JSON and repair punctuation only; return None for brackets in prose."""
    import json_repair

    try:
        return _DECODER.decode(piece)
    except ValueError as error:
        problem = str(error)
    with suppress(ValueError):
        value = json_repair.loads(piece)
        if isinstance(value, dict | list) and _list_words(piece) == _list_words(json.dumps(value, ensure_ascii=False)):
            return json.loads(json.dumps(value, allow_nan=False))
    if ":" in piece:
        raise ValueError(f"the JSON is not valid ({problem}).")
    return None


def _list_words(text: str) -> list[str]:
    return re.findall(r"[\w.+-]+", re.sub(r"\\.", " ", text))


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if twice := [key for key, value in pairs if made[key] != value]:
        raise ValueError(f"the key {twice[0]!r} has two different values.")
    return made


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON.")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_make_object, strict=False)
