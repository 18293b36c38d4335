"""Remove transcribers' marks that synthesizers must not read, such as `[laughter]`, `<unk>` and `A:`.

Removed: text in square or curly brackets, tags, notes on sounds and scenes in parentheses or asterisks, a leading
speaker name. Kept: other parentheses, emphasis without its asterisks, and the words in documented marks of corpora:
Switchboard's `[laughter-yes]`, `th[at]-`, `{F uh}` and repairs `[I + I]`, Fisher's `((unsure))`, LDC's `%um`. A text
without marks is unchanged, byte for byte.
"""

from __future__ import annotations

import html
import re
from dataclasses import replace

from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.episodes import Episode, SkipError


# First marks with words to keep (the group), then marks without.
_MARK = re.compile(
    r"\[(?i:laughter)-([^\[\]]+)\]|\[([^\[\]+]*\+[^\[\]]*)\]|(?<!\w)(\w+)\[\w+\]-|\{[A-Z] ([^{}]*)\}|\(\(([^()]*)\)\)|"
    r"(?<!\S)%([aehu]*[hm]+)\b|[\[【][^\[\]【】]*[\]】]|\{[^{}]*\}|&=\w+|[♪♫♬]|^\s*>>+|"
    r"<[/|]?[A-Za-z][\w|:/.-]*(?:\s+[\w-]+=[^<>]*|\s*/)?>|"
    r"^[\s-]*(?:(?i:speaker[ _-]?\w{1,3}|spk[ _-]?\d+|user|assistant|agent|customer|caller|operator|host|guest|"
    r"interviewe[er]|moderator|(?:fe)?male|(?:wo)?man)|[A-Z]\d{0,2})\s*(?:\([\d:.]+\)\s*)?:\s+"
)
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z][a-z0-9]*);", re.IGNORECASE)
_WRAPPED = re.compile(r"[(（<]([^()（）<>]*)[)）>]|(?<!\w)(\*{1,3}|_)(?=\S)([^*]{1,200}?)(?<=\S)\2(?!\w)")
_NO_WORDS = re.compile(
    r"[\s.…?-]*|(?i:(?:note|scene|cut to):|commercial break|(?:open|clos)ing credits|off ?screen\b).*", re.S
)
_SOUND = re.compile(
    r"\b(?:(?:laugh|chuckl|giggl|sigh|cough|gasp|gulp|sniffl?|sob|groan|moan|yawn|sneez|breath|inhal|exhal|applau[sd]|clap|"
    r"cheer|overlap|beep|ring|whisper|mumbl|grunt|snort|scoff|hiccup|scream|shout|slam|knock|nod|shrug|smil|wink|grin|frown)"
    r"(?:e|e?s|ter|[bdgmnp]?(?:ed|ing))?|throat|cr(?:y|ies|ying)|music|noises?|silence|silent|pauses?|inaudible|"
    r"unintelligible|indistinct|unclear|crosstalk|sounds? (?:of|effects?)|(?:sounds?|static|beat)$|humm?(?:s|ing)?|"
    r"looks (?:at|away|up|down|around)|risas?|rires?|lacht|lachen|смех|"
    r"笑声?|大笑|叹气|咳嗽?|掌声|音乐|拍手|ため息|웃음|박수)\b",
    re.IGNORECASE,
)
# A speaker's words about a sound: "(and I laughed)".
_SAID = re.compile(
    r"^(?:and|or|but|not?|the|an?|my|your|that|which|with|as)\b|\b(?:i|you|we|it|is|are|was|to)\b", re.IGNORECASE
)
_MAX_NOTE_WORDS = 6
# For nested marks, and for entities escaped twice.
_MAX_DEPTH = 4


def remove_marks(text: str) -> tuple[str, list[str]]:
    """Return the words of a transcript, empty if it has only marks, and the changed or removed marks."""
    found: list[str] = []

    def replace_by(mark: re.Match[str], words: str) -> str:
        found.extend([mark[0].strip()] * (words != mark[0]))
        return words

    def unmark(mark: re.Match[str]) -> str:
        kept = mark[mark.lastindex] if mark.lastindex else ""
        return replace_by(mark, f" {kept.replace('+', ' ')} ")

    def unwrap(mark: re.Match[str]) -> str:
        words = mark[1] or mark[3] or ""
        is_sound = len(words.split()) <= _MAX_NOTE_WORDS and _SOUND.search(words) and not _SAID.search(words)
        if is_sound or _NO_WORDS.fullmatch(words):
            return replace_by(mark, " ")
        return replace_by(mark, f" {words} " if mark[2] else mark[0])

    words = text
    for _ in range(_MAX_DEPTH):
        words = _ENTITY.sub(lambda mark: replace_by(mark, html.unescape(mark[0])), words)
        words = _MARK.sub(unmark, words)
        words = _WRAPPED.sub(unwrap, words)
    if not found:
        return text, []
    words = re.sub(r"\s+([,.!?;:])(?!\w)", r"\1", " ".join(words.split()))
    return re.sub(r"^(?:[,;:.-]+\s+)+", "", words) if any(map(str.isalnum, words)) else "", found


def clean_episode(episode: Episode) -> Episode:
    """Return an episode without marks; raise `SkipError` if a turn has no words left."""
    turns, marks = [], []
    for position, turn in enumerate(episode.turns):
        cleaned = [remove_marks(part.text) for part in turn.parts]
        found = [mark for _, marks_of_part in cleaned for mark in marks_of_part]
        if found and not any(words for words, _ in cleaned):
            raise SkipError("no_words", f"turn {position} has only marks, {' '.join(found)!r:.80}; write its words.")
        marks += [(position, mark) for mark in found]
        parts = zip(turn.parts, cleaned, strict=True)
        turns.append(replace(turn, parts=tuple(replace(part, text=words) for part, (words, _) in parts)))
    return replace(episode, turns=tuple(turns), marks=tuple(marks)) if marks else episode


def note_marks(episode: Episode) -> Skipped | None:
    """Return a note on the marks removed from an episode."""
    if not episode.marks:
        return None
    name = f"{episode.source} {episode.name}, turn {episode.marks[0][0]}"
    listed = ", ".join(f"{mark!r:.40} of turn {position}" for position, mark in episode.marks)
    return Skipped(name, "marks", f"{name}: removed {len(episode.marks)} marks: {listed:.200}.")
