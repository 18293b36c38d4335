"""Parse a judge's answer: `<think>...</think><score>n</score>`, or a similar form."""

from __future__ import annotations

import re


SCORES = (1, 2, 3, 4, 5)
# As in training (appendix F).
MAX_ANSWER_TOKENS = 5120
_FORMATS = {
    True: re.compile(r"\s*<think>(?P<thoughts>.*?)</think>\s*<score>\s*[1-5]\s*</score>\s*", re.DOTALL),
    False: re.compile(r"\s*<score>\s*[1-5]\s*</score>\s*"),
}
# Possessive: the time to search an answer of blanks or digits stays linear.
_NUMBER = r"(?<!\d)(?P<score>\d++(?:\.\d++)?)"
# The scale that an answer repeats is not a score.
_SCALE = re.compile(r"(?:\bfrom\s++)?\(?(?<!\d)1\s*+(?:-|–|to|and)\s*+5(?!\d)\)?", re.IGNORECASE)
# From the requested form to common deviations; the last match of the first form that matches counts.
_SCORE_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"<score>\s*{_NUMBER}\s*(?:/\s*5\s*)?(?:</score>|$|\s)",
        rf"\b(?:score|rating)\b[\"'*]*+\s*+(?:[:=]|is|of)?\s*+[\"'*]*+\s*+{_NUMBER}(?:\s*+/\s*+5)?\b",
        rf"{_NUMBER}\s*+/\s*+5\b",
        rf"^\s*+{_NUMBER}\s*+\.?\s*+$",
    )
)


def parse_score(text: str) -> int | None:
    """Return the score of an answer, if any; numbers within closed thoughts do not count."""
    verdict = _SCALE.sub(" ", text.rpartition("</think>")[2])
    for form in _SCORE_FORMS:
        if found := list(form.finditer(verdict)):
            # A judge that answers 7 has not understood the scale.
            number = float(found[-1]["score"])
            return int(number) if number in SCORES else None
    return None


def follows_format(text: str, reasoning: bool = True) -> bool:
    """Return whether an answer has exactly the requested form, with thoughts that are not empty."""
    match = _FORMATS[reasoning].fullmatch(text)
    if match is None:
        return False
    if not reasoning:
        return True
    thoughts = match["thoughts"]
    return bool(thoughts.strip()) and not any(tag in thoughts for tag in ("<score>", "<think>", "</think>"))


def parse_thoughts(text: str) -> str:
    """Return the thoughts of an answer; without tags, all text before the score."""
    if match := re.search(r"<think>(.*?)(?:</think>|$)", text, re.DOTALL):
        return match[1].strip()
    return text.partition("<score>")[0].strip()
