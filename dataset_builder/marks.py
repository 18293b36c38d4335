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
from sdiareward.dataset_builder.episodes import Episode, ScriptPair, SkipError


# Marks with words that stay, which are the group; then those without.
_MARK = re.compile(
    r"\[(?i:laughter)-([^\[\]]+)\]|\[([^\[\]]*\+[^\[\]]*)\]|(\w+)\[\w+\]-|\{[A-Z] ([^{}]*)\}|\(\(([^()]*)\)\)|"
    r"(?<!\S)%([a-z]+)|[\[【][^\[\]【】]*[\]】]|\{[^{}]*\}|&=\w+|[♪♫♬]|^\s*>>+|"
    r"<[/|]?[A-Za-z][\w|:/.-]*(?:\s+[\w-]+=[^<>]*)*\s*/?>|"
    r"^\W*(?:(?i:speaker[ _-]?\w{1,3}|spk[ _-]?\d+|user|assistant|agent|customer|caller|operator|host|guest|"
    r"interviewe[er]|moderator|(?:fe)?male|(?:wo)?man)|[A-Z]\d{0,2})\s*(?:\([\d:.]+\)\s*)?:\s+"
)
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z][a-z0-9]*);", re.IGNORECASE)
_WRAPPED = re.compile(r"[(（<]([^()（）<>]*)[)）>]|(?<!\w)(\*{1,3}|_)(?=\S)([^*]+?)(?<=\S)\2(?!\w)")
_SCENE = re.compile(r"(?:note|scene|cut to|commercial break|(?:open|clos)ing credits|off ?screen)\b", re.IGNORECASE)
_SOUND = re.compile(
    r"\b(?:(?:laugh|chuckl|giggl|sigh|cough|gasp|gulp|sniff|sob|groan|moan|yawn|sneez|breath|inhal|exhal|applau|clap|cheer|"
    r"overlap|static|beep|ring|whisper|mumbl|grunt|snort|scoff|hiccup|scream|shout|slam|knock)\w*|throat|cr(?:y|ies|ying)|"
    r"music|noises?|silence|silent|pauses?|inaudible|unintelligible|indistinct|unclear|crosstalk|sounds?|humm?(?:s|ing)?|"
    r"beat|笑声?|大笑|叹气|咳嗽?|掌声|音乐|拍手|ため息)\b",
    re.IGNORECASE,
)
# Words of a speaker about a sound: "(and I laughed)".
_SAID = re.compile(r"^(?:and|or|but|not?|the|an?|my|your|that|which|with|as)\b|\b(?:i|you|we|it)\b", re.IGNORECASE)
_MAX_NOTE_WORDS = 6


def remove_marks(text: str) -> tuple[str, list[str]]:
    """Return the words of a transcript, none if it has only marks, and the marks that were changed or removed."""
    found: list[str] = []

    def replace_by(mark: re.Match[str], words: str) -> str:
        found.extend([mark[0].strip()] * (words != mark[0]))
        return words

    def unmark(mark: re.Match[str]) -> str:
        kept = mark[mark.lastindex] if mark.lastindex else ""
        return replace_by(mark, f" {kept.replace('+', ' ')} ")

    def unwrap(mark: re.Match[str]) -> str:
        words = mark[1] or mark[3] or ""
        kept = f" {words} " if mark[2] else mark[0]
        return replace_by(mark, " " if _is_note(words, is_between_asterisks=bool(mark[2])) else kept)

    before, words = "", text
    while before != words:
        before = words
        words = _ENTITY.sub(lambda mark: replace_by(mark, html.unescape(mark[0])), words)
        words = _MARK.sub(unmark, words)
        words = _WRAPPED.sub(unwrap, words)
    if not found:
        return text, []
    words = re.sub(r"\s+([,.!?;:])(?!\w)", r"\1", " ".join(words.split()))
    return re.sub(r"^[,;:.\-\s]+", "", words) if any(map(str.isalnum, words)) else "", found


def _is_note(words: str, *, is_between_asterisks: bool) -> bool:
    """Return whether wrapped words are a note on a sound, a scene or, between asterisks, on what somebody does."""
    number = len(words.split())
    if _SCENE.match(words) or not any(map(str.isalnum, words)):
        return True
    is_action = is_between_asterisks and number > 1 and re.match(r"\w+(?:s|ing)\b", words)
    is_sound = _SOUND.search(words) and not _SAID.search(words)
    return number <= _MAX_NOTE_WORDS and bool(is_action or is_sound)


def clean_item(item: Episode | ScriptPair) -> Episode | ScriptPair:
    """Return an item whose words have no marks; raise `SkipError` if a turn has no others."""
    if isinstance(item, ScriptPair):
        return ScriptPair(_clean_episode(item.written), _clean_episode(item.spoken))
    return _clean_episode(item)


def _clean_episode(episode: Episode) -> Episode:
    turns, marks = [], []
    for position, turn in enumerate(episode.turns):
        cleaned = [remove_marks(part.text) if isinstance(part.text, str) else (part.text, []) for part in turn.parts]
        found = [mark for _, marks_of_part in cleaned for mark in marks_of_part]
        if found and not any(words for words, _ in cleaned):
            raise SkipError("no_words", f"turn {position} has marks only, {' '.join(found)!r:.80}; write its words.")
        marks += [(position, mark) for mark in found]
        parts = zip(turn.parts, cleaned, strict=True)
        turns.append(replace(turn, parts=tuple(replace(part, text=words) for part, (words, _) in parts)))
    return replace(episode, turns=tuple(turns), marks=tuple(marks)) if marks else episode


def note_marks(episode: Episode) -> Skipped | None:
    """Return a note on the marks that were taken out of an episode."""
    if not episode.marks:
        return None
    name = f"{episode.source} {episode.name}, turn {episode.marks[0][0]}"
    listed = ", ".join(f"{mark!r:.40} of turn {position}" for position, mark in episode.marks)
    return Skipped(name, "marks", f"{name}: {len(episode.marks)} marks are no words: {listed:.200}.")
