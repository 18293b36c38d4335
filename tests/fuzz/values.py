"""Strategies for unexpected values, and for valid ones with errors."""

import copy
import json
from functools import cache
from typing import Any

from hypothesis import strategies as st


# Texts with a meaning to some layer below: paths, markup, numbers that cannot be converted, half a character.
TEXTS = (
    *("", " ", "\0", "\ud800", "\u202e", "\ufeff", "\r\n", "a\nb", "é", "e\u0301", "𝔘", "\u212a", "²", "\u0663\u0664"),
    *(
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "C:\\x",
        "\\\\host\\share",
        "file:///etc/passwd",
        "http://[::1",
        "*",
        "?",
    ),
    *("x" * 300, "x" * 5000, "9" * 5000, "-1", "1e400", "0x10", "NaN", "nan", "null", "{}", "[]", "{", "?"),
    *(
        "<script>",
        "=1+1",
        "%s%n",
        "${x}",
        "{0.__class__}",
        "<|AUDIO|>",
        "<|im_end|>",
        "<|im_start|>system\n",
        "<think>",
    ),
    *("</score>", "user", "assistant", "system", "chosen", "modality", "colloquialness", "wild", "audio", "text"),
)
NUMBERS = (0, 1, -1, 2, 15, 16, 17, 60, 61, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**30)
REALS = (0.0, -0.0, 0.5, -1.0, 1e-300, 1e-9, 60.0, 1e6, 1e9, 1e18, 1e300, 5e-324, float("inf"), float("-inf"))


# Strategies are cached: creating one takes longer than drawing from it.
@cache
def texts() -> st.SearchStrategy[str]:
    anything = st.text(st.characters(exclude_categories=()), max_size=12)
    return st.sampled_from(TEXTS) | anything


@cache
def scalars() -> st.SearchStrategy[Any]:
    numbers = st.sampled_from(NUMBERS) | st.integers() | st.sampled_from(REALS) | st.floats()
    return st.none() | st.booleans() | numbers | texts()


@cache
def values(max_leaves: int = 6) -> st.SearchStrategy[Any]:
    """Return JSON values, and NaN."""
    return st.recursive(
        scalars(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(), inner, max_size=4),
        max_leaves=max_leaves,
    )


@st.composite
def changed(draw: Any, good: Any, most: int = 3) -> Any:
    """Return a valid value of lists and dictionaries with up to `most` places changed."""
    root = [copy.deepcopy(good)]
    for _ in range(draw(st.integers(0, most))):
        places = list(_places(root))
        container, key = places[draw(st.integers(0, len(places) - 1))]
        _CHANGES[draw(st.integers(0, len(_CHANGES) - 1))](draw, container, key)
        if not root:
            return draw(values())
    return root[0]


def _places(value: Any) -> Any:
    """Yield every place in nested lists and dictionaries, outermost first."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _replace(draw: Any, container: Any, key: Any) -> None:
    container[key] = draw(values())


@cache
def _same_type() -> dict[type, st.SearchStrategy[Any]]:
    return {str: texts(), int: st.sampled_from(NUMBERS), float: st.sampled_from(REALS)}


def _swap(draw: Any, container: Any, key: Any) -> None:
    """Put another scalar there, often of the same type."""
    old = container[key]
    container[key] = draw(_same_type().get(type(old), scalars()))


def _remove(draw: Any, container: Any, key: Any) -> None:
    del container[key]


def _add(draw: Any, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[draw(texts())] = draw(values())
    else:
        container.insert(key, draw(values()))


def _repeat(draw: Any, container: Any, key: Any) -> None:
    if isinstance(container, list):
        container.extend(copy.deepcopy(container[key : key + 1]) * draw(st.sampled_from((1, 2, 17))))


def _wrap(draw: Any, container: Any, key: Any) -> None:
    old = container[key]
    container[key] = ([old], {"x": old}, str(old))[draw(st.integers(0, 2))]


_CHANGES = (_replace, _swap, _swap, _swap, _remove, _add, _repeat, _wrap)

_DEEP = ("[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000, "9" * 5000, '{"a": [' + "1" * 5000 + "]}")


@st.composite
def json_texts(draw: Any, good: Any) -> str:
    """Return JSON, mostly of a valid value with changes, sometimes damaged as text."""
    text = json.dumps(draw(changed(good)), ensure_ascii=draw(st.booleans()))
    kind = draw(st.integers(0, 9))
    return text if kind < 6 else draw(damaged_texts(text)) if kind < 9 else draw(st.sampled_from(_DEEP))


def damaged_texts(*originals: str, most: int = 5) -> st.SearchStrategy[str]:
    encoded = [text.encode("utf-8", "surrogatepass") for text in originals]
    return damaged(*encoded, most=most).map(lambda data: data.decode("utf-8", "surrogateescape"))


@st.composite
def damaged(draw: Any, *originals: bytes, most: int = 5, longest: int = 20_000) -> bytes:
    """Return one of the originals with up to `most` pieces damaged."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, most))):
        _DAMAGES[draw(st.integers(0, len(_DAMAGES) - 1))](draw, data)
    return bytes(data[:longest])


def _place(draw: Any, data: bytearray) -> int:
    """Draw a position, half of the time within the first hundred bytes, where headers are."""
    last = len(data) if draw(st.booleans()) else min(len(data), 100)
    return draw(st.integers(0, last))


def _write_number(draw: Any, data: bytearray) -> None:
    place, width = _place(draw, data), draw(st.sampled_from((1, 2, 4, 8)))
    number = draw(st.sampled_from(NUMBERS)) % 2 ** (8 * width)
    data[place : place + width] = number.to_bytes(width, draw(st.sampled_from(("little", "big"))))


def _write_bytes(draw: Any, data: bytearray) -> None:
    place, found = _place(draw, data), draw(st.binary(min_size=1, max_size=8))
    data[place : place + len(found)] = found


def _insert(draw: Any, data: bytearray) -> None:
    place = _place(draw, data)
    data[place:place] = draw(st.binary(max_size=16))


def _cut_out(draw: Any, data: bytearray) -> None:
    place = _place(draw, data)
    del data[place : place + draw(st.sampled_from((1, 4, 64, 1000)))]


def _cut_off(draw: Any, data: bytearray) -> None:
    del data[_place(draw, data) :]


def _repeat_bytes(draw: Any, data: bytearray) -> None:
    place, length = _place(draw, data), draw(st.sampled_from((1, 8, 200)))
    data[place:place] = bytes(data[place : place + length]) * draw(st.sampled_from((1, 3, 30)))


_DAMAGES = (_write_number, _write_number, _write_bytes, _insert, _cut_out, _cut_off, _repeat_bytes)
