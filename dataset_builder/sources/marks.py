"""Take the marks of transcribers out of the words, as no synthesizer should read them: `[laughter]`, `<unk>`, `A:`.

Removed: what is in square or curly brackets or is a tag; notes on sounds and scenes in parentheses or asterisks; a
speaker at the beginning. Kept: other parentheses as they are, emphasis without its asterisks, and the words in the
marks of corpora that document them: Switchboard's `[laughter-yes]`, `th[at]-` and `{F uh}`, its repairs `[I + I]`,
Fisher's `((unsure))`, LDC's `%um`. A text without a mark stays as it is, byte for byte.
"""

from __future__ import annotations

import html
import re
from dataclasses import replace

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, ScriptPair, SkipError


_SOUNDS = (
    r"laugh\w*|chuckl\w*|giggl\w*|sigh\w*|cough\w*|gasp\w*|gulp\w*|sniff\w*|sob\w*|cry|cries|crying|groan\w*|moan\w*|"
    r"yawn\w*|sneez\w*|breath\w*|inhal\w*|exhal\w*|throat|applau\w*|clap\w*|cheer\w*|music|noises?|silence|silent|"
    r"pauses?|inaudible|unintelligible|indistinct|unclear|crosstalk|overlap\w*|static|beep\w*|ring\w*|sounds?|"
    r"whisper\w*|mumbl\w*|grunt\w*|snort\w*|scoff\w*|humm?s?|humming|hiccup\w*|scream\w*|shout\w*|slam\w*|knock\w*|beat|"
    r"笑声?|大笑|叹气|咳嗽|掌声|音乐|拍手|ため息|咳"
)
_SOUND = re.compile(rf"(?:^|\b)(?:{_SOUNDS})(?:\b|$)", re.IGNORECASE)
_SCENE = re.compile(
    r"(?:note|scene|cut to|commercial break|opening credits|closing credits|off ?screen)\b", re.IGNORECASE
)
# Words of a speaker about a sound: "(and I laughed)".
_SAID = re.compile(r"^(?:and|or|but|not?|the|an?|my|your|that|which|with|as)\b|\b(?:i|you|we|it)\b", re.I)
_MAX_NOTE_WORDS = 6
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z][a-z0-9]*);", re.IGNORECASE)
_SPEAKER = re.compile(
    r"^\W*(?:(?i:speaker[ _-]?\w{1,3}|spk[ _-]?\d+|user|assistant|agent|customer|caller|operator|host|guest|"
    r"interviewer|interviewee|moderator|(?:fe)?male|(?:wo)?man)|[A-Z]\d{0,2})\s*(?:\([\d:.]+\)\s*)?:\s+"
)
# Pattern, and the group with the words that stay; None for a mark that is removed.
_RULES = tuple(
    (re.compile(pattern, re.IGNORECASE), group)
    for pattern, group in (
        (r"\[laughter-([^\[\]]+)\]", 1),
        (r"\[([^\[\]]*\+[^\[\]]*)\]", 1),
        (r"\{[A-Z] ([^{}]*)\}", 1),
        (r"(\w+)\[\w+\]-", 1),
        (r"\(\(([^()]*)\)\)", 1),
        (r"(?<!\S)%([a-z]+)", 1),
        (r"[\[【][^\[\]【】]*[\]】]|\{[^{}]*\}|&=\w+|[♪♫♬]|^\s*>>+", None),
        (r"<[/|]?[a-z][\w|:/.-]*(?:\s+[\w-]+=[^<>]*)*\s*/?>", None),
    )
)
_WRAPPED = re.compile(r"[(（<]([^()（）<>]*)[)）>]|(?<!\w)(\*{1,3}|_)(?=\S)([^*]+?)(?<=\S)\2(?!\w)")


def remove_marks(text: str) -> tuple[str, list[str]]:
    """Return the words of a transcript, none if it has only marks, and the marks that were changed or removed."""
    found: list[str] = []

    def note(mark: re.Match[str], kept: str) -> str:
        found.append(mark[0].strip())
        return f" {kept.replace('+', ' ')} "

    def unwrap(mark: re.Match[str]) -> str:
        words = mark[1] if mark[1] is not None else mark[3]
        if _is_note(words, mark[2]):
            return note(mark, "")
        return note(mark, words) if mark[2] else mark[0]

    def unescape(mark: re.Match[str]) -> str:
        character = html.unescape(mark[0])
        found.extend([mark[0]] * (character != mark[0]))
        return character

    before, words = "", text
    while before != words:
        before = words
        words = _ENTITY.sub(unescape, words)
        for pattern, group in _RULES:
            words = pattern.sub(lambda mark, group=group: note(mark, mark[group] if group else ""), words)  # type: ignore[misc]
        words = _WRAPPED.sub(unwrap, words)
        words = _SPEAKER.sub(lambda mark: note(mark, ""), words)
    if not found:
        return text, []
    words = re.sub(r"\s+([,.!?;:])(?!\w)", r"\1", " ".join(words.split()))
    words = re.sub(r"^[,;:.\-\s]+(?=\S)", "", words)
    return (words if any(map(str.isalnum, words)) else ""), found


def _is_note(words: str, asterisks: str | None) -> bool:
    """Return whether wrapped words are a note on a sound, a scene or, between asterisks, on what somebody does."""
    number = len(words.split())
    if number > _MAX_NOTE_WORDS and not _SCENE.match(words):
        return False
    if not any(map(str.isalnum, words)) or _SCENE.match(words):
        return True
    if asterisks and number > 1 and re.match(r"\w+(?:s|ing)\b", words):
        return True
    return bool(_SOUND.search(words)) and not _SAID.search(words)


def clean_item(item: Episode | ScriptPair) -> Episode | ScriptPair:
    """Return an item whose words have no marks; raise `SkipError` if a turn has no others."""
    if isinstance(item, ScriptPair):
        return replace(item, written=_clean_episode(item.written), spoken=_clean_episode(item.spoken))
    return _clean_episode(item)


def _clean_episode(episode: Episode) -> Episode:
    turns, marks = [], []
    for position, turn in enumerate(episode.turns):
        parts: list[Part] = []
        for part in turn.parts:
            words, found = remove_marks(part.text) if isinstance(part.text, str) else (part.text, [])
            marks += [(position, mark) for mark in found]
            parts.append(replace(part, text=words) if found else part)
        turns.append(replace(turn, parts=tuple(parts)))
        if marks and not any(part.text for part in parts):
            said = " ".join(mark for number, mark in marks if number == position)
            raise SkipError("no_words", f"turn {position} has marks only, {said!r:.80}; omit it, or write its words.")
    return replace(episode, turns=tuple(turns), marks=tuple(marks)) if marks else episode


def note_marks(episode: Episode) -> Skipped | None:
    """Return a note on the marks that were taken out of an episode."""
    if not episode.marks:
        return None
    listed = ", ".join(f"{mark!r:.40} of turn {position}" for position, mark in episode.marks)
    name = f"{episode.source} {episode.name}, turn {episode.marks[0][0]}"
    return Skipped(name, "marks", f"{name}: {len(episode.marks)} marks are no words: {listed:.200}.")
