"""Reject colloquialness scripts that counting can solve.

If the spoken side of every pair has more commas, counting commas orders every pair correctly, and a benchmark of these
pairs does not measure listening. A count orders pairs by "more is spoken" or "less is spoken", whichever is better; a
tie counts half.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from sdiareward.common.tables import render_markdown_table


MAX_SHARE = 0.65
MAX_WORDS_DIFFERENCE = 0.1
MAX_MARKS_DIFFERENCE = 1
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_STOP = re.compile(r"[.!?\u2026]+")
_APOSTROPHE = re.compile(r"\w['\u2019]\w|['\u2019](?:cause|em|til)\b|\win['\u2019](?!\w)", re.IGNORECASE)
_MARK = re.compile(r"\.{2,}|[.,;:!?\u2026\u2013\u2014()\"\u201c\u201d]|(?<!\w)-+(?!\w)")
_FILLER = re.compile(
    r"\b(?:u+m+|u+h+|e+r+m*|a+h+|h+m+|m+h*m+|o+h+|yeah|yep|yup|nah|okay|ok|well|you know|i mean|kind of|sort of|"
    r"kinda|sorta|i guess|basically|totally|literally|dude|man|mate|so yeah|anyway)\b|, like,",
    re.IGNORECASE,
)

Turns = Sequence[Mapping[str, str]]


def _count(pattern: re.Pattern[str] | str) -> Callable[[Sequence[str]], float]:
    return lambda texts: sum(len(re.findall(pattern, text)) for text in texts)


def _measure_words(texts: Sequence[str]) -> float:
    words = [word for text in texts for word in _WORD.findall(text)]
    return round(sum(map(len, words)) / max(1, len(words)), 6)


_count_words, _count_stops = _count(_WORD), _count(_STOP)
COUNTS: dict[str, Callable[[Sequence[str]], float]] = {
    "words": _count_words,
    "commas": _count(","),
    "stops": _count_stops,
    "punctuation marks": _count(_MARK),
    "apostrophes": _count(_APOSTROPHE),
    "mean word length": _measure_words,
    "words per stop": lambda texts: round(_count_words(texts) / max(1, _count_stops(texts)), 6),
    "fillers": _count(_FILLER),
}


def measure_shares(pairs: Iterable[tuple[Turns, Turns]]) -> dict[str, float]:
    """Return for each count the share of pairs that it orders correctly, from 0.5 to 1."""
    sides = [tuple([turn["content"] for turn in side] for side in pair) for pair in pairs]
    if not sides:
        raise ValueError("no pairs to count; give at least one.")
    shares = {}
    for name, count in COUNTS.items():
        values = [(count(chosen), count(rejected)) for chosen, rejected in sides]
        more = sum((a > b) + (a == b) / 2 for a, b in values) / len(values)
        shares[name] = max(more, 1 - more)
    return shares


def require_balance(pairs: Iterable[tuple[Turns, Turns]], max_share: float = MAX_SHARE) -> dict[str, float]:
    """Return `measure_shares`; raise if one count orders more than `max_share` of the pairs."""
    shares = measure_shares(pairs)
    if over := [name for name, share in shares.items() if share > max_share]:
        rows = [[name, f"{100 * share:.1f}"] for name, share in shares.items()]
        table = render_markdown_table(["count", "pairs that it orders (%)"], rows)
        found = f"counts of {', '.join(over)} order more than {max_share:.0%} of the pairs; rewrite or remove pairs."
        raise ValueError("\n".join([found, *table]))
    return shares


def find_imbalance(chosen: Turns, rejected: Turns) -> str | None:
    """Describe unequal turns, words or punctuation of a pair; None if they are balanced."""
    if len(chosen) != len(rejected):
        return f"the sides have {len(chosen)} and {len(rejected)} turns; the numbers must be equal."
    words = [_count_words([turn["content"] for turn in side]) for side in (chosen, rejected)]
    if abs(words[0] - words[1]) > MAX_WORDS_DIFFERENCE * max(words):
        return f"the sides have {words[0]:g} and {words[1]:g} words; they may differ by {MAX_WORDS_DIFFERENCE:.0%}."
    for position, turns in enumerate(zip(chosen, rejected, strict=True)):
        marks = [len(_MARK.findall(turn["content"])) for turn in turns]
        if abs(marks[0] - marks[1]) > MAX_MARKS_DIFFERENCE:
            return f"turn {position} has {marks[0]} and {marks[1]} marks; they may differ by {MAX_MARKS_DIFFERENCE}."
    return None
