"""Replace personal identifiers in transcripts before a release (section B.5), by patterns, without a model.

- `[EMAIL]`: written (`a.b@c.org`) or spoken ("a dot b at c dot org").
- `[PHONE]`: numbers that are valid for `phonenumbers` and grouped as usual in their country, and local numbers
  `555-1234` without an area code. Seven or more spelled-out digits in a row count, unless they count up or down.
- `[ADDRESS]`: addresses found by `pyap` (United States, Canada, United Kingdom), and spoken street lines without a
  town. `pyap2` is the maintained fork of `pyap` (last release 2020). Rejected: `usaddress` (labels the words of a
  known address), `scrubadub`, `presidio-analyzer` (models that no package index has), `postal` (C, 2 GB of data).
- `[URL]`, `[HANDLE]`: links, and `@name`.
- `[NAME]`: the given names, such as uploaders, as whole words in any case.

Patterns find forms, not people: unlisted names stay, and so do addresses in words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache


DEFAULT_REGIONS = ("US", "GB")
_KINDS = ("EMAIL", "URL", "HANDLE", "PHONE", "ADDRESS", "NAME")
_PLACEHOLDER = re.compile(rf"(\[(?:{'|'.join(_KINDS)})\])")

# Repetitions are bounded, so that searching takes linear time.
_EMAIL = re.compile(r"[\w.+-]{1,128}@\w[\w-]{0,62}(?:\.[\w-]{1,63})+", re.ASCII)
_TOP_LEVEL = r"(?:com|org|net|edu|gov|info|io|co|uk|us|ca|de|fr|es|it|cz|eu)"
_SPOKEN_EMAIL = re.compile(
    rf"\b[\w-]{{1,64}}(?:\s+(?:dot|underscore|dash)\s+[\w-]{{1,64}}){{0,8}}\s+at\s+[\w-]{{1,64}}"
    rf"(?:\s+dot\s+[\w-]{{1,64}}){{0,8}}\s+dot\s+{_TOP_LEVEL}\b",
    re.I,
)
_URL = re.compile(
    rf"\b(?:https?://|www\.)[^\s\[\]]+|\b[\w-]{{1,63}}(?:\.[\w-]{{1,63}}){{0,8}}\.{_TOP_LEVEL}/[^\s\[\]]*", re.I
)
_HANDLE = re.compile(r"(?<![\w@.])@\w[\w.-]*")
_LOCAL_NUMBER = re.compile(r"(?<![\w.,-])(?:\(\d{3}\)\s?|\d{3}[-. ])?\d{3}-\d{4}(?![\w-])")
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_DIGIT_WORDS = {**{word: value for value, word in enumerate(_DIGITS)}, "oh": 0}
_SPELLED = re.compile(rf"\b(?:{'|'.join(_DIGIT_WORDS)})(?:[\s,.-]+(?:{'|'.join(_DIGIT_WORDS)})){{6,}}\b", re.I)
_STREET_TYPES = (
    "Street|St|Avenue|Ave|Road|Rd|Boulevard|Blvd|Lane|Ln|Drive|Dr|Court|Ct|Terrace|Square|Crescent|Parkway|Highway|"
    "Place|Close|Gardens|Alley|Mews|Way"
)
# Capitals separate "12 Elm Drive" from "5 minutes. Drive me there" and "3 people down the road".
_STREET_LINE = re.compile(
    rf"\b\d{{1,5}}[A-Za-z]?(?:\s+[NSEW]\.?|\s+(?:North|South|East|West))?(?:\s+[A-Z][\w'-]*|\s+\d+(?:st|nd|rd|th))"
    rf"{{1,3}}\s+(?:{_STREET_TYPES})\b"
)

_Span = tuple[int, int]


def scrub(text: str, names: Sequence[str] = (), regions: Sequence[str] = DEFAULT_REGIONS) -> tuple[str, Counter[str]]:
    """Return the scrubbed text and the number of replacements by kind; scrubbing twice changes nothing."""
    # Emails first, because their second half looks like a handle.
    finders: dict[str, Callable[[str], Iterator[_Span]]] = {
        "EMAIL": lambda part: _find(part, _EMAIL, _SPOKEN_EMAIL),
        "URL": lambda part: _find(part, _URL),
        "HANDLE": lambda part: _find(part, _HANDLE),
        "PHONE": lambda part: _find_phones(part, regions),
        "ADDRESS": _find_addresses,
        "NAME": lambda part: _find_names(part, names),
    }
    counts: Counter[str] = Counter()
    while True:
        before = text
        for kind, find in finders.items():
            text, found = _replace(text, kind, find)
            if found:
                counts[kind.lower()] += found
        # Text around a placeholder may match in the next round.
        if text == before:
            return text, counts


def is_scrubbed(text: str) -> bool:
    return _PLACEHOLDER.search(text) is not None


def contains_name(text: str, names: Sequence[str]) -> bool:
    """Return whether a text has one of `names` as whole words, in any case."""
    return any(True for _ in _find_names(text, names))


def _replace(text: str, kind: str, find: Callable[[str], Iterator[_Span]]) -> tuple[str, int]:
    """Replace the spans of `find` between existing placeholders."""
    pieces: list[str] = []
    found = 0
    # The pattern is a group: every second part is a placeholder.
    for place, part in enumerate(_PLACEHOLDER.split(text)):
        end = 0
        for start, stop in sorted([] if place % 2 else find(part), key=lambda span: (span[0], -span[1])):
            if start >= end:
                pieces += [part[end:start], f"[{kind}]"]
                found, end = found + 1, stop
        pieces.append(part[end:])
    return "".join(pieces), found


def _find(text: str, *patterns: re.Pattern[str]) -> Iterator[_Span]:
    for pattern in patterns:
        yield from (match.span() for match in pattern.finditer(text))


def _find_phones(text: str, regions: Sequence[str]) -> Iterator[_Span]:
    import phonenumbers

    for region in regions if any(letter.isdigit() for letter in text) else ():
        # Require the country's grouping, because "1 2 3 4 5 6 7 8 9 10" is also a valid number.
        for match in phonenumbers.PhoneNumberMatcher(text, region, phonenumbers.Leniency.STRICT_GROUPING):
            yield match.start, match.end
    yield from _find(text, _LOCAL_NUMBER)
    for spelled in _SPELLED.finditer(text):
        digits = [_DIGIT_WORDS[word] for word in re.split(r"[\s,.-]+", spelled.group().lower())]
        if {after - before for before, after in zip(digits, digits[1:], strict=False)} not in ({1}, {-1}):
            yield spelled.span()


def _find_addresses(text: str) -> Iterator[_Span]:
    """Find addresses, except number words with a lower-case state, such as "ten here is five in"."""
    import pyap

    for country in ("US", "CA", "GB") if any(letter.isdigit() for letter in text) else ():
        for address in pyap.parse(text, country=country):
            if (address.postal_code or (address.region1 or "").strip()[:1].isupper()) and (
                match := _compile_loosely(address.full_address).search(text)
            ):
                yield match.span()
    yield from _find(text, _STREET_LINE)


@lru_cache(maxsize=64)
def _compile_loosely(found: str) -> re.Pattern[str]:
    """Allow any spaces, commas and dashes between words, because `pyap` normalizes them."""
    words = re.findall(r"[^\s,\u2010-\u2015-]+", found)
    return re.compile(r"[\s,\u2010-\u2015-]+".join(map(re.escape, words)))


def _find_names(text: str, names: Sequence[str]) -> Iterator[_Span]:
    for name in names:
        if pattern := r"\s+".join(re.escape(word) for word in name.split()):
            yield from _find(text, re.compile(rf"(?<!\w){pattern}(?!\w)", re.I))
