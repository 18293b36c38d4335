"""Hypothesis strategies: any JSON value, and valid values, texts and bytes with a few places changed."""

import copy
import json

from hypothesis import strategies as st


# Texts with a meaning to some layer below: paths, markup, numbers that cannot be converted, half a character.
TEXTS = (
    *("", " ", "\0", "\ud800", "\ufeff", "a\nb", "\u2028", "𝔘", "²", "..", "../../etc/passwd", "/etc/passwd"),
    "http://[::1",
    *("x" * 300, "x" * 5000, "9" * 5000, "-1", "1e400", "NaN", "null", "{}", "[", "%s", "<|AUDIO|>", "<|im_end|>"),
    *("<think>", "</score>", "user", "assistant", "system", "chosen", "modality", "wild", "audio", "text"),
)
NUMBERS = (0, 1, -1, 2, 15, 16, 17, 60, 255, 2**15, 2**31 - 1, 2**32, 2**64, 0.5, 1e-300, 1e18, 1e300, float("inf"))

texts = st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=()), max_size=12)
scalars = st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.integers() | st.floats() | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=6
)


def _places(value):
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


@st.composite
def changed(draw, good, most=3):
    """Return a valid value of lists and dictionaries with up to `most` places replaced, removed, added or wrapped."""
    root = [copy.deepcopy(good)]
    for _ in range(draw(st.integers(0, most))):
        container, key = draw(st.sampled_from(list(_places(root))))
        kind = draw(st.sampled_from(("replace", "swap", "swap", "remove", "add", "wrap")))
        if kind == "swap":
            container[key] = draw(texts if isinstance(container[key], str) else scalars)
        elif kind == "wrap":
            container[key] = [container[key]]
        elif kind == "replace" or container is root:
            container[key] = draw(values)
        elif kind == "remove":
            del container[key]
        elif isinstance(container, dict):
            container[draw(texts)] = draw(values)
        else:
            container.insert(key, copy.deepcopy(container[key]))
    return root[0]


@st.composite
def damaged(draw, *originals, most=4):
    """Return one of the originals, bytes, with up to `most` pieces overwritten, inserted or cut out."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, most))):
        # Half of the time within the header.
        place = draw(st.integers(0, len(data) if draw(st.booleans()) else min(len(data), 100)))
        piece = draw(st.binary(max_size=8) | st.sampled_from((b"\xff\xff\xff\xff", bytes(4))))
        data[place : place + draw(st.sampled_from((0, len(piece), 64, 10_000)))] = piece
    return bytes(data)


@st.composite
def json_texts(draw, good):
    """Return JSON of a valid value with changes, sometimes damaged as text or nested too deeply."""
    text = json.dumps(draw(changed(good)), ensure_ascii=draw(st.booleans()))
    damage = damaged(text.encode("utf-8", "surrogatepass")).map(lambda data: data.decode("utf-8", "surrogateescape"))
    return draw(st.just(text) | st.just(text) | damage | st.sampled_from(("[" * 3000, "9" * 5000, "", "null")))
